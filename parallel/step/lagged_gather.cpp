#include "parallel/step/lagged_gather.hpp"

#include <utility>

#include "kernels/base/error.hpp"

namespace sestina {

LaggedGather::LaggedGather(Communicator& ranks, std::size_t numbers, int lag) : numbers_(numbers) {
  const auto places = static_cast<std::size_t>(lag) + 1, size = static_cast<std::size_t>(ranks.size());
  mine_.resize(places * numbers);
  all_.resize(places * size * numbers);
  for (std::size_t i = 0; i < places; ++i)
    gathers_.push_back(ranks.make_all_gather("numbers of a step", &mine_[i * numbers], numbers * sizeof(double),
                                             &all_[i * size * numbers]));
}

LaggedGather::~LaggedGather() {
  const auto arrived = [this](std::int64_t step) {
    try {
      return gathers_[place(step)]->test();
    } catch (const Error&) {
      return false;
    }
  };
  while (oldest_ < next_ && arrived(oldest_)) ++oldest_;
  if (oldest_ == next_) return;
  new std::vector<double>(std::move(mine_));  // for good
  new std::vector<double>(std::move(all_));
}

const double* LaggedGather::push() {
  gathers_[place(next_)]->start();
  ++next_;
  return next_ - oldest_ < static_cast<std::int64_t>(gathers_.size()) ? nullptr : pop();
}

const double* LaggedGather::peek() {
  if (oldest_ == next_) return nullptr;
  const std::size_t at = place(oldest_);
  gathers_[at]->finish();
  return &all_[at * (all_.size() / gathers_.size())];
}

const double* LaggedGather::pop() {
  const double* numbers = peek();
  if (numbers) ++oldest_;
  return numbers;
}

}  // namespace sestina
