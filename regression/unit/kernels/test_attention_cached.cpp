// Attention from a cache against attention over the whole sequence.
#include "../reference.hpp"
#include "kernels/model/attention.hpp"

namespace sestina {
namespace {

using namespace reference;

template <class C>
class AttentionCached : public testing::Test {};
TYPED_TEST_SUITE(AttentionCached, AllCases);

// A sequence of 150 positions, all at once: what the cached forms are compared with.
template <class Exec, class T>
struct Whole {
  AttentionShape shape{1, 150, 6, 2, 10, 0.3};
  Field<T, Exec> q{random_array(150, 60, 1), 4}, k{random_array(150, 20, 2)}, v{random_array(150, 20, 3)};
  Field<T, Exec> out{150, 60};
  Whole() {
    Workspace<Exec> workspace(bytes_taken<Exec>([&](auto& counter) { declare_attention<T>(counter, Exec{}, shape); }) +
                              65536);
    const auto lse = workspace.template take<Acc<T>>(6 * 150);
    attention<Exec, T>(Exec{}, shape, q.read(), k.read(), v.read(), {}, out.matrix(), lse, workspace);
  }
};

TYPED_TEST(AttentionCached, ContinuedHasTheBitsOfTheWhole) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  const Whole<Exec, T> whole;
  for (const int first : {0, 64, 128}) {
    const auto rows = static_cast<std::size_t>(150 - first);
    Field<T, Exec> out(rows, 60, 2);
    Workspace<Exec> workspace(bytes_taken<Exec>([&](auto& counter) {
      declare_attention_continued<Exec, T>(counter, Exec{}, whole.shape, static_cast<int>(rows));
    }));
    const Matrix<const T, Exec> q = Kokkos::subview(whole.q.read(), std::make_pair(first, 150), Kokkos::ALL);
    attention_continued<Exec, T>(Exec{}, whole.shape, first, q, whole.k.read(), whole.v.read(), out.matrix(),
                                 workspace);
    EXPECT_EQ(workspace.peak(), workspace.capacity());
    const Array got = out.get(), want = whole.out.get();
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < 60; ++j) {
        const double expected = want(i + static_cast<std::size_t>(first), j);
        if (is_host<Exec>)
          ASSERT_EQ(got(i, j), expected) << first << " " << i << " " << j;
        else
          ASSERT_NEAR(got(i, j), expected, 8 * (epsilon<T> + 20 * epsilon<Acc<T>>));
      }
  }
}

// Three sequences of capacity 150 in one cache, the rows of a step at different positions of them.
TYPED_TEST(AttentionCached, StepsSeeTheirOwnSequence) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  const Whole<Exec, T> whole;
  const std::vector<std::int32_t> places = {2 * 150 + 149, 17, 2 * 150 + 0, 150 + 64};
  Kokkos::View<std::int32_t*, typename Exec::memory_space> place("place", 4), every("every", 450);
  auto host_place = Kokkos::create_mirror_view(place);
  auto host_every = Kokkos::create_mirror_view(every);
  for (std::size_t i = 0; i < 4; ++i) host_place(i) = places[i];
  for (int i = 0; i < 450; ++i) host_every(static_cast<std::size_t>(i)) = i;
  Kokkos::deep_copy(place, host_place);
  Kokkos::deep_copy(every, host_every);

  Array keys(450, 20), values(450, 20), queries(4, 60);
  const Array k = whole.k.get(), v = whole.v.get(), q = whole.q.get();
  for (std::size_t i = 0; i < 450; ++i)
    for (std::size_t j = 0; j < 20; ++j) keys(i, j) = k(i % 150, j), values(i, j) = v(i % 150, j);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 60; ++j) queries(i, j) = q(static_cast<std::size_t>(places[i] % 150), j);
  Field<T, Exec> new_k(keys, 3), new_v(values), k_cache(450, 20), v_cache(450, 20), fq(queries, 5), out(4, 60, 1);
  store_places<Exec, T>(Exec{}, every, new_k.read(), new_v.read(), k_cache.matrix(), v_cache.matrix());
  AttentionShape shape = whole.shape;
  shape.batch = 4;
  Workspace<Exec> workspace(bytes_of<AttentionStepScratch<Exec, T>, Exec>(shape));
  attention_step<Exec, T>(Exec{}, shape, place, fq.read(), k_cache.read(), v_cache.read(), out.matrix(), workspace);
  EXPECT_EQ(workspace.peak(), workspace.capacity());
  Array want(4, 60);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 60; ++j) want(i, j) = whole.out.get()(static_cast<std::size_t>(places[i] % 150), j);
  // Sums of up to 150 weights and products, and one rounding to T each.
  expect_close(out.get(), want, 2 * epsilon<T> + 50 * epsilon<Acc<T>>, "attention step");
}

}  // namespace
}  // namespace sestina
