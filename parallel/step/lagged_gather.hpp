// Numbers of every rank for each step, known to all a fixed number of steps later: nobody waits for anybody in between.
// So ranks of an asynchronous pipeline may stand at different steps, and still decide the same at the same one.
#pragma once
#include <memory>
#include <vector>

#include "parallel/comm/communicator.hpp"

namespace sestina {

class LaggedGather {
 public:
  // lag >= 1: a rank runs at most so many steps ahead of another one.
  LaggedGather(Communicator& ranks, std::size_t numbers, int lag);
  // Something may be under way still when a step fails, and may arrive at any time: into memory that stays.
  ~LaggedGather();
  LaggedGather(const LaggedGather&) = delete;
  LaggedGather& operator=(const LaggedGather&) = delete;

  double* mine() { return &mine_[place(next_) * numbers_]; }  // (numbers), to be filled for the next step
  // They are on their way. Returns those of all ranks, (ranks, numbers), of the step `lag` before: null where there is
  // none. Valid until the next call.
  const double* push();
  const double* peek();  // the oldest under way, waited for; null: none
  const double* pop();   // the same, and it is under way no more

 private:
  std::size_t place(std::int64_t step) const { return static_cast<std::size_t>(step) % gathers_.size(); }
  std::size_t numbers_;
  std::vector<double> mine_, all_;                  // by place
  std::vector<std::unique_ptr<Exchange>> gathers_;  // lag + 1 of them take turns
  std::int64_t next_ = 0, oldest_ = 0;
};

}  // namespace sestina
