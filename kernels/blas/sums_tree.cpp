#include "kernels/blas/sums.hpp"

#include "kernels/base/error.hpp"

namespace sestina {

namespace {

constexpr int tree_height = 18;  // levels of a tree over up to 2^17 ranks

struct Sum {
  template <class A>
  KOKKOS_INLINE_FUNCTION static A of(A left, A right) {
    return left + right;
  }
};
struct Largest {
  template <class A>
  KOKKOS_INLINE_FUNCTION static A of(A left, A right) {
    return left < right || right != right ? right : left;  // a NaN wins
  }
};

// Elements that one thread reduces at a time: on the host enough for the loops to vectorise, on a device one.
template <class Exec>
inline constexpr int tree_width = is_host<Exec> ? 256 : 1;

// level[l] holds the sum of an aligned group of 2^l ranks while the right half of its pair is missing.
template <class Op, int width, class T, class Part>
KOKKOS_INLINE_FUNCTION void reduce_piece(int ranks, int n, const Part& part, T* out) {
  using A = Acc<T>;
  A level[tree_height][width], x[width];
  for (int r = 0; r < ranks; ++r) {
    const T* from = part(r);
    for (int i = 0; i < n; ++i) x[i] = A(from[i]);
    const bool last = r + 1 == ranks;
    int l = 0;
    for (; (r >> l) & 1 || (last && (r >> l) != 0); ++l)
      if ((r >> l) & 1)
        for (int i = 0; i < n; ++i) x[i] = Op::of(level[l][i], x[i]);
    if (last) break;
    for (int i = 0; i < n; ++i) level[l][i] = x[i];
  }
  for (int i = 0; i < n; ++i) out[i] = static_cast<T>(x[i]);
}

template <class Op, class Exec, class T>
void reduce_over_ranks(const Exec& exec, int rank, int ranks, const Vector<const T, Exec>& own,
                       const Vector<const T, Exec>& others, const Vector<T, Exec>& out) {
  const std::size_t n = own.extent(0);
  SESTINA_REQUIRE(out.extent(0) == n && others.extent(0) >= n * static_cast<std::size_t>(ranks - 1) && ranks <= 1 << 17,
                  "{} elements of {} ranks", n, ranks);
  if (n == 0) return;
  constexpr int width = tree_width<Exec>;
  const std::size_t pieces = (n + width - 1) / width;
  Kokkos::parallel_for(
      "tree_sum", Kokkos::RangePolicy<Exec>(exec, 0, pieces), KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t begin = piece * width;
        const int count = static_cast<int>(Kokkos::min(static_cast<std::size_t>(width), n - begin));
        const auto part = [&](int r) {
          return r == rank ? &own(begin) : &others(static_cast<std::size_t>(r < rank ? r : r - 1) * n + begin);
        };
        reduce_piece<Op, width>(ranks, count, part, &out(begin));
      });
}

}  // namespace

template <class Exec, class T>
void tree_sum(const Exec& exec, int rank, int ranks, Vector<const T, Exec> own, Vector<const T, Exec> others,
              Vector<T, Exec> out) {
  reduce_over_ranks<Sum, Exec, T>(exec, rank, ranks, own, others, out);
}

template <class Exec, class T>
void tree_max(const Exec& exec, int rank, int ranks, Vector<const T, Exec> own, Vector<const T, Exec> others,
              Vector<T, Exec> out) {
  reduce_over_ranks<Largest, Exec, T>(exec, rank, ranks, own, others, out);
}

template <class Exec, class A>
void add_to(const Exec& exec, Vector<const A, Exec> x, Vector<A, Exec> y) {
  SESTINA_REQUIRE(x.extent(0) == y.extent(0), "{} elements to {}", x.extent(0), y.extent(0));
  constexpr std::size_t step = is_host<Exec> ? 4096 : 1;
  const std::size_t n = x.extent(0);
  Kokkos::parallel_for(
      "add_to", Kokkos::RangePolicy<Exec>(exec, 0, (n + step - 1) / step), KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t end = Kokkos::min(n, (piece + 1) * step);
        const A* from = x.data();
        A* to = y.data();
        for (std::size_t i = piece * step; i < end; ++i) to[i] += from[i];
      });
}

template <class Exec, class A>
void add_waiting(const Exec& exec, Vector<const A, Exec> own, const WaitingSums<A>& waiting, Vector<A, Exec> out) {
  SESTINA_REQUIRE(own.extent(0) == out.extent(0), "{} elements to {}", own.extent(0), out.extent(0));
  const std::size_t n = own.extent(0);
  if (n == 0 || (waiting.count == 0 && own.data() == out.data())) return;
  constexpr std::size_t step = is_host<Exec> ? 1024 : 1;
  Kokkos::parallel_for(
      "add_waiting", Kokkos::RangePolicy<Exec>(exec, 0, (n + step - 1) / step), KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t begin = piece * step, count = Kokkos::min(n - begin, step);
        const A* from = own.data() + begin;
        A* to = out.data() + begin;
        A x[step];
        for (std::size_t i = 0; i < count; ++i) x[i] = from[i];
        for (int level = 0; level < waiting.count; ++level) {
          const A* sum = waiting.data[level] + begin;
          for (std::size_t i = 0; i < count; ++i) x[i] += sum[i];
        }
        for (std::size_t i = 0; i < count; ++i) to[i] = x[i];
      });
}

#define SESTINA_TREE_SUM(Exec, T)                                                                      \
  template void tree_sum<Exec, T>(const Exec&, int, int, Vector<const T, Exec>, Vector<const T, Exec>, \
                                  Vector<T, Exec>);                                                    \
  template void tree_max<Exec, T>(const Exec&, int, int, Vector<const T, Exec>, Vector<const T, Exec>, Vector<T, Exec>);
SESTINA_INSTANTIATE(SESTINA_TREE_SUM)
#define SESTINA_ADD_TO(Exec)                                                                                   \
  template void add_waiting<Exec, float>(const Exec&, Vector<const float, Exec>, const WaitingSums<float>&,    \
                                         Vector<float, Exec>);                                                 \
  template void add_waiting<Exec, double>(const Exec&, Vector<const double, Exec>, const WaitingSums<double>&, \
                                          Vector<double, Exec>);                                               \
  template void add_to<Exec, float>(const Exec&, Vector<const float, Exec>, Vector<float, Exec>);              \
  template void add_to<Exec, double>(const Exec&, Vector<const double, Exec>, Vector<double, Exec>);
SESTINA_INSTANTIATE_SPACES(SESTINA_ADD_TO)

}  // namespace sestina
