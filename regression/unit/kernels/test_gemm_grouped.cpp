// Groups of products of different sizes against the obvious triple loop: odd shapes, groups with empty members, padded
// rows, and bits that neither threads nor the other members decide about.
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/host/group_shares.hpp"
#include "regression/unit/kernels/padded.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

template <class P>
class GroupedGemm : public testing::Test {};
TYPED_TEST_SUITE(GroupedGemm, ProductTypes);

// What a group computes: the operations and factors of all, and what varies from one product to the next.
struct GroupCase {
  Op op_a, op_b;
  std::vector<std::size_t> rows;  // of A: m, or k where A is transposed
  double alpha, beta;
  std::size_t pad = 3;
};

template <class TA, class TC>
struct TestedGroup {
  GroupCase c;
  std::vector<Padded<TA>> a, b;
  std::vector<Padded<TC>> got, want;
  std::vector<GemmShape> shapes;

  explicit TestedGroup(const GroupCase& given) : c(given) {
    const std::size_t n = 29, other = 37;
    for (unsigned i = 0; i < c.rows.size(); ++i) {
      const bool plain = c.op_a == Op::none;
      const GemmShape s = plain ? GemmShape{c.rows[i], n, other} : GemmShape{other, n, c.rows[i]};
      shapes.push_back(s);
      a.emplace_back(plain ? s.m : s.k, plain ? s.k : s.m, c.pad, 3 * i);
      const bool straight = c.op_b == Op::none;
      b.emplace_back(straight ? s.k : s.n, straight ? s.n : s.k, 2 * c.pad, 3 * i + 1);
      got.emplace_back(s.m, s.n, c.pad, 3 * i + 2);
    }
    want = got;
    if (c.beta == 0)  // what must not be read
      for (std::size_t i = 0; i < got.size(); ++i)
        if (shapes[i].m > 0) got[i].data[0] = TC(std::numeric_limits<float>::quiet_NaN());
  }
  template <class Exec>
  void run(Gemm<Exec>& gemm) {
    std::size_t next = 0;
    gemm.template grouped<TA, TC>(a.size(), c.op_a, c.op_b, Acc<TA>(c.alpha), Acc<TA>(c.beta), [&](std::size_t i) {
      EXPECT_EQ(i, next++);
      return GroupOperands<TA, TC, Exec>{a[i].template view<const TA>(), b[i].template view<const TA>(),
                                         got[i].template view<TC>()};
    });
    EXPECT_EQ(next, a.size());
  }
  // Sums of k terms below 1, rounded once for each of at most 6 parts of the rows.
  void check() {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const GemmShape s = shapes[i];
      gemm_plain(c.op_a, c.op_b, s, c.alpha, a[i].data.data(), a[i].stride, b[i].data.data(), b[i].stride, c.beta,
                 want[i].data.data(), want[i].stride);
      const double k = double(s.k),
                   result = std::is_same_v<TC, bf16> ? 1.0 / 256 : std::numeric_limits<Acc<TC>>::epsilon();
      const double allowed = 2 * (k * k * double(std::numeric_limits<Acc<TA>>::epsilon()) + (k + 1) * result);
      for (std::size_t at = 0; at < got[i].rows * got[i].stride; ++at)
        ASSERT_LE(std::abs(double(got[i].data[at]) - double(want[i].data[at])), at % got[i].stride < s.n ? allowed : 0)
            << "product " << i << ", element " << at << ", rows " << c.rows[i];
    }
  }
};

const std::vector<std::vector<std::size_t>> groups = {
    {}, {0}, {5}, {0, 0, 0}, {1, 0, 2, 3}, {64, 64, 64, 64}, {33, 0, 7, 1, 250, 19, 0, 63}, {300, 1, 1, 1, 1}};

TYPED_TEST(GroupedGemm, MatchesPlainProducts) {
  using TA = typename TypeParam::TA;
  using TC = typename TypeParam::TC;
  for (const int threads : {1, 2, 3})
    for (const bool deterministic : {false, true}) {
      const Host exec(threads);
      Gemm<Host> gemm(exec, deterministic);
      for (const Op op_a : {Op::none, Op::transpose})
        for (const Op op_b : {Op::none, Op::transpose})
          for (const auto& rows : groups)
            for (const double beta : {0.0, 1.0, -0.625}) {
              TestedGroup<TA, TC> group({op_a, op_b, rows, beta == 1 ? 1.0 : 0.75, beta});
              group.run(gemm);
              group.check();
              if (testing::Test::HasFatalFailure()) return;
            }
    }
}

TYPED_TEST(GroupedGemm, OneThreadMatchesPlainProducts) {
  Gemm<Serial> gemm{Serial()};
  TestedGroup<typename TypeParam::TA, typename TypeParam::TC> group({Op::none, Op::transpose, groups[6], 1, 0});
  group.run(gemm);
  group.check();
}

// Rows of one product in groups that are computed side by side, by all threads, or alone.
TYPED_TEST(GroupedGemm, WithFixedTilesNeitherThreadsNorOtherProductsDecideAboutBits) {
  using TA = typename TypeParam::TA;
  using TC = typename TypeParam::TC;
  const std::size_t probe = 91;
  for (const Op op_a : {Op::none, Op::transpose}) {
    std::vector<TC> first;
    for (const std::vector<std::size_t>& others :
         {std::vector<std::size_t>{}, {1}, {91}, {90, 92, 91}, {900}, {0, 3, 5, 8, 40, 11, 2}})
      for (const int threads : {1, 2, 3}) {
        const Host exec(threads);
        Gemm<Host> gemm(exec, true);
        std::vector<std::size_t> rows = {probe};
        rows.insert(rows.end(), others.begin(), others.end());
        TestedGroup<TA, TC> group({op_a, Op::none, rows, 1, 1});
        for (TA& x : group.a[0].data) x = TA(float(x) * 1.2345f);  // so that sums are not exact
        group.run(gemm);
        if (first.empty()) first = group.got[0].data;
        EXPECT_EQ(std::memcmp(first.data(), group.got[0].data.data(), first.size() * sizeof(TC)), 0)
            << threads << " threads, " << others.size() << " others";
      }
  }
}

