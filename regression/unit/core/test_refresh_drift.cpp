// Refreshes that drift starts: the measure, and that a side is refreshed at the update after a check that found it
// beyond the bound, and at no other; on every space, whatever the kind, inline or by a worker; after a resume too.
#include <limits>

#include "core/optimizer/matrix_set.hpp"
#include "core/optimizer/refresh/basis_drift.hpp"
#include "core/optimizer/refresh/refresh_workers.hpp"
#include "regression/unit/core/matrix_rig.hpp"
#include "regression/unit/core/refresh_rig.hpp"

namespace sestina::reference {
namespace {

// Returns ||offdiag(Q^T K Q)||_F / ||Q^T K Q||_F.
double drift_of(const Array& factor, const Array& basis) {
  const Array turned = product(transposed(basis), product(factor, basis));
  double off = 0, all = 0;
  for (std::size_t i = 0; i < turned.rows; ++i)
    for (std::size_t j = 0; j < turned.cols; ++j) {
      all += turned(i, j) * turned(i, j);
      if (i != j) off += turned(i, j) * turned(i, j);
    }
  return all == 0 ? 0 : std::sqrt(off / all);
}

template <class Space>
class RefreshDrifts : public testing::Test {};
TYPED_TEST_SUITE(RefreshDrifts, StreamSpaces, SpaceNames);

template <class Space>
double measured(const Array& factor, const Array& basis) {
  auto stream =
      make_stream<Space>(bytes_taken<Space>([&](auto& counter) { declare_basis_drift<Space>(counter, factor.rows); }));
  const Field<float, Space> k(factor), q(basis);
  HostValues<Space> drift("drift", 1);
  basis_drift<Space>(stream, k.read(), q.read(), drift.at(0));
  drift.fetch(stream.exec, "drift");
  return drift[0];
}

// The error of fp32 products is some d eps of the norm of K, whatever is left off the diagonal.
TYPED_TEST(RefreshDrifts, TheMeasureIsTheOffDiagonalPart) {
  constexpr std::size_t d = 24;
  const double tolerance = 2 * d * static_cast<double>(std::numeric_limits<float>::epsilon());
  std::vector<double> values(d);
  for (std::size_t i = 0; i < d; ++i) values[i] = std::pow(0.7, double(i));
  const Array vectors = random_basis(d, 3), factor = rounded<float>(with_eigenvalues(vectors, values));
  for (const unsigned seed : {4u, 5u}) {
    const Array basis = rounded<float>(random_basis(d, seed));
    EXPECT_NEAR(measured<TypeParam>(factor, basis), drift_of(factor, basis), tolerance);
    EXPECT_GT(measured<TypeParam>(factor, basis), 0.1);
  }
  EXPECT_LT(measured<TypeParam>(factor, rounded<float>(vectors)), tolerance);
  Array turned = vectors;  // by a small angle in one plane: the off-diagonal part is some angle (l_0 - l_1)
  const double angle = 1e-3;
  for (std::size_t i = 0; i < d; ++i) {
    turned(i, 0) = vectors(i, 0) + angle * vectors(i, 1);
    turned(i, 1) = vectors(i, 1) - angle * vectors(i, 0);
  }
  EXPECT_NEAR(measured<TypeParam>(factor, rounded<float>(turned)), drift_of(factor, rounded<float>(turned)), tolerance);
  EXPECT_EQ(measured<TypeParam>(Array(d, d), vectors), 0);
  Array broken = factor;
  broken(2, 3) = std::nan("");
  EXPECT_EQ(measured<TypeParam>(broken, vectors), std::numeric_limits<double>::infinity());
}

struct DriftKind {
  std::string name;
  KeyValues numbers = {};
  Words words = {};
};

MatrixOptions drift_options(const DriftKind& kind, double bound, std::int64_t check, std::int64_t staleness = 0) {
  MatrixOptions options = default_options(*find_matrix_kind(kind.name));
  for (const auto& [key, value] : kind.numbers) options.set(key, value);
  for (const auto& [key, word] : kind.words) options.set(key, word);
  options.refresh_drift = bound;
  options.refresh_every = check;
  options.refresh_staleness = staleness;
  return options;
}

// A (12, 8) matrix whose gradients turn slowly, so that drift lies below the bound now and then.
template <class Space>
struct DriftRig : MatrixRig<Space> {
  explicit DriftRig(const MatrixOptions& options) : MatrixRig<Space>(options, 12, 8) {
    if (options.refresh_drift > 0) this->stream.refresh.drift = {options.refresh_drift, 2};
    if (options.refresh_staleness == 0) return;
    const RefreshNeeds needs = refresh_needs(options, 12, 8);
    workers = std::make_unique<RefreshWorkers>(WorkerPool::Options{.workers = 2}, needs.scratch, needs.jobs, true);
    this->stream.refresh.workers = workers.get();
  }
  Array update(unsigned t) {
    book_refreshes(this->stream, t);
    const double turn = 0.5 * std::sin(0.4 * t);
    return this->step(rounded<float>(blend(1, gradient_at(12, 8, 1), turn, gradient_at(12, 8, 2 + t % 3))));
  }
  std::int64_t counter(const std::string& name) { return this->optimizer->state().counter(name); }
  // Returns the drift of a side as it is after an update, which is that of a check in it.
  double drift(const std::string& side) {
    const MatrixState<Space>& state = this->optimizer->state();
    const Array basis = this->field("basis_" + side);
    if (state.has("factor_" + side)) return drift_of(this->field("factor_" + side), basis);
    const Array m = this->field("momentum");
    return drift_of(side == "left" ? product(m, transposed(m)) : product(transposed(m), m), basis);
  }

