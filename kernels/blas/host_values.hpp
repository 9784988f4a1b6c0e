// Numbers that kernels leave for the host, which fetches them together: one copy to pinned memory, one wait.
#pragma once
#include <atomic>
#include <limits>
#include <vector>

#include "kernels/blas/exec.hpp"

namespace sestina {

// Host memory that the space copies from and to without stopping the calling thread: pinned where it has its own.
template <class Exec>
using HostSide = std::conditional_t<is_host<Exec>, Kokkos::HostSpace, Kokkos::SharedHostPinnedSpace>;

// Returns a table of plain structs in the memory of the space. Fences.
template <class Exec, class Entry>
Kokkos::View<Entry*, typename Exec::memory_space> table_in_space(const char* label, const std::vector<Entry>& entries) {
  Kokkos::View<Entry*, typename Exec::memory_space> table(label, entries.size());
  Kokkos::deep_copy(
      table, Kokkos::View<const Entry*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(entries.data(), entries.size()));
  return table;
}

template <class Exec>
class HostValues {
 public:
  HostValues() = default;
  HostValues(const std::string& label, std::size_t n) : values_(label, n) {
    if constexpr (is_host<Exec>)
      host_ = values_;
    else
      host_ = decltype(host_)(label, n);
  }

  std::size_t size() const { return values_.extent(0); }
  // Returns the numbers that kernels write; they are zero at first.
  Vector<double, Exec> at(std::size_t first, std::size_t n = 1) const {
    return Vector<double, Exec>(values_.data() + first, n);
  }
  // Copies all numbers to the host and waits until all work queued before is done; `name` is that of the fence.
  void fetch(const Exec& exec, const char* name) {
    if constexpr (!is_host<Exec>) Kokkos::deep_copy(exec, host_, values_);
    exec.fence(name);
  }
  // Sends number i alone, without a wait; arrived(i) is false until it is there. Kernels write no NaN there.
  void send(const Exec& exec, std::size_t i) {
    if constexpr (!is_host<Exec>) {
      host_(i) = std::numeric_limits<double>::quiet_NaN();
      const Kokkos::View<double*, Kokkos::LayoutRight, HostSide<Exec>, Kokkos::MemoryUnmanaged> to(&host_(i), 1);
      Kokkos::deep_copy(exec, to, at(i));
    }
  }
  // What was sent before it is there with it, on hosts too that read out of order.
  bool arrived(std::size_t i) const {
    const double value = std::atomic_ref<double>(host_(i)).load(std::memory_order_acquire);
    return value == value;
  }
  double operator[](std::size_t i) const { return host_(i); }  // value of the last fetch, or of a send that has arrived

 private:
  Kokkos::View<double*, Kokkos::LayoutRight, typename Exec::memory_space> values_;
  Kokkos::View<double*, Kokkos::LayoutRight, HostSide<Exec>> host_;
};

}  // namespace sestina
