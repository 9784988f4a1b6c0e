// The memory of micro-batches in flight: the tokens of each on this rank, and the activations of each on each stage. N
// = batch times sequence. Micro-batches are numbered on from the start of a run; number m lies in place m mod (places).
#pragma once
#include <algorithm>
#include <vector>

#include "core/model/activations.hpp"
#include "core/stage_values.hpp"
#include "kernels/blas/host_values.hpp"
#include "kernels/model/loss.hpp"

namespace sestina {

template <class Exec>
class TokenSlot {
 public:
  // copies: number of host buffers that take turns, as a device may still be reading from the last ones.
  TokenSlot(int batch, int sequence, int copies)
      : length_(static_cast<std::size_t>(sequence)),
        rows_("sestina::batch", 4, static_cast<std::size_t>(batch) * length_),
        scratch_(rows_.extent(1)) {
    if constexpr (!is_host<Exec>)
      for (int i = 0; i < std::max(copies, 1); ++i) host_.emplace_back("sestina::host_batch", 4, rows_.extent(1));
  }

  void load(const Exec& exec, const BatchView& batch) {
    const std::size_t n = rows_.extent(1);
    std::int32_t* to = rows_.data();
    if constexpr (!is_host<Exec>) {
      turn_ = (turn_ + 1) % host_.size();
      to = host_[turn_].data();
    }
    for (std::size_t i = 0; i < n; ++i) {
      const std::int32_t* window = batch.tokens + i + i / length_;
      to[i] = std::max(window[0], 0);
      to[n + i] = window[1];
    }
    masked_ = batch.first_key != nullptr;
    if (masked_) std::copy_n(batch.first_key, n, to + 2 * n);
    sort_rows({to, n}, {to + 3 * n, n}, scratch_);
    if constexpr (!is_host<Exec>) Kokkos::deep_copy(exec, rows_, host_[turn_]);
  }

  TokenRows<Exec> inputs() const { return {row(0), row(3)}; }
  // Return (N) each; first_key is empty where none was given.
  Vector<const std::int32_t, Exec> targets() const { return row(1); }
  Vector<const std::int32_t, Exec> first_key() const { return masked_ ? row(2) : Vector<const std::int32_t, Exec>(); }

 private:
  // Returns row i by its address, since the host may not index an element of device memory.
  Vector<const std::int32_t, Exec> row(std::size_t i) const {
    return Vector<const std::int32_t, Exec>(rows_.data() + i * rows_.extent(1), rows_.extent(1));
  }
  template <class Space>
  using Rows = Kokkos::View<std::int32_t**, Kokkos::LayoutRight, Space>;  // inputs, targets, first keys, order; (4, N)

  std::size_t length_;
  Rows<typename Exec::memory_space> rows_;
  std::vector<Rows<HostSide<Exec>>> host_;
  std::vector<std::int32_t> scratch_;  // (N) of the sort
  std::size_t turn_ = 0;
  bool masked_ = false;
};

// The places of one stage or one rank, by number of the micro-batch.
template <class Slot>
class SlotPool {
 public:
  template <class Make>
  SlotPool(int places, const Make& make) {
    for (int i = 0; i < std::max(places, 1); ++i) slots_.push_back(make());
  }
  Slot& of(std::int64_t micro) { return slots_[static_cast<std::size_t>(micro) % slots_.size()]; }
  std::vector<Slot>& all() { return slots_; }
  const Slot& of(std::int64_t micro) const { return slots_[static_cast<std::size_t>(micro) % slots_.size()]; }

 private:
  std::vector<Slot> slots_;
};

}  // namespace sestina