  std::unique_ptr<RefreshWorkers> workers;  // ends before what it works for
};

const std::vector<DriftKind> drift_kinds = {{"soap"},
                                            {"soap", {}, {{"basis_refresh", "eigh"}, {"momentum_basis", "rotated"}}},
                                            {"kl-soap", {{"sort", 1}}},
                                            {"kl-shampoo"},
                                            {"soap-muon"},
                                            {"basis-rotation"},
                                            {"basis-rotation", {}, {{"source", "1st"}}}};

// A basis is a new one exactly where the check before it found more than the bound.
TYPED_TEST(RefreshDrifts, EachSideIsRefreshedAfterACheckThatFoundItBeyondTheBound) {
  constexpr std::int64_t check = 3;
  constexpr double bound = 0.08;
  for (const DriftKind& kind : drift_kinds) {
    int refreshed = 0, left_alone = 0;
    for (const std::string side : {"left", "right"}) {
      DriftRig<TypeParam> rig(drift_options(kind, bound, check));
      rig.update(0);
      bool due = false;
      for (unsigned t = 1; t < 40; ++t) {
        const Array before = rig.field("basis_" + side);
        rig.update(t);
        const bool is_new = rig.field("basis_" + side).values != before.values;
        EXPECT_EQ(is_new, due) << kind.name << ", " << side << ", update " << t;
        if (rig.counter("updates") % check == 1) (due ? refreshed : left_alone) += 1;
        due = rig.counter("updates") % check == 0 && rig.drift(side) > bound;
      }
    }
    EXPECT_GT(refreshed, 0) << kind.name;
    EXPECT_GT(left_alone, 0) << kind.name;
  }
}

// What a refresh does is what one by period does at the same update, S updates late where it is a worker's: a run whose
// refreshes the test starts, as plain loops decide, has the same bits.
TYPED_TEST(RefreshDrifts, RefreshesAreThoseOfARunByPeriod) {
  const DriftKind kind{"soap", {}, {{"sides", "smaller"}}};
  constexpr std::int64_t check = 4, never = 1 << 20;
  for (const std::int64_t staleness : {0, 2}) {
    const double bound = 0.05;
    DriftRig<TypeParam> by_drift(drift_options(kind, bound, check, staleness));
    DriftRig<TypeParam> by_hand(drift_options(kind, 0, check, staleness));
    bool due = false;
    int refreshes = 0;
    for (unsigned t = 0; t < 48; ++t) {
      by_hand.stream.refresh.policy.periods = {due ? 1 : never};
      refreshes += due ? 1 : 0;
      ASSERT_EQ(by_drift.update(t).values, by_hand.update(t).values) << "update " << t << ", S = " << staleness;
      const std::int64_t updates = by_hand.counter("updates");
      due = updates > 0 && updates % check == 0 && by_hand.drift("right") > bound;
    }
    EXPECT_GT(refreshes, 1);
    EXPECT_LT(refreshes, 11);
    const RefreshDrift found = by_drift.stream.refresh.drift.found;
    EXPECT_EQ(found.sides, refreshes);
    EXPECT_GT(found.largest, bound);
    EXPECT_LE(found.largest, 1);
  }
}

// A check is booked before state is read: another object goes on from any update to the same bits.
TYPED_TEST(RefreshDrifts, DecisionsAreState) {
  const MatrixOptions options = drift_options({"soap"}, 0.05, 4, 2);
  DriftRig<TypeParam> whole(options);
  std::vector<Array> want;
  for (unsigned t = 0; t < 24; ++t) want.push_back(whole.update(t));
  std::int64_t pending = 0;
  for (const unsigned cut : {5u, 9u, 10u, 13u, 14u, 17u}) {
    DriftRig<TypeParam> first(options), second(options);
    for (unsigned t = 0; t < cut; ++t) first.update(t);
    book_refreshes(first.stream, std::numeric_limits<std::int64_t>::max());
    pending += first.counter("drifted_left") + first.counter("drifted_right");
    hand_over<TypeParam>(first, second);
    for (unsigned t = cut; t < 24; ++t) EXPECT_EQ(second.update(t).values, want[t].values) << cut << ", update " << t;
  }
  EXPECT_GT(pending, 0);
}

// Three matrices in so many streams, with copies in bf16 for a worker where results are late.
struct DriftSet {
  DriftSet(int streams, std::int64_t staleness) {
    std::vector<MatrixItem<Host>> items;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t m = 12 + 4 * i, n = 10;
      weights.emplace_back("w", m, n);
      gradients.emplace_back("g", m, n);
      set_values(weights.back(), rounded<float>(random_array(m, n, static_cast<unsigned>(i))));
      const Matrix<const float, Host> gradient(gradients.back().data(), m, n);
      const Matrix<float, Host> master(weights.back().data(), m, n);
      items.push_back({{"w" + std::to_string(i), gradient, master, {}}, {0.01, 0.1}, static_cast<std::int64_t>(i)});
    }
    MatrixSetOptions setting;
    setting.options = drift_options({"soap"}, 0.1, 4, staleness);
    setting.options.snapshot_bf16 = staleness > 0;
    setting.deterministic = true;
    setting.threads = streams;
    set = make_matrix_set<Host>(Host(), items, setting);
  }
  // Returns what refreshes by drift did in the update.
  RefreshDrift step(std::int64_t t) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::size_t m = gradients[i].extent(0), n = gradients[i].extent(1);
      const double turn = 0.5 * std::sin(0.4 * static_cast<double>(t));
      set_values(gradients[i], rounded<float>(blend(1, gradient_at(m, n, 1), turn, gradient_at(m, n, 2))));
    }
    set->step(t, 1, 1, 0, 1);  // in two groups, as they are updated when gradients come in pieces
    set->step(t, 1, 1, 1, set->size());
    return set->take_refresh_drift();
  }
  std::vector<std::vector<float>> bases() {
    std::vector<std::vector<float>> all;
    for (const StateField& field : set->state()) {
      if (field.path.find("/basis_") == std::string::npos) continue;
      const auto* data = static_cast<const float*>(field.data);
      all.emplace_back(data, data + field.bytes() / sizeof(float));
    }
    return all;
  }
  std::vector<Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace>> weights, gradients;
  std::unique_ptr<MatrixSet<Host>> set;
};

