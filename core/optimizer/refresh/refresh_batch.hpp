// Refreshes of one update of a device that decompose a factor each: they are put off, and then those of one size are
// decomposed by one call of the solver, as many as the stream's workspace has room for. Small decompositions one after
// another leave most of a device idle.
#pragma once
#include <vector>

#include "core/optimizer/refresh/refresh.hpp"

namespace sestina {

template <class Space>
class RefreshBatch {
 public:
  using Booking = typename QueuedRefreshes<Space>::Booking;
  static bool takes(RefreshMethod method) {
    return method == RefreshMethod::eigen_basis || method == RefreshMethod::inverse_root_eigh;
  }

  // Calls refreshes(), in which queued jobs of these methods are put off, and does those. Until it returns nobody may
  // read what they write, nor write what they read.
  template <class Refreshes>
  void collect(Stream<Space>& stream, const Refreshes& refreshes) {
    jobs_.clear();
    {
      const Open open(stream, this);
      refreshes();
    }
    run(stream);
  }
  void add(const RefreshJob<Space>& job, const Booking& booking) { jobs_.push_back({job, booking, jobs_.size()}); }

 private:
  struct PutOff {
    RefreshJob<Space> job;
    Booking booking;
    std::size_t number;  // in their order
    std::size_t d() const { return job.factor.extent(0); }
  };
  struct Open {
    Open(Stream<Space>& s, RefreshBatch* batch) : stream(s) { stream.refresh.batch = batch; }
    ~Open() { stream.refresh.batch = nullptr; }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    Stream<Space>& stream;
  };

  void run(Stream<Space>&);
  // Does jobs [begin, end), which are of one size.
  void run_together(Stream<Space>&, std::size_t begin, std::size_t end);

  std::vector<PutOff> jobs_;
};

}  // namespace sestina