TEST(GemmGroup, CountsOperationsAndRejectsWhatDoesNotFit) {
  Gemm<Host> gemm{Host()};
  TestedGroup<float, float> group({Op::none, Op::none, {3, 0, 5}, 1, 0});
  group.run(gemm);
  EXPECT_EQ(gemm.take_count().flops, 2.0 * 8 * 29 * 37);
  group.b[2] = Padded<float>(36, 29, 0, 1);
  EXPECT_THROW(group.run(gemm), Error);
}

// The largest products are computed by all threads while the others could not keep all busy.
TEST(GroupShares, ThreadsEndAtNearlyTheSameTime) {
  host::GroupShares shares;
  const auto together = [&](const std::vector<double>& work, std::size_t threads) {
    host::share_group(work, threads, shares);
    return shares.together;
  };
  EXPECT_EQ(together({1, 1, 1, 1}, 2), 0u);
  EXPECT_EQ(together({1, 1, 1}, 2), 1u);
  EXPECT_EQ(together({5}, 2), 1u);
  EXPECT_EQ(together({1, 1, 10, 1, 1}, 2), 1u);
  EXPECT_EQ(shares.order[0], 2u);
  EXPECT_EQ(together({3, 2, 2, 1}, 2), 0u);
  EXPECT_EQ(together({4, 4}, 8), 2u);
  EXPECT_EQ(together({}, 8), 0u);
  std::vector<double> many(128, 1);
  many[7] = 100;
  EXPECT_EQ(together(many, 4), 1u);
  std::vector<int> each(4);
  for (std::size_t i = 1; i < many.size(); ++i) ++each[shares.thread[i]];
  EXPECT_GE(*std::min_element(each.begin(), each.end()), 31);
}

}  // namespace
}  // namespace sestina

namespace sestina::reference {
namespace {

template <class Space>
class GroupsInSpaces : public testing::Test {};
TYPED_TEST_SUITE(GroupsInSpaces, StreamSpaces, SpaceNames);

// Rows of one matrix that belong to experts, of which some have none: their outputs, and the gradients of weights.
TYPED_TEST(GroupsInSpaces, AreProductsOfRowsOfExperts) {
  const std::size_t in = 11, out = 7, all = 40;
  const std::vector<std::size_t> begins = {0, 13, 13, 14, 30, 40, 40};
  const std::size_t experts = begins.size() - 1;
  const Field<float, TypeParam> x(rounded<float>(random_array(all, in, 1))),
      dy(rounded<float>(random_array(all, out, 2)));
  const Field<float, TypeParam> w(rounded<float>(random_array(experts * out, in, 3)));
  const Field<float, TypeParam> y(rounded<float>(random_array(all, out, 4)));
  const auto part = [](const auto& m, std::size_t begin, std::size_t end) {
    return Kokkos::subview(m, std::pair(begin, end), Kokkos::ALL);
  };
  Gemm<TypeParam> gemm{TypeParam()};
  gemm.template grouped<float, float>(experts, Op::none, Op::transpose, 1, 0, [&](std::size_t e) {
    return GroupOperands<float, float, TypeParam>{part(x.matrix(), begins[e], begins[e + 1]),
                                                  part(w.matrix(), e * out, (e + 1) * out),
                                                  part(y.matrix(), begins[e], begins[e + 1])};
  });
  Array want(all, out);
  const Array from = x.get(), weights = w.get();
  for (std::size_t e = 0; e < experts; ++e)
    for (std::size_t i = begins[e]; i < begins[e + 1]; ++i)
      for (std::size_t j = 0; j < out; ++j)
        for (std::size_t p = 0; p < in; ++p) want(i, j) += from(i, p) * weights(e * out + j, p);
  expect_close(y.get(), want, in * epsilon<float>, "outputs");

  for (const double beta : {0.0, 0.5, 1.0}) {
    const Field<float, TypeParam> dw(rounded<float>(random_array(experts * out, in, 5)));
    Array sums = dw.get();
    gemm.template grouped<float, float>(experts, Op::transpose, Op::none, 1, float(beta), [&](std::size_t e) {
      return GroupOperands<float, float, TypeParam>{part(dy.matrix(), begins[e], begins[e + 1]),
                                                    part(x.matrix(), begins[e], begins[e + 1]),
                                                    part(dw.matrix(), e * out, (e + 1) * out)};
    });
    const Array gradients = dy.get();
    for (std::size_t e = 0; e < experts; ++e)
      for (std::size_t i = 0; i < out; ++i)
        for (std::size_t j = 0; j < in; ++j) {
          double& sum = sums(e * out + i, j);
          sum *= beta;
          for (std::size_t n = begins[e]; n < begins[e + 1]; ++n) sum += gradients(n, i) * from(n, j);
        }
    expect_close(dw.get(), sums, all * epsilon<float>, "gradients");
  }
}

}  // namespace
}  // namespace sestina::reference