// Reading the state of one of them between updates, as a save does, changes nothing.
TEST(RefreshDrift, ASetTellsWhatWasRefreshedAndHasTheSameBitsInAnyStreams) {
  for (const std::int64_t staleness : {0, 2}) {
    DriftSet one(1, staleness), several(3, staleness);
    std::int64_t sides = 0;
    double largest = -1;
    std::vector<std::vector<float>> before;
    for (std::int64_t t = 1; t <= 30; ++t) {
      const RefreshDrift told = one.step(t), also = several.step(t);
      EXPECT_EQ(told.sides, also.sides) << t;
      const std::vector<std::vector<float>> bases = one.bases();
      std::int64_t moved = 0;
      for (std::size_t i = 0; t > 1 && i < bases.size(); ++i) moved += bases[i] != before[i] ? 1 : 0;
      EXPECT_EQ(told.sides, moved) << t;
      EXPECT_EQ(told.largest >= 0, t > 4 && (t - 1) % 4 == 1) << t;  // the first call is no update
      before = bases;
      sides += told.sides;
      largest = std::max(largest, told.largest);
    }
    for (std::size_t i = 0; i < one.weights.size(); ++i)
      EXPECT_EQ(values_of(one.weights[i]).values, values_of(several.weights[i]).values) << i;
    EXPECT_GT(sides, 0);
    EXPECT_LT(sides, 6 * 7);
    EXPECT_GT(largest, 0.1);
  }
}

}  // namespace
}  // namespace sestina::reference
