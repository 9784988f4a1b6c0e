#include "core/model/initialise.hpp"

#include <algorithm>
#include <type_traits>

#include "kernels/base/random.hpp"

namespace sestina {
namespace {

constexpr std::size_t chunk = 4096;  // elements that one thread fills at a time

// The shard of a tensor as a source of its elements: those of each row lie together in the tensor.
struct Normals {
  std::uint64_t stream = 0;
  double scale = 0;
  std::size_t first = 0, row = 0, tensor_row = 0;  // first element in the tensor; elements of a row of shard and tensor

  // Writes elements [begin, begin + n) of the shard, row by row.
  template <class A>
  void fill(std::size_t begin, std::size_t n, A* out) const {
    if (row == tensor_row) return normals(stream, first + begin, n, scale, out);
    while (n > 0) {
      const std::size_t r = begin / row, c = begin % row, count = std::min(n, row - c);
      normals(stream, first + r * tensor_row + c, count, scale, out);
      begin += count;
      out += count;
      n -= count;
    }
  }
};

template <class A>
void fill_on_host(const Normals& source, std::size_t begin, std::size_t n, A* out) {
  const std::size_t chunks = (n + chunk - 1) / chunk;
  if (chunks <= 1) return source.fill(begin, n, out);  // not worth waking the threads
  Kokkos::parallel_for("initialise", Kokkos::RangePolicy<Host, Kokkos::Schedule<Kokkos::Dynamic>>(0, chunks),
                       [=](std::size_t c) {
                         const std::size_t at = c * chunk;
                         source.fill(begin + at, std::min(chunk, n - at), out + at);
                       });
  Host().fence("initialise");
}

// Fills host memory in place, and device memory through a staging buffer of bounded size.
template <class Exec, class A>
void fill(const Exec& exec, const Normals& source, Vector<A, Exec> out) {
  if constexpr (Kokkos::SpaceAccessibility<Host, typename Exec::memory_space>::accessible) {
    fill_on_host(source, 0, out.size(), out.data());
  } else {
    constexpr std::size_t staged = std::size_t{1} << 24;
    Kokkos::View<A*, Kokkos::HostSpace> staging("sestina::staging", std::min(staged, out.size()));
    for (std::size_t first = 0; first < out.size(); first += staging.size()) {
      const std::size_t n = std::min(staging.size(), out.size() - first);
      fill_on_host(source, first, n, staging.data());
      Kokkos::deep_copy(exec, Vector<A, Exec>(out.data() + first, n), Vector<const A, Host>(staging.data(), n));
      exec.fence("initialise");
    }
  }
}

// Sets weights that are computed with but whose masters are not here, rounded through a buffer of some rows.
template <class Exec, class T>
void initialise_rounded(const Exec& exec, const Arena<Exec, T>& arena, std::size_t i, double range, std::uint64_t seed,
                        T* to) {
  using A = Acc<T>;
  const TensorHolding& tensor = arena.layout().tensors[i];
  const auto cols = static_cast<std::size_t>(tensor.local.cols);
  const std::int64_t step = std::max<std::int64_t>(1, (std::int64_t{1} << 22) / tensor.local.cols);
  const Kokkos::View<A*, typename Exec::memory_space> rows(
      "sestina::staging", static_cast<std::size_t>(std::min(step, tensor.local.rows)) * cols);
  for (std::int64_t begin = 0; begin < tensor.local.rows; begin += step) {
    const std::int64_t end = std::min(begin + step, tensor.local.rows);
    const std::size_t n = static_cast<std::size_t>(end - begin) * cols;
    initialise_rows<Exec, A>(exec, tensor, begin, end, range, seed, Vector<A, Exec>(rows.data(), n));
    convert<Exec, A, T>(exec, Vector<const A, Exec>(rows.data(), n),
                        Vector<T, Exec>(to + static_cast<std::size_t>(begin) * cols, n));
  }
  exec.fence("initialise");
}

}  // namespace

template <class Exec, class A>
void initialise_rows(const Exec& exec, const TensorHolding& tensor, std::int64_t begin, std::int64_t end, double range,
                     std::uint64_t seed, Vector<A, Exec> out) {
  const TensorSpec& whole = tensor.whole;
  if (whole.initial != Initial::normal) {
    Kokkos::deep_copy(exec, out, whole.initial == Initial::ones ? 1 : 0);
    exec.fence("initialise");
    return;
  }
  const double own = whole.initial_range > 0 ? whole.initial_range : range;
  const std::int64_t first = (tensor.row_begin + begin) * whole.cols + tensor.col_begin;
  SESTINA_REQUIRE(out.size() == static_cast<std::size_t>((end - begin) * tensor.local.cols), "{}: rows {} to {}",
                  whole.name, begin, end);
  fill<Exec, A>(exec,
                {stream_of(seed, whole.name), own, static_cast<std::size_t>(first),
                 static_cast<std::size_t>(tensor.local.cols), static_cast<std::size_t>(whole.cols)},
                out);
}

template <class Exec, class T>
void initialise(const Exec& exec, const Arena<Exec, T>& arena, const ModelConfig& config, std::uint64_t seed) {
  using A = Acc<T>;
  const double range = config.initializer_range;
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const TensorHolding& tensor = arena.layout().tensors[i];
    if (!tensor.local.has_master()) continue;
    const auto n = static_cast<std::size_t>(tensor.local.elements());
    const bool in_turn = arena.layout().weights_in_turn;  // what is not owned comes for each pass
    if (in_turn && tensor.homed) {
      if (tensor.owned_rows() > 0) initialise_rounded(exec, arena, i, range, seed, arena.homed_matrix(i));
      continue;
    }
    if (!in_turn && (arena.shared || tensor.local.is_vector())) {
      initialise_rows<Exec, A>(exec, tensor, 0, tensor.local.rows, range, seed,
                               Vector<A, Exec>(static_cast<A*>(arena.computed_with(i)), n));
      continue;
    }
    if (!in_turn && arena.master(i).size() < n) initialise_rounded(exec, arena, i, range, seed, arena.matrix(i));
    if (arena.master(i).size() > 0)
      initialise_rows<Exec, A>(exec, tensor, tensor.owned_begin, tensor.owned_end, range, seed, arena.master(i));
  }
  arena.round_weights(exec);
  exec.fence("initialise");
}

#define SESTINA_INITIALISE(Exec, T) \
  template void initialise<Exec, T>(const Exec&, const Arena<Exec, T>&, const ModelConfig&, std::uint64_t);
SESTINA_INSTANTIATE(SESTINA_INITIALISE)
#define SESTINA_INITIALISE_ROWS(Exec)                                                                               \
  template void initialise_rows<Exec, float>(const Exec&, const TensorHolding&, std::int64_t, std::int64_t, double, \
                                             std::uint64_t, Vector<float, Exec>);
SESTINA_INSTANTIATE_SPACES(SESTINA_INITIALISE_ROWS)

}  // namespace sestina
