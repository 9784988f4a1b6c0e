// Refreshes that a space judges by itself, as a device does: here on every space, in addition to those that the host
// waits for.
#include <gtest/gtest.h>

#include <limits>

#include "core/optimizer/refresh/refresh_batch.hpp"
#include "matrix_rig.hpp"
#include "refresh_rig.hpp"

namespace sestina {
namespace {

using namespace reference;

template <class Space>
class RefreshVerdict : public testing::Test {};
TYPED_TEST_SUITE(RefreshVerdict, StreamSpaces, SpaceNames);

constexpr std::size_t d = 24;

// Hosts do not declare what a space takes for that.
template <class Space>
void let_the_space_judge(Stream<Space>& stream, std::size_t jobs) {
  stream.refresh.checks.let_space_judge();
  stream.workspace = Workspace<Space>(stream.workspace.capacity() + bytes_taken<Space>([](auto& counter) {
                                        const JudgedSums<Space> sums(counter, d);
                                      }));
  stream.refresh.queued = QueuedRefreshes<Space>(stream.exec, jobs);
}

Array falling_factor(double ratio) {
  std::vector<double> values(d);
  for (std::size_t i = 0; i < d; ++i) values[i] = std::pow(ratio, double(i));
  return rounded<float>(with_eigenvalues(random_basis(d, 3), values));
}

// A job of every output, and what the host keeps of its side.
template <class Space>
struct Site {
  Site(RefreshMethod method, const Array& k, std::size_t jobs)
      : stream(
            make_stream<Space>(bytes_taken<Space>([&](auto& counter) { declare_refresh<Space>(counter, method, d); }))),
        factor(k),
        basis(random_basis(d, 4)),
        root(identity(d)),
        order_view("order", d) {
    if (jobs > 0) let_the_space_judge(stream, jobs);
    job = job_in_place(method, factor, basis);
    job.name = "/optimizer/w/factor_left";
    if (method == RefreshMethod::power_qr) job.order = Vector<std::int32_t, Space>(order_view.data(), d);
    if (method == RefreshMethod::inverse_root_eigh || method == RefreshMethod::inverse_root_qr)
      job.root = root.matrix();
    job.max_iterations = 3;
    job.tolerance = 0.3;
  }
  bool queue(std::int64_t t) {
    book_refreshes(stream, t);
    const SideCounts counts{&failures, &computed_from, &results};
    const bool queued = queue_refresh(stream, job, counts);
    if (queued) counts.book(t);
    return queued;
  }
  Array order() const { return values_of(job.order); }

