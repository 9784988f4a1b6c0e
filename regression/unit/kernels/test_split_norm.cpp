// RMSNorm of columns that lie apart, joined here by hand, against the kernel that sees whole rows.
#include "../reference.hpp"
#include "kernels/model/norm.hpp"

namespace sestina {
namespace {

using namespace reference;

template <class C>
class SplitNorm : public testing::Test {
 protected:
  using Exec = typename C::Exec;
  using T = typename C::T;
  using A = Acc<T>;
  static constexpr double eps = 1e-5;
  Exec exec_;
};
TYPED_TEST_SUITE(SplitNorm, AllCases);

// Columns [begin, end) on one rank; share 0 where another one holds them too.
struct Holder {
  std::size_t begin, end;
  double share;
  double gradient;  // its part of the gradient
};

Array columns_of(const Array& a, const Holder& h, double factor = 1) {
  Array part(a.rows, h.end - h.begin);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = h.begin; j < h.end; ++j) part(i, j - h.begin) = factor * a(i, j);
  return part;
}

void add_columns(const Array& part, const Holder& h, Array& sum) {
  for (std::size_t i = 0; i < part.rows; ++i)
    for (std::size_t j = h.begin; j < h.end; ++j) sum(i, j) += part(i, j - h.begin);
}

TYPED_TEST(SplitNorm, IsTheNormOfWholeRowsBothWays) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = typename TestFixture::A;
  const std::size_t d = 37;
  // Columns [20, 37) are held twice: a quarter of their gradient here, three quarters there.
  const std::vector<Holder> holders = {{0, 20, 1, 1}, {20, 37, 1, 0.25}, {20, 37, 0, 0.75}};
  for (const std::size_t n : {0u, 1u, 70u}) {
    const Array x = rounded<T>(random_array(n, d, 1)), w = rounded<A>(random_array(1, d, 2, 1, 0.2)),
                dy = rounded<T>(random_array(n, d, 3));
    Field<T, Exec> in(x), y(n, d), grad(dy);
    Field<A, Exec> weight(w), inverse(1, n), dweight(Array(1, d));
    Workspace<Exec> workspace(bytes_of<NormScratch<Exec, T>, Exec>(n, d));
    rms_norm<Exec, T>(this->exec_, in.read(), weight.read_vector(), this->eps, y.matrix(), inverse.vector());

    Array squares(1, n), along(1, n), dx(n, d), dw(1, d);
    for (const Holder& h : holders) {
      const Field<T, Exec> own(columns_of(x, h), 2), slope(columns_of(dy, h, h.gradient), 1);
      const Field<A, Exec> own_weight(columns_of(w, h)), part(1, n), other(1, n);
      split_row_squares<Exec, T>(this->exec_, own.read(), static_cast<A>(h.share), part.vector());
      row_products<Exec, T>(this->exec_, slope.read(), own.read(), own_weight.read_vector(), other.vector());
      const Array s = part.get(), a = other.get();
      for (std::size_t r = 0; r < n; ++r) {
        squares(0, r) += s(0, r);
        along(0, r) += a(0, r);
      }
    }
    for (const Holder& h : holders) {
      const std::size_t width = h.end - h.begin;
      const Field<T, Exec> own(columns_of(x, h), 2), slope(columns_of(dy, h, h.gradient), 1), out(n, width, 3);
      const Field<A, Exec> own_weight(columns_of(w, h)), sums(squares), dots(along), own_inverse(1, n),
          own_dweight(Array(1, width));
      split_rms_norm<Exec, T>(this->exec_, own.read(), own_weight.read_vector(), sums.read_vector(), d, this->eps,
                              out.matrix(), own_inverse.vector());
      expect_close(own_inverse.get(), inverse.get(), 16 * epsilon<A>, "inverse");
      expect_close(out.get(), columns_of(y.get(), h), 2 * epsilon<T> + 16 * epsilon<A>, "y");
      split_rms_norm_backward<Exec, T>(this->exec_, slope.read(), own.read(), own_weight.read_vector(),
                                       own_inverse.read_vector(), dots.read_vector(), d, static_cast<A>(h.share),
                                       slope.matrix(), own_dweight.vector(), workspace);
      add_columns(slope.get(), h, dx);
      add_columns(own_dweight.get(), h, dw);
    }
    rms_norm_backward<Exec, T>(this->exec_, grad.read(), in.read(), weight.read_vector(), inverse.read_vector(), {},
                               grad.matrix(), dweight.vector(), workspace);
    // Each holder rounds its part once, and a part of dy by a factor of 3/4 once more.
    expect_close(dx, grad.get(), 8 * epsilon<T> + 16 * epsilon<A>, "dx");
    expect_close(dw, dweight.get(), 4 * epsilon<T> + 32 * epsilon<A>, "dweight");
  }
}

}  // namespace
}  // namespace sestina
