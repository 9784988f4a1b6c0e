// Execution spaces and view aliases. Everything in kernels/ is a free function whose first argument is an
// instance of one of these spaces; results follow inputs; workspace is passed in; nothing fences but what says so.
//
// Shape letters: N rows (tokens = B*T), B batch, T sequence, D hidden, F intermediate, V vocabulary,
// H query heads, K key/value heads, h head dim.
#pragma once
#include <Kokkos_Core.hpp>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace sestina {

// bfloat16 storage, 2 bytes on every space (Kokkos' own falls back to 4 bytes in host builds).
// Bit-compatible with __nv_bfloat16 and oneDNN's bf16, so pointers may be reinterpreted at vendor calls.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  // Rounds to nearest, ties to even; NaN stays NaN. Branch-free, so that loops over it vectorise.
  KOKKOS_INLINE_FUNCTION explicit bf16(float value) {
    const std::uint32_t u = Kokkos::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = (u >> 16) | 0x40u;
    bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
  KOKKOS_INLINE_FUNCTION explicit bf16(double value) : bf16(static_cast<float>(value)) {}
  KOKKOS_INLINE_FUNCTION operator float() const {
    return Kokkos::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};
static_assert(sizeof(bf16) == 2);

using Host = Kokkos::DefaultHostExecutionSpace;  // OpenMP
using Device = Kokkos::DefaultExecutionSpace;    // CUDA (HIP, SYCL), or Host in a CPU build
using Serial = Kokkos::Serial;                   // one thread: many matrices at the same time, and refresh workers

// Host loops run long per thread and vectorise inside; device loops give each thread one element.
template <class Exec>
inline constexpr bool is_host = std::is_same_v<typename Exec::memory_space, Kokkos::HostSpace>;

// Returns the number of threads of an instance. A Kokkos with the deprecated code of its fourth version has a static
// concurrency(instance); its exec.concurrency() asks the default instance, whatever exec is.
template <class Exec>
int threads_of(const Exec& exec) {
  if constexpr (requires { Exec::concurrency(exec); })
    return Exec::concurrency(exec);
  else
    return exec.concurrency();
}

// Row-major, non-owning views. Rows may be padded: a column range of a wider matrix is a Matrix too (stride(0) >
// extent(1)).
template <class T, class Exec>
using Matrix =
    Kokkos::View<T**, Kokkos::LayoutRight, typename Exec::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class T, class Exec>
using Vector =
    Kokkos::View<T*, Kokkos::LayoutRight, typename Exec::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

// Returns a policy whose functor goes with the launch up to the 4 kB that fit there. Kokkos sends one of more than 512
// bytes through a buffer otherwise, and the host waits until the last such functor has arrived.
template <class Policy>
auto with_functor(const Policy& policy) {
  return Kokkos::Experimental::require(policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight);
}

// The type in which a stored type T is summed, and in which gradients, norm weights and master weights are kept.
template <class T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<bf16> {
  using type = float;
};
template <class T>
using Acc = typename AccumulatorOf<std::remove_const_t<T>>::type;

// The queue of a space.

// Returns the CUDA stream of a space; null: the space has no queue, and work is done when a call returns.
template <class Exec>
void* queue_of(const Exec& exec) {
  if constexpr (requires { exec.cuda_stream(); })
    return exec.cuda_stream();
  else
    return nullptr;
}

}  // namespace sestina

// SESTINA_INSTANTIATE_LANES serves what matrix optimizers are made of, which run on Serial too. The others instantiate
// a macro M(Exec, T) explicitly for every space of this build (M(Exec): SESTINA_INSTANTIATE_SPACES), and every type
// (SESTINA_INSTANTIATE) or the two a run computes in (SESTINA_INSTANTIATE_COMPUTE; double serves finite differences in
// tests).
#define SESTINA_FOR_COMPUTE(M, Exec) M(Exec, float) M(Exec, ::sestina::bf16)
#define SESTINA_FOR_TYPES(M, Exec) SESTINA_FOR_COMPUTE(M, Exec) M(Exec, double)
#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP) || defined(KOKKOS_ENABLE_SYCL)
#define SESTINA_INSTANTIATE_SPACES(M) M(::sestina::Host) M(::sestina::Device)
#define SESTINA_INSTANTIATE_LANES(M) M(::sestina::Serial) M(::sestina::Host) M(::sestina::Device)
#define SESTINA_INSTANTIATE(M) SESTINA_FOR_TYPES(M, ::sestina::Host) SESTINA_FOR_TYPES(M, ::sestina::Device)
#define SESTINA_INSTANTIATE_COMPUTE(M) SESTINA_FOR_COMPUTE(M, ::sestina::Host) SESTINA_FOR_COMPUTE(M, ::sestina::Device)
#else
#define SESTINA_INSTANTIATE_SPACES(M) M(::sestina::Host)
#define SESTINA_INSTANTIATE_LANES(M) M(::sestina::Serial) M(::sestina::Host)
#define SESTINA_INSTANTIATE(M) SESTINA_FOR_TYPES(M, ::sestina::Host)
#define SESTINA_INSTANTIATE_COMPUTE(M) SESTINA_FOR_COMPUTE(M, ::sestina::Host)
#endif
