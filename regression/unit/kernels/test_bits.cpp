#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <vector>

#include "kernels/blas/bits.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

std::uint64_t digest_of(const Host& exec, const std::vector<std::uint32_t>& words, std::size_t width = 4) {
  std::uint64_t digest = 0;
  digest_bits<Host>(exec, words.data(), 4 * words.size(), width, Vector<std::uint64_t, Host>(&digest, 1));
  exec.fence();
  return digest;
}

std::vector<std::uint32_t> some_words(std::size_t n) {
  std::vector<std::uint32_t> words(n);
  for (std::size_t i = 0; i < n; ++i) words[i] = static_cast<std::uint32_t>(mixed(i));
  return words;
}

// The published formula, in a plain loop.
TEST(Bits, ADigestIsTheSumOfMixedWords) {
  const std::vector<std::uint32_t> words = some_words(1001);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < words.size(); ++i) sum += mixed(words[i] + (i + 1) * 0x9e3779b97f4a7c15u);
  EXPECT_EQ(digest_of(Host(), words), sum);
  EXPECT_EQ(digest_of(Host(), {}), 0U);
}

TEST(Bits, EveryFlippedBitChangesTheDigest) {
  for (const std::size_t width : {1, 2, 4}) {
    std::vector<std::uint32_t> words = some_words(5);
    std::set<std::uint64_t> digests = {digest_of(Host(), words, width)};
    for (std::uint32_t& word : words)
      for (int bit = 0; bit < 32; ++bit) {
        word ^= std::uint32_t{1} << bit;
        EXPECT_TRUE(digests.insert(digest_of(Host(), words, width)).second) << "bit " << bit << " width " << width;
        word ^= std::uint32_t{1} << bit;
      }
  }
}

TEST(Bits, WordsThatTradePlacesChangeTheDigest) {
  std::vector<std::uint32_t> words = some_words(100);
  const std::uint64_t digest = digest_of(Host(), words);
  std::swap(words[3], words[77]);
  EXPECT_NE(digest_of(Host(), words), digest);
}

TEST(Bits, NoNumberOfThreadsChangesTheDigest) {
  const std::vector<std::uint32_t> words = some_words(100'003);
  const std::uint64_t digest = digest_of(Host(), words);
  for (const auto& part : Kokkos::Experimental::partition_space(Host(), 1, 1))
    EXPECT_EQ(digest_of(part, words), digest);
}

// Padding has no part in it.
TEST(Bits, RowsHaveTheDigestOfWhatTheyHoldOneAfterTheOther) {
  for (const std::size_t width : {1, 2, 4})
    for (const std::size_t rows : {0, 1, 7}) {
      const std::vector<std::uint32_t> words = some_words(7 * 5);
      std::vector<std::uint32_t> packed;
      for (std::size_t row = 0; row < rows; ++row) packed.insert(packed.end(), &words[5 * row], &words[5 * row] + 3);
      std::uint64_t digest = 1;
      digest_rows<Host>(Host(), words.data(), rows, 12, 20, width, Vector<std::uint64_t, Host>(&digest, 1));
      Host().fence();
      EXPECT_EQ(digest, digest_of(Host(), packed, width)) << rows << " rows of width " << width;
    }
}

TEST(Bits, AFlipChangesSoManyBitsOfOneWord) {
  for (const std::size_t width : {1, 2, 4})
    for (int bits = 1; bits <= 8; ++bits)
      for (std::uint64_t place = 0; place < 8; ++place) {
        std::vector<std::uint32_t> words(10);
        flip_bits<Host>(Host(), words.data(), 40, width, place, bits);
        Host().fence();
        int flipped = 0, meets = 0;
        for (const std::uint32_t word : words) {
          flipped += std::popcount(word);
          meets += word != 0;
        }
        EXPECT_EQ(flipped, bits);
        EXPECT_EQ(meets, 1);
      }
}

// Places are spread over all words and all bits.
TEST(Bits, FlipsMeetEveryBit) {
  std::vector<std::uint32_t> met(3);
  for (std::uint64_t place = 0; place < 1000; ++place) {
    std::vector<std::uint32_t> words(3);
    flip_bits<Host>(Host(), words.data(), 12, 4, place, 1);
    Host().fence();
    for (std::size_t i = 0; i < 3; ++i) met[i] |= words[i];
  }
  EXPECT_EQ(met, std::vector<std::uint32_t>(3, 0xffffffffu));
}

}  // namespace
}  // namespace sestina
