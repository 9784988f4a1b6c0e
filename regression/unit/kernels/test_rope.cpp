// Rotary embedding against the complex product it stands for.
#include <complex>

#include "../reference.hpp"
#include "kernels/model/activation.hpp"

namespace sestina {
namespace {

using namespace reference;

template <class C>
class Rope : public testing::Test {
 protected:
  using Exec = typename C::Exec;
  using T = typename C::T;
  Exec exec_;
};
TYPED_TEST_SUITE(Rope, AllCases);

TYPED_TEST(Rope, TurnsPairsByTheirAngleAndBack) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  struct Size {
    std::size_t batch, sequence, heads, half;
  };
  for (const Size s : {Size{2, 7, 3, 16}, Size{1, 5, 1, 4}, Size{3, 2, 2, 33}, Size{0, 4, 2, 8}}) {
    const std::size_t n = s.batch * s.sequence;
    const Array x = rounded<T>(random_array(n, s.heads * 2 * s.half, 1));
    const Array angle = random_array(s.sequence + 2, s.half, 2, 0, 3);
    Array cosine = angle, sine = angle, want = x;
    for (double& value : cosine.values) value = std::cos(value);
    for (double& value : sine.values) value = std::sin(value);
    cosine = rounded<float>(cosine), sine = rounded<float>(sine);
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t head = 0; head < s.heads; ++head) {
        for (std::size_t i = 0; i < s.half; ++i) {
          const std::size_t low = head * 2 * s.half + i, high = low + s.half, at = r % s.sequence;
          const auto turned = std::complex(x(r, low), x(r, high)) * std::complex(cosine(at, i), sine(at, i));
          want(r, low) = turned.real(), want(r, high) = turned.imag();
        }
      }
    }
    Field<T, Exec> field(x, 3);
    Field<float, Exec> c(cosine, 1), sn(sine, 2);
    rope<Exec, T>(this->exec_, c.read(), sn.read(), static_cast<int>(s.sequence), 1, field.matrix());
    // Two products and a sum, then one rounding to T.
    expect_close(field.get(), want, epsilon<T> + 2 * epsilon<Acc<T>>, "rope");
    rope<Exec, T>(this->exec_, c.read(), sn.read(), static_cast<int>(s.sequence), -1, field.matrix());
    // cosine^2 + sine^2 is 1 only to float's rounding.
    expect_close(field.get(), x, 3 * epsilon<T> + 4 * epsilon<float>, "rope and back");
  }
}

}  // namespace
}  // namespace sestina
