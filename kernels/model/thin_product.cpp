#include "kernels/model/thin_product.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/model/attention_product.hpp"

namespace sestina {
namespace {

using attention_blocked::lanes;
template <class A>
using Lanes = typename attention_blocked::VectorOf<A>::type;

constexpr int block = 4;  // rows of W that are multiplied together

// Loads n elements into a vector, widened, with zeros after them. The type of `from` is deduced, since nvcc would else
// look for vectors of bf16 before it takes the overload below.
template <class A>
auto load(const A* from, int n = lanes<A>) {
  Lanes<A> v{};
  std::memcpy(&v, from, n == lanes<A> ? sizeof v : static_cast<std::size_t>(n) * sizeof(A));
  return v;
}
inline Lanes<float> load(const bf16* from, int n = lanes<float>) {
  typedef std::uint16_t Narrow __attribute__((vector_size(lanes<float> * 2)));
  typedef std::uint32_t Wide __attribute__((vector_size(lanes<float> * 4)));
  Narrow bits{};
  std::memcpy(&bits, from, n == lanes<float> ? sizeof bits : static_cast<std::size_t>(n) * 2);
  return (Lanes<float>)(__builtin_convertvector(bits, Wide) << 16);
}

// Adds up the lanes of the sums of one row. It is one function, never inlined and without a number of rows for which a
// compiler could make another of it, so that every row is added in the same order.
template <class A>
[[gnu::noinline]] void add_lanes(const Lanes<A>* sums, A* totals) {
  for (int i = 0; i < block; ++i) {
    A total = 0;
    for (int l = 0; l < lanes<A>; ++l) total += sums[i][l];
    totals[i] = total;
  }
}

// Multiplies rows of x by one block of rows of W.
template <int Rows, class A, class T>
void dots(int k, const A* x, std::int64_t x_stride, const T* const* w, std::int64_t ahead, A* totals) {
  Lanes<A> sum[Rows][block] = {};
  int p = 0;
  for (; p + lanes<A> <= k; p += lanes<A>) {
    Lanes<A> right[block];
    for (int j = 0; j < block; ++j) {
      right[j] = load(w[j] + p);
      __builtin_prefetch(w[j] + p + ahead);
    }
    for (int i = 0; i < Rows; ++i) {
      const Lanes<A> left = load(x + i * x_stride + p);
      for (int j = 0; j < block; ++j) sum[i][j] += left * right[j];
    }
  }
  if (p < k) {
    Lanes<A> right[block];
    for (int j = 0; j < block; ++j) right[j] = load(w[j] + p, k - p);
    for (int i = 0; i < Rows; ++i) {
      const Lanes<A> left = load(x + i * x_stride + p, k - p);
      for (int j = 0; j < block; ++j) sum[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < Rows; ++i) add_lanes(sum[i], totals + i * block);
}

template <class T>
struct ThinProduct {
  using A = Acc<T>;
  int k;
  std::int64_t m, n;
  const A* x;
  std::int64_t x_stride;
  Matrix<const T, Host> w;
  Matrix<T, Host> y;

  template <int Rows>
  void rows(std::int64_t row, std::int64_t col, const T* const* from) const {
    A totals[Rows * block];
    dots<Rows>(k, x + row * x_stride, x_stride, from, block * static_cast<std::int64_t>(w.stride(0)), totals);
    for (int i = 0; i < Rows; ++i)
      for (int j = 0; j < block && col + j < n; ++j) y(row + i, col + j) = T(totals[i * block + j]);
  }
  void operator()(std::int64_t index) const {
    const std::int64_t col = index * block;
    const T* from[block];
    for (int j = 0; j < block; ++j)
      from[j] = w.data() + std::min(col + j, n - 1) * static_cast<std::int64_t>(w.stride(0));
    std::int64_t row = 0;
    for (; row + 4 <= m; row += 4) rows<4>(row, col, from);
    if (row + 2 <= m) rows<2>(row, col, from), row += 2;
    if (row < m) rows<1>(row, col, from);
  }
};

}  // namespace

template <class T>
void thin_product(const Host& exec, Matrix<const T, Host> x, Matrix<const T, Host> w, Matrix<T, Host> y,
                  Workspace<Host>& workspace) {
  using A = Acc<T>;
  const std::size_t m = x.extent(0), k = x.extent(1), n = w.extent(0);
  SESTINA_REQUIRE(w.extent(1) == k && y.extent(0) == m && y.extent(1) == n,
                  "thin product of x ({}, {}) and W ({}, {}) into ({}, {})", m, k, n, w.extent(1), y.extent(0),
                  y.extent(1));
  if (m == 0 || n == 0) return;
  auto frame = workspace.frame();
  ThinProduct<T> product{
      static_cast<int>(k), static_cast<std::int64_t>(m), static_cast<std::int64_t>(n), nullptr, 0, w, y};
  if constexpr (std::is_same_v<T, A>) {
    product.x = x.data();
    product.x_stride = static_cast<std::int64_t>(x.stride(0));
  } else {
    const Matrix<A, Host> wide = ThinProductScratch<T>(workspace, m, k).wide;
    exec.fence("thin product");  // the calling thread widens
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < k; ++j) wide(i, j) = A(x(i, j));
    product.x = wide.data();
    product.x_stride = static_cast<std::int64_t>(k);
  }
  const std::int64_t blocks = (product.n + block - 1) / block;
  Kokkos::parallel_for("thin_product", Kokkos::RangePolicy<Host, Kokkos::IndexType<std::int64_t>>(exec, 0, blocks),
                       product);
}

#define SESTINA_THIN_PRODUCT(T)                                                                             \
  template void thin_product<T>(const Host&, Matrix<const T, Host>, Matrix<const T, Host>, Matrix<T, Host>, \
                                Workspace<Host>&);
SESTINA_THIN_PRODUCT(float)
SESTINA_THIN_PRODUCT(bf16)
SESTINA_THIN_PRODUCT(double)

}  // namespace sestina
