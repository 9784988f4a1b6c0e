// Counts of MPI are ints: longer stretches go as one element of a longer type. With a small limit in place of 2^31.
#include <gtest/gtest.h>

#include <mpi.h>

#include <vector>

#include "parallel/library/counted_bytes_mpi.hpp"
#include "regression/unit/mpi/ranks.hpp"

namespace sestina {
namespace {

// Ranks: CountedBytes 2

TEST(CountedBytes, GoWholeHoweverMany) {
  constexpr std::size_t limit = 1000;
  for (const std::size_t bytes : {0, 1, 999, 1000, 1001, 4096, 100003}) {
    const CountedBytes counted(bytes, limit);
    EXPECT_LE(static_cast<std::size_t>(counted.count()), limit);
    MPI_Count size = 0;
    MPI_Type_size_x(counted.type(), &size);
    EXPECT_EQ(static_cast<std::size_t>(size) * static_cast<std::size_t>(counted.count()), bytes);
    const int me = world().rank(), ranks = world().size();
    std::vector<unsigned char> mine(bytes + 1, 255), all(bytes * static_cast<std::size_t>(ranks) + 1, 255);
    for (std::size_t i = 0; i < bytes; ++i)
      mine[i] = static_cast<unsigned char>((i * 7 + static_cast<std::size_t>(me)) % 251);
    MPI_Allgather(mine.data(), counted.count(), counted.type(), all.data(), counted.count(), counted.type(),
                  MPI_COMM_WORLD);
    std::size_t wrong = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r)
      for (std::size_t i = 0; i < bytes; ++i) wrong += all[r * bytes + i] != (i * 7 + r) % 251 ? 1 : 0;
    EXPECT_EQ(wrong, 0u) << bytes;
    EXPECT_EQ(all.back(), 255);  // and no byte after
  }
}

// What cannot be split says what, how much and what is allowed.
TEST(CountedBytes, AreRefusedWithAMessageWhereACallTakesNoMore) {
  EXPECT_EQ(mpi_count(INT_MAX, "rows"), INT_MAX);
  try {
    mpi_count(std::size_t{INT_MAX} + 1, "rows of a block");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rows of a block: got 2147483648, at most 2147483647"), std::string::npos);
  }
}

}  // namespace
}  // namespace sestina
