// Products of few rows against their definition; a row's bits are its own.
#include "../reference.hpp"
#include "kernels/model/thin_product.hpp"

namespace sestina {
namespace {

using namespace reference;

template <class T>
class ThinProduct : public testing::Test {};
using StoredTypes = testing::Types<float, bf16, double>;
TYPED_TEST_SUITE(ThinProduct, StoredTypes);

TYPED_TEST(ThinProduct, IsTheSumOfItsTerms) {
  using T = TypeParam;
  struct Size {
    std::size_t m, k, n;
  };
  for (const Size s : {Size{1, 1, 1}, Size{1, 64, 8}, Size{3, 37, 5}, Size{7, 200, 18}, Size{4, 16, 3}, Size{2, 0, 3},
                       Size{0, 8, 4}}) {
    const Array x = rounded<T>(random_array(s.m, s.k, 1)), w = rounded<T>(random_array(s.n, s.k, 2));
    Array want(s.m, s.n);
    for (std::size_t i = 0; i < s.m; ++i)
      for (std::size_t j = 0; j < s.n; ++j)
        for (std::size_t p = 0; p < s.k; ++p) want(i, j) += x(i, p) * w(j, p);
    Field<T, Host> fx(x, 3), fw(w, 5), fy(s.m, s.n, 2);
    Workspace<Host> workspace(bytes_of<ThinProductScratch<T>, Host>(s.m, s.k));
    thin_product<T>(Host{}, fx.read(), fw.read(), fy.matrix(), workspace);
    EXPECT_EQ(workspace.peak(), workspace.capacity());
    // One rounding to T, and sums of k terms of size 1 in Acc<T>.
    expect_close(fy.get(), want, epsilon<T> + 4 * std::sqrt(static_cast<double>(s.k)) * epsilon<Acc<T>>,
                 "thin product");
  }
}

TYPED_TEST(ThinProduct, RowsDoNotDependOnOneAnother) {
  using T = TypeParam;
  const Array x = rounded<T>(random_array(7, 203, 1)), w = rounded<T>(random_array(30, 203, 2));
  Field<T, Host> fx(x), fw(w), all(7, 30), one(1, 30);
  Workspace<Host> workspace(bytes_of<ThinProductScratch<T>, Host>(7, 203));
  thin_product<T>(Host{}, fx.read(), fw.read(), all.matrix(), workspace);
  for (std::size_t i = 0; i < 7; ++i) {
    const Matrix<const T, Host> row = Kokkos::subview(fx.read(), std::make_pair(i, i + 1), Kokkos::ALL);
    thin_product<T>(Host{}, row, fw.read(), one.matrix(), workspace);
    for (std::size_t j = 0; j < 30; ++j) EXPECT_EQ(one.get()(0, j), all.get()(i, j)) << i << " " << j;
  }
}

}  // namespace
}  // namespace sestina
