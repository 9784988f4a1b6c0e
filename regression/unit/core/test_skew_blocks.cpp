// Matrix optimizers on packed skew-symmetric matrices: against the step of the matrix, against plain rules in double,
// and started over.
#include <gtest/gtest.h>

#include <map>

#include "core/optimizer/matrix_set.hpp"
#include "core/optimizer/methods/muon.hpp"
#include "regression/unit/core/keys_by_name.hpp"
#include "regression/unit/core/matrix_rig.hpp"

namespace sestina {
namespace {

using namespace reference;

constexpr double rate = 0.0625;

Array unpacked(const std::vector<double>& theta, std::size_t b) {
  Array q(b, b);
  std::size_t next = 0;
  for (std::size_t i = 0; i < b; ++i)
    for (std::size_t j = i + 1; j < b; ++j, ++next) {
      q(i, j) = theta[next];
      q(j, i) = -theta[next];
    }
  return q;
}
std::vector<double> skew_part(const Array& x) {
  std::vector<double> theta;
  for (std::size_t i = 0; i < x.rows; ++i)
    for (std::size_t j = i + 1; j < x.rows; ++j) theta.push_back((x(i, j) - x(j, i)) / 2);
  return theta;
}
Array row_of(const std::vector<double>& values) {
  Array row(1, values.size());
  row.values = values;
  return row;
}
double length(const Array& x) { return std::sqrt(inner(x, x)); }

// Packed blocks (b, b), and gradients that depend on the update alone. Two streams: matrices are updated on Serial.
class Blocks {
 public:
  Blocks(const MatrixOptions& options, std::size_t b, std::int64_t reset_every = 0, std::size_t count = 3)
      : b_(b), packed_(b * (b - 1) / 2), theta_("theta", count, packed_), gradient_("g", count, packed_) {
    set_values(theta_, rounded<float>(random_array(count, packed_, 5, 0, 0.1)));
    std::vector<MatrixItem<Host>> items;
    for (std::size_t i = 0; i < count; ++i) {
      items.push_back({{"block_" + std::to_string(i),
                        Matrix<const float, Host>(gradient_.data() + i * packed_, 1, packed_),
                        Matrix<float, Host>(theta_.data() + i * packed_, 1, packed_),
                        {}},
                       {rate, 0},
                       static_cast<std::int64_t>(i),
                       true,
                       b,
                       reset_every});
      items.back().resets_with = 1;
    }
    MatrixSetOptions setting;
    setting.options = options;
    setting.deterministic = true;
    setting.threads = 2;
    set_ = make_matrix_set<Host>(Host(), items, setting);
    set_->follow_merges(&early_);
  }
  void merge_early(std::int64_t t) { early_[1] = t; }

  static Array gradients_at(std::int64_t t, std::size_t count, std::size_t packed) {
    return rounded<float>(random_array(count, packed, static_cast<unsigned>(100 + t), 0, 0.2));
  }
  void step(std::int64_t t) {
    set_values(gradient_, gradient(t));
    set_->step(t, 1, 1, 0, set_->size());
    Host().fence();
  }
  void withhold(std::int64_t t) { set_->withhold(t); }
  Array gradient(std::int64_t t) const { return gradients_at(t, theta_.extent(0), packed_); }
  Array theta() const { return values_of(theta_); }
  void set_theta(const Array& values) { set_values(theta_, values); }
  std::vector<double> block(const Array& all, std::size_t i) const {
    return {all.values.begin() + static_cast<std::ptrdiff_t>(i * packed_),
            all.values.begin() + static_cast<std::ptrdiff_t>((i + 1) * packed_)};
  }
  std::map<std::string, std::vector<std::byte>> state() {
    std::map<std::string, std::vector<std::byte>> all;
    for (const StateField& field : set_->state()) {
      const auto* data = static_cast<const std::byte*>(field.data);
      all[field.path] = {data, data + field.bytes()};
    }
    return all;
  }

