// Products of matrices of one shape that lie anywhere, against plain loops in double.
#include <string>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/blas/gemm.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina::reference {
namespace {

template <class Space>
class MatrixLists : public testing::Test {};
TYPED_TEST_SUITE(MatrixLists, StreamSpaces, SpaceNames);

// C_i = alpha op(A_i) op(B_i) + beta C_i of matrices in memory of their own.
template <class Space>
struct ListedProducts {
  static constexpr std::size_t count = 3, m = 7, n = 5, k = 11;
  ListedProducts(bool turned_a, bool turned_b)
      : op_a(turned_a ? Op::transpose : Op::none), op_b(turned_b ? Op::transpose : Op::none) {
    for (unsigned i = 0; i < count; ++i) {
      a.emplace_back(rounded<float>(turned_a ? random_array(k, m, i) : random_array(m, k, i)));
      b.emplace_back(rounded<float>(turned_b ? random_array(n, k, 10 + i) : random_array(k, n, 10 + i)));
      c.emplace_back(rounded<float>(random_array(m, n, 20 + i)));
      squares.emplace_back(rounded<float>(random_array(m, m, 30 + i)));
    }
  }
  std::size_t list(MatrixTable<float, Space>& table, const std::vector<Field<float, Space>>& of) const {
    std::vector<float*> places;
    for (const auto& x : of) places.push_back(x.matrix().data());
    return table.add(places, of[0].matrix().extent(0), of[0].matrix().extent(1));
  }
  Array plain(Op first, const Array& x, Op second, const Array& y, double alpha, double beta, Array old) const {
    for (std::size_t i = 0; i < old.rows; ++i)
      for (std::size_t j = 0; j < old.cols; ++j) {
        double sum = 0;
        for (std::size_t p = 0; p < k; ++p)
          sum += (first == Op::none ? x(i, p) : x(p, i)) * (second == Op::none ? y(p, j) : y(j, p));
        old(i, j) = alpha * sum + beta * old(i, j);
      }
    return old;
  }
  Op op_a, op_b;
  std::vector<Field<float, Space>> a, b, c, squares;
};

TYPED_TEST(MatrixLists, MultiplyMatricesThatLieAnywhere) {
  for (const bool turned_a : {false, true})
    for (const bool turned_b : {false, true}) {
      const ListedProducts<TypeParam> run(turned_a, turned_b);
      MatrixTable<float, TypeParam> table;
      const std::size_t a = run.list(table, run.a), b = run.list(table, run.b), c = run.list(table, run.c),
                        squares = run.list(table, run.squares);
      table.finish("operands");
      std::vector<Array> products, symmetric;
      const Op other = turned_a ? Op::none : Op::transpose;
      for (std::size_t i = 0; i < run.count; ++i) {
        const Array x = run.a[i].get();
        products.push_back(run.plain(run.op_a, x, run.op_b, run.b[i].get(), 0.5, 0.75, run.c[i].get()));
        symmetric.push_back(run.plain(run.op_a, x, other, x, 0.5, 0, run.squares[i].get()));
      }
      Gemm<TypeParam> gemm{TypeParam()};
      gemm.template batch<float, float>(run.op_a, run.op_b, 0.5, table[a].read(), table[b].read(), 0.75, table[c]);
      gemm.template symmetric<float, float>(run.op_a, 0.5, table[a].read(), 0, table[squares]);
      for (std::size_t i = 0; i < run.count; ++i) {
        expect_close(run.c[i].get(), products[i], run.k * epsilon<float>, "product");
        expect_close(run.squares[i].get(), symmetric[i], run.k * epsilon<float>, "symmetric product");
      }
    }
}

TYPED_TEST(MatrixLists, RefuseListsOfTwoLengths) {
  const ListedProducts<TypeParam> run(false, false);
  MatrixTable<float, TypeParam> table;
  const std::size_t a = run.list(table, run.a), b = run.list(table, run.b);
  const std::size_t c = table.add({run.c[0].matrix().data()}, run.m, run.n);
  table.finish("operands");
  Gemm<TypeParam> gemm{TypeParam()};
  EXPECT_THROW(
      (gemm.template batch<float, float>(Op::none, Op::none, 1, table[a].read(), table[b].read(), 0, table[c])), Error);
}

}  // namespace
}  // namespace sestina::reference
