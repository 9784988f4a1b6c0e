// Rows of tokens on their way to the ranks that hold their experts, and back: each row where it belongs, for odd
// numbers, experts and ranks without tokens, and every type.
#include <gtest/gtest.h>

#include <numeric>

#include "parallel/comm/expert_group.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

using Counts = std::vector<std::int64_t>;
constexpr std::int64_t plenty = 1 << 20;

// Rows that a rank sends to an expert.
using RowsOf = std::int64_t (*)(int rank, std::size_t expert);

// What element (row, column) of the rows of a rank for an expert is: a small whole number, which every type holds.
double element(int rank, std::size_t expert, std::int64_t row, std::size_t col) {
  return static_cast<double>(
      (static_cast<std::size_t>(rank) * 31 + expert * 7 + static_cast<std::size_t>(row) * 3 + col) % 251);
}

template <class T, class Exec>
using Rows = Kokkos::View<T**, Kokkos::LayoutRight, typename Exec::memory_space>;

template <class T, class Exec>
void check_rows(RowsOf rows_of, std::size_t own, std::size_t width) {
  const auto ranks = tensor_ranks<Exec>();
  ExpertGroup<Exec> group(*ranks, plenty);
  const auto size = static_cast<std::size_t>(group.size()), experts = own * size;
  const int me = group.rank();
  ExpertRows rows;
  std::vector<T> mine, expected;
  for (std::size_t e = 0; e < experts; ++e) {
    rows.sent.push_back(rows_of(me, e));
    for (std::int64_t r = 0; r < rows.sent.back(); ++r)
      for (std::size_t c = 0; c < width; ++c) mine.push_back(static_cast<T>(element(me, e, r, c)));
  }
  group.exchange_counts(rows);
  Counts received;
  for (std::size_t e = static_cast<std::size_t>(me) * own; e < static_cast<std::size_t>(me + 1) * own; ++e)
    for (int source = 0; source < group.size(); ++source) {
      received.push_back(rows_of(source, e));
      for (std::int64_t r = 0; r < received.back(); ++r)
        for (std::size_t c = 0; c < width; ++c) expected.push_back(static_cast<T>(element(source, e, r, c)));
    }
  ASSERT_EQ(rows.received, received);
  const Rows<T, Exec> from("from", mine.size() / width, width), there("there", expected.size() / width, width),
      back("back", mine.size() / width, width);
  Kokkos::deep_copy(
      from, Kokkos::View<const T**, Kokkos::LayoutRight, Kokkos::HostSpace>(mine.data(), from.extent(0), width));
  group.send(Exec(), rows, Matrix<const T, Exec>(from), Matrix<T, Exec>(there));
  Exec().fence();
  const std::vector<double> got = host_values<Exec>(there.data(), static_cast<std::int64_t>(there.size()));
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<double>(float(expected[i]))) << i;
  group.send_back(Exec(), rows, Matrix<const T, Exec>(there), Matrix<T, Exec>(back));
  Exec().fence();
  const std::vector<double> returned = host_values<Exec>(back.data(), static_cast<std::int64_t>(back.size()));
  for (std::size_t i = 0; i < returned.size(); ++i) ASSERT_EQ(returned[i], static_cast<double>(float(mine[i]))) << i;
  EXPECT_EQ(group.take_count().sends, 2);
}

// Ranks: ExpertGroups 1 2 3 4
template <class Space>
class ExpertGroups : public testing::Test {};
TYPED_TEST_SUITE(ExpertGroups, reference::RunSpaces, reference::SpaceNames);

TYPED_TEST(ExpertGroups, RowsComeToTheirExpertsAndBack) {
  const RowsOf even = [](int, std::size_t) -> std::int64_t { return 4; };
  const RowsOf odd = [](int rank, std::size_t expert) {
    return static_cast<std::int64_t>((expert * 5 + 3 * std::size_t(rank)) % 7);
  };
  const RowsOf one_expert = [](int, std::size_t expert) -> std::int64_t { return expert == 1 ? 9 : 0; };
  const RowsOf one_source = [](int rank, std::size_t) -> std::int64_t { return rank == 0 ? 3 : 0; };
  const RowsOf none = [](int, std::size_t) -> std::int64_t { return 0; };
  for (const RowsOf rows : {even, odd, one_expert, one_source, none})
    for (const std::size_t own : {1u, 3u}) {
      check_rows<float, TypeParam>(rows, own, 8);
      check_rows<bf16, TypeParam>(rows, own, 5);
      check_rows<double, TypeParam>(rows, own, 3);
    }
}

TYPED_TEST(ExpertGroups, MoreRowsThanThereIsRoomForAreTold) {
  const auto ranks = tensor_ranks<TypeParam>();
  ExpertGroup<TypeParam> group(*ranks, 5 * ranks->size());
  ExpertRows rows;
  rows.sent.assign(static_cast<std::size_t>(group.size()), 5);
  EXPECT_NO_THROW(group.exchange_counts(rows));
  rows.sent[0] = 6;  // one more from each rank to the first
  if (group.rank() > 0) {
    EXPECT_NO_THROW(group.exchange_counts(rows));
    return;
  }
  try {
    group.exchange_counts(rows);
    FAIL() << "rows without room";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("parallel.expert_room"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sestina