 private:
  std::size_t b_, packed_;
  Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> theta_, gradient_;
  LayerMerges early_ = {0, 0};
  std::unique_ptr<MatrixSet<Host>> set_;
};

MatrixOptions options_of(const std::string& kind, std::int64_t every = 3) {
  MatrixOptions options = default_options(*find_matrix_kind(kind));
  options.refresh_every = every;
  return options;
}

const std::vector<std::string> skew_kinds = {"muon",       "shampoo", "soap",          "soap-muon",
                                             "kl-shampoo", "kl-soap", "basis-rotation"};

TEST(SkewBlocks, AreKnownOfTheseKinds) {
  for (const MatrixKind& kind : matrix_kinds()) {
    const bool listed = std::find(skew_kinds.begin(), skew_kinds.end(), kind.name) != skew_kinds.end();
    EXPECT_EQ(kind.keeps_skew != nullptr && kind.keeps_skew(default_options(kind)), listed) << kind.name;
  }
  MatrixOptions soap = options_of("soap");
  soap.set("sides", "smaller");
  EXPECT_FALSE(find_matrix_kind("soap")->keeps_skew(soap));
  for (const char* kind : {"muon", "soap-muon"}) {
    MatrixOptions rows_alone = options_of(kind);
    rows_alone.set("row_equilibration", 1);
    EXPECT_FALSE(find_matrix_kind(kind)->keeps_skew(rows_alone)) << kind;
  }
}

// The same bits as of the matrix by itself, which test_matrix_kinds.cpp and others know: unpacked, updated, packed.
TEST(SkewBlocks, MoveByTheSkewPartOfTheStepOfTheMatrix) {
  constexpr std::size_t b = 6;
  for (const std::string& kind : skew_kinds) {
    Blocks blocks(options_of(kind), b);
    MatrixRig<Serial> second(kind, b, b);
    std::vector<double> want = blocks.block(blocks.theta(), 1);
    for (std::int64_t t = 1; t <= 7; ++t) {
      second.set_master(unpacked(want, b));
      const Array moved = second.step(unpacked(blocks.block(blocks.gradient(t), 1), b), rate);
      want = rounded<float>(row_of(skew_part(moved))).values;
      blocks.step(t);
      EXPECT_EQ(blocks.block(blocks.theta(), 1), want) << kind << ", update " << t;
    }
  }
}

// What packing leaves out of an update of Muon is rounding: of products of b terms, in a few iterations, of which each
// enlarges what came before by its first coefficient at most (8.3 in the default set).
TEST(SkewBlocks, DirectionsOfMuonAreSkew) {
  constexpr std::size_t b = 8;
  MatrixRig<Serial> rig("muon", b, b);
  for (unsigned t = 1; t <= 4; ++t) {
    rig.set_master(Array(b, b));
    const Array moved = rig.step(unpacked(skew_part(gradient_at(b, b, t)), b), rate);
    EXPECT_LE(length(blend(1, moved, 1, transposed(moved))), 1e3 * b * epsilon<float> * length(moved))
        << "update " << t;
    EXPECT_GT(length(moved), rate);
  }
}

// Muon in double: unpack, momentum, Newton-Schulz, pack.
TEST(SkewBlocks, OfMuonFollowItsRule) {
  constexpr std::size_t b = 7;  // odd: one singular value is zero
  const MatrixOptions options = options_of("muon");
  const double mu = number_of(options, "momentum"), scale = 0.2 * std::sqrt(static_cast<double>(b));
  Blocks blocks(options, b);
  std::vector<double> theta = blocks.block(blocks.theta(), 2);
  Array momentum(b, b);
  for (std::int64_t t = 1; t <= 5; ++t) {
    const Array g = unpacked(blocks.block(blocks.gradient(t), 2), b);
    momentum = blend(mu, momentum, 1 - mu, g);
    Array x = blend(mu, momentum, 1 - mu, g);
    const double size = length(x);
    for (double& value : x.values) value /= size;
    for (const NewtonSchulzStep& s :
         newton_schulz_steps(word_of(options, "ns_set"), static_cast<std::int64_t>(number_of(options, "ns_steps")))) {
      const Array gram = product(x, transposed(x));
      const Array polynomial = blend(s.b, gram, s.c, product(gram, gram));
      x = blend(s.a, x, 1, product(polynomial, x));
    }
    const std::vector<double> direction = skew_part(x);
    for (std::size_t i = 0; i < theta.size(); ++i) theta[i] -= rate * scale * direction[i];
    blocks.step(t);
    const Array got = row_of(blocks.block(blocks.theta(), 2)), want = row_of(theta);
    // Rounding as above, of updates whose elements are below rate * scale.
    EXPECT_LE(largest_difference(got, want), 1e3 * b * epsilon<float> * rate * scale * static_cast<double>(t));
  }
}

// Of a block (2, 2), g J with one number g, every rotation into singular vectors is one number up to its sign: SOAP is
// Adam, after a first update that it leaves out.
TEST(SkewBlocks, OfSoapWithOneNumberFollowAdam) {
  const MatrixOptions options = options_of("soap", 2);
  const double beta1 = number_of(options, "beta1"), beta2 = number_of(options, "beta2"),
               eps = number_of(options, "eps");
  Blocks blocks(options, 2);
  double theta = blocks.theta()(0, 0), m = 0, v = 0;
  for (std::int64_t t = 1; t <= 6; ++t) {
    blocks.step(t);
    if (t == 1) continue;
    const double g = blocks.gradient(t)(0, 0), count = static_cast<double>(t - 1);
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    theta -= rate * std::sqrt(1 - std::pow(beta2, count)) / (1 - std::pow(beta1, count)) * m / (std::sqrt(v) + eps);
    EXPECT_NEAR(blocks.theta()(0, 0), theta, 100 * epsilon<float> * static_cast<double>(t)) << t;
  }
}

// After the updates of an interval everything is as in an optimizer that was made there, bit for bit.
TEST(SkewBlocks, BeginAnewWithAllTheirState) {
  constexpr std::size_t b = 6;
  for (const std::string& kind : skew_kinds) {
    Blocks run(options_of(kind, 2), b, 5), kept(options_of(kind, 2), b), fresh(options_of(kind, 2), b);
    for (std::int64_t t = 1; t <= 5; ++t) {
      run.step(t);
      kept.step(t);
    }
    EXPECT_TRUE(run.state() == kept.state()) << kind;
    fresh.set_theta(run.theta());
    for (std::int64_t t = 6; t <= 9; ++t) {
      run.step(t);
      kept.step(t);
      fresh.step(t);
      EXPECT_EQ(run.theta().values, fresh.theta().values) << kind << ", update " << t;
      EXPECT_TRUE(run.state() == fresh.state()) << kind << ", update " << t;
    }
    EXPECT_FALSE(run.state() == kept.state()) << kind;
  }
}

// With refreshes on workers, some of which are under way when their state starts over, after a merge
// that was due or came early: nothing of them is seen later.
TEST(SkewBlocks, BeginAnewWhileRefreshesAreUnderWay) {
  constexpr std::size_t b = 6;
  for (const std::string& kind : skew_kinds) {
    if (kind == "muon") continue;
    MatrixOptions options = options_of(kind, 2);
    options.refresh_staleness = 2;
    for (const bool early : {false, true}) {
      Blocks run(options, b, early ? 100 : 5), fresh(options, b);
      for (std::int64_t t = 1; t <= 5; ++t) run.step(t);
      if (early) run.merge_early(5);
      std::size_t under_way = 0;
      for (const auto& [name, bytes] : run.state())
        if (name.ends_with("/dispatched"))
          under_way += std::any_of(bytes.begin(), bytes.end(), [](std::byte x) { return x != std::byte{0}; }) ? 1 : 0;
      EXPECT_GT(under_way, 0U) << kind << ": the test says nothing";
      fresh.set_theta(run.theta());
      for (std::int64_t t = 6; t <= 10; ++t) {
        run.step(t);
        fresh.step(t);
        EXPECT_EQ(run.theta().values, fresh.theta().values) << kind << ", update " << t;
        EXPECT_TRUE(run.state() == fresh.state()) << kind << ", update " << t;
      }
    }
  }
}

TEST(SkewBlocks, BeginAnewWhereTheUpdateIsWithheld) {
  for (const std::string& kind : skew_kinds) {
    Blocks run(options_of(kind), 6, 3), fresh(options_of(kind), 6);
    for (std::int64_t t = 1; t <= 3; ++t) run.step(t);
    EXPECT_FALSE(run.state() == fresh.state());
    run.withhold(3);
    EXPECT_FALSE(run.state() == fresh.state()) << "update 3 begins nothing";
    run.withhold(4);
    EXPECT_TRUE(run.state() == fresh.state()) << kind;
  }
}

}  // namespace
}  // namespace sestina
