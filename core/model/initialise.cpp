#include "core/model/initialise.hpp"

#include <algorithm>
#include <type_traits>

#include "core/random.hpp"

namespace sestina {
namespace {

constexpr std::size_t chunk = 4096;  // elements that one thread fills at a time

template <class A>
void fill_normal(std::uint64_t stream, double scale, std::size_t first, std::size_t n, A* out) {
  const std::size_t chunks = (n + chunk - 1) / chunk;
  if (chunks <= 1) return normals(stream, first, n, scale, out);  // not worth waking the threads
  Kokkos::parallel_for("initialise", Kokkos::RangePolicy<Host, Kokkos::Schedule<Kokkos::Dynamic>>(0, chunks),
                       [=](std::size_t c) {
                         const std::size_t begin = c * chunk;
                         normals(stream, first + begin, std::min(chunk, n - begin), scale, out + begin);
                       });
  Host().fence("initialise");
}

// Host memory is filled in place; device memory through a staging buffer of bounded size.
template <class Exec, class A>
void fill_normal(const Exec& exec, std::uint64_t stream, double scale, Vector<A, Exec> out) {
  if constexpr (Kokkos::SpaceAccessibility<Host, typename Exec::memory_space>::accessible) {
    fill_normal(stream, scale, 0, out.size(), out.data());
  } else {
    constexpr std::size_t staged = std::size_t{1} << 24;
    Kokkos::View<A*, Kokkos::HostSpace> staging("sestina::staging", std::min(staged, out.size()));
    for (std::size_t first = 0; first < out.size(); first += staging.size()) {
      const std::size_t n = std::min(staging.size(), out.size() - first);
      fill_normal(stream, scale, first, n, staging.data());
      Kokkos::deep_copy(exec, Vector<A, Exec>(out.data() + first, n), Vector<const A, Host>(staging.data(), n));
      exec.fence("initialise");
    }
  }
}

}  // namespace

template <class Exec, class T>
void initialise(const Exec& exec, const Arena<Exec, T>& arena, const ModelConfig& config, std::uint64_t seed) {
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const TensorSpec& spec = arena.specs()[i];
    if (!spec.is_vector())
      fill_normal<Exec, Acc<T>>(exec, stream_of(seed, spec.name), config.initializer_range, arena.master(i));
    else
      Kokkos::deep_copy(exec, arena.master(i), spec.name.ends_with("bias") ? 0 : 1);
  }
  arena.round_weights(exec);
  exec.fence("initialise");
}

#define SESTINA_INITIALISE(Exec, T) \
  template void initialise<Exec, T>(const Exec&, const Arena<Exec, T>&, const ModelConfig&, std::uint64_t);
SESTINA_INSTANTIATE(SESTINA_INITIALISE)

}  // namespace sestina