  Stream<Space> stream;
  Field<float, Space> factor, basis, root;
  Kokkos::View<std::int32_t*, Kokkos::LayoutRight, typename Space::memory_space> order_view;
  RefreshJob<Space> job;
  std::int64_t failures = 0, computed_from = 5, results = 2;
};

TYPED_TEST(RefreshVerdict, GivesWhatTheHostGives) {
  using Space = TypeParam;
  for (RefreshMethod method : {RefreshMethod::eigen_basis, RefreshMethod::power_qr, RefreshMethod::inverse_root_eigh,
                               RefreshMethod::inverse_root_qr})
    for (double ratio : {0.97, 0.6}) {
      Site<Space> waited(method, falling_factor(ratio), 0), queued(method, falling_factor(ratio), 1);
      ASSERT_EQ(refresh(waited.stream, waited.job, waited.failures), Refreshed::done);
      ASSERT_TRUE(queued.queue(7));
      expect_same(queued.basis.get(), waited.basis.get(), "basis");
      expect_same(queued.root.get(), waited.root.get(), "root");
      if (method == RefreshMethod::power_qr) expect_same(queued.order(), waited.order(), "order");
      book_refreshes(queued.stream, 8);
      EXPECT_EQ(queued.computed_from, 8);
      EXPECT_EQ(queued.results, 3);
      EXPECT_EQ(queued.failures, 0);
      EXPECT_EQ(queued.stream.refresh.failures, 0);
      EXPECT_GT(queued.stream.refresh.seconds.waits, 0);
    }
}

// Iterations that go on to the end choose the basis that those stop at which the host follows.
TYPED_TEST(RefreshVerdict, KeepsABasisThatMeetsTheTolerance) {
  using Space = TypeParam;
  const Array q = rounded<float>(random_basis(d, 3));
  Site<Space> queued(RefreshMethod::inverse_root_qr, falling_factor(0.9), 1);
  set_values(queued.basis.matrix(), q);  // its eigenvectors
  ASSERT_TRUE(queued.queue(1));
  expect_same(queued.basis.get(), q, "basis");
}

TYPED_TEST(RefreshVerdict, WhatIsBadIsNotPublishedAndBookedLater) {
  using Space = TypeParam;
  constexpr auto nan = std::numeric_limits<double>::quiet_NaN();
  for (RefreshMethod method : {RefreshMethod::power_qr, RefreshMethod::inverse_root_qr})
    for (double bad : {nan, 3e38, 0.0}) {
      Site<Space> site(method, Array(d, d, bad), 1);
      site.job.scale = 10;  // a root in fp32 overflows too
      const Array before = site.basis.get();
      ASSERT_TRUE(site.queue(1));
      EXPECT_EQ(site.computed_from, 2);
      expect_same(site.basis.get(), before, "basis");
      expect_same(site.root.get(), identity(d), "root");
      if (method == RefreshMethod::power_qr)
        for (std::size_t j = 0; j < d; ++j) EXPECT_EQ(site.order()(0, j), double(j));
      book_refreshes(site.stream, 1);  // the same update
      EXPECT_EQ(site.computed_from, 2);
      book_refreshes(site.stream, 2);
      EXPECT_EQ(site.computed_from, 5);
      EXPECT_EQ(site.results, 2);
      EXPECT_EQ(site.failures, bad == 0 ? 0 : 1);
      EXPECT_EQ(site.stream.refresh.failures, bad == 0 ? 0 : 1);
    }
}

// One of several sides whose refreshes fall due in one update.
template <class Space>
struct BatchedSide {
  BatchedSide(RefreshMethod method, const Array& k)
      : factor(k), basis(random_basis(k.rows, 4)), root(identity(k.rows)), job(job_in_place(method, factor, basis)) {
    if (method == RefreshMethod::inverse_root_eigh) job.root = root.matrix();
  }
  void queue(Stream<Space>& stream, std::int64_t t) {
    const SideCounts counts{&failures, &computed_from, &results};
    ASSERT_TRUE(queue_refresh(stream, job, counts));
    counts.book(t);
  }
  Field<float, Space> factor, basis, root;
  RefreshJob<Space> job;
  std::int64_t failures = 0, computed_from = 5, results = 2;
};

// Of two sizes, and one that is zero: one after another, as many as there is room for, and all that have one size.
TYPED_TEST(RefreshVerdict, OfABatchAreThoseOfEach) {
  using Space = TypeParam;
  const Array smaller = rounded<float>(with_eigenvalues(random_basis(10, 3), std::vector<double>(10, 0.5)));
  for (const RefreshMethod method : {RefreshMethod::eigen_basis, RefreshMethod::inverse_root_eigh})
    for (const std::size_t room : {0, 3, 9}) {
      std::vector<std::unique_ptr<BatchedSide<Space>>> alone, together;
      for (auto* sides : {&alone, &together})
        for (const Array& k : {falling_factor(0.97), smaller, Array(d, d), falling_factor(0.6), smaller,
                               falling_factor(0.8), falling_factor(0.7)})
          sides->push_back(std::make_unique<BatchedSide<Space>>(method, k));
      auto stream = make_stream<Space>(room * 4 * d * d * sizeof(float) + bytes_taken<Space>([&](auto& counter) {
                                         declare_refresh<Space>(counter, method, d);
                                       }));
      let_the_space_judge(stream, alone.size());
      book_refreshes(stream, 7);
      for (const auto& side : alone) side->queue(stream, 7);
      book_refreshes(stream, 8);
      const Array before = together[0]->basis.get();
      RefreshBatch<Space>().collect(stream, [&] {
        for (const auto& side : together) side->queue(stream, 8);
        expect_same(together[0]->basis.get(), before, "put off");
      });
      EXPECT_EQ(stream.refresh.batch, nullptr);
      book_refreshes(stream, 9);
      for (std::size_t i = 0; i < alone.size(); ++i) {
        expect_same(together[i]->basis.get(), alone[i]->basis.get(), "basis");
        expect_same(together[i]->root.get(), alone[i]->root.get(), "root");
        EXPECT_EQ(together[i]->computed_from, i == 2 ? 5 : 9);
        EXPECT_EQ(together[i]->results, i == 2 ? 2 : 3);
        EXPECT_EQ(together[i]->failures, 0);
      }
    }
}

TYPED_TEST(RefreshVerdict, AfterAFailureTheNextOneIsTriedInDouble) {
  using Space = TypeParam;
  Site<Space> site(RefreshMethod::power_qr, Array(d, d, 3e38), 1);
  ASSERT_TRUE(site.queue(1));
  EXPECT_FALSE(site.queue(2));
  ASSERT_EQ(site.failures, 1);
  EXPECT_EQ(refresh(site.stream, site.job, site.failures), Refreshed::done);
  EXPECT_EQ(site.failures, 0);
  EXPECT_TRUE(site.queue(3));
}

TYPED_TEST(RefreshVerdict, TooManyFailuresEndTheRunNamingTheFactor) {
  using Space = TypeParam;
  Site<Space> site(RefreshMethod::power_qr, Array(d, d, std::numeric_limits<double>::infinity()), 1);
  site.stream.refresh.policy.max_failures = 0;
  ASSERT_TRUE(site.queue(1));
  try {
    book_refreshes(site.stream, 2);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::diverged);
    EXPECT_NE(std::string(error.what()).find("/optimizer/w/factor_left"), std::string::npos);
  }
}

// Whole optimizers, through their ports, refreshing in every other update.
TYPED_TEST(RefreshVerdict, OptimizersMoveAsWithTheHost) {
  using Space = TypeParam;
  struct Case {
    std::string kind;
    Words words;
  };
  for (const Case& c :
       {Case{"soap", {}}, Case{"soap", {{"basis_refresh", "eigh"}}}, Case{"basis-rotation", {}}, Case{"soap-muon", {}},
        Case{"kl-soap", {}}, Case{"kl-shampoo", {}}, Case{"shampoo", {{"root", "eigh"}}},
        Case{"shampoo", {{"root", "qr"}}}, Case{"shampoo", {{"root", "newton"}}}}) {
    MatrixRig<Space> waited(c.kind, 13, 9, {}, c.words, 2), queued(c.kind, 13, 9, {}, c.words, 2);
    let_the_space_judge(queued.stream, 2);
    for (unsigned t = 1; t <= 9; ++t) {
      book_refreshes(queued.stream, t);
      const Array g = gradient_at(13, 9, t), want = waited.step(g);
      expect_same(queued.step(g), want, c.kind.c_str());
    }
    EXPECT_EQ(queued.optimizer->ages().max, waited.optimizer->ages().max);
  }
}

}  // namespace
}  // namespace sestina
