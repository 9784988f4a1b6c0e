#include "kernels/blas/bits.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

template <class Exec, class Word>
void digest_words(const Exec& exec, const Word* words, std::size_t n, Vector<std::uint64_t, Exec> digest) {
  const Kokkos::View<std::uint64_t, typename Exec::memory_space, Kokkos::MemoryUnmanaged> result(digest.data());
  Kokkos::parallel_reduce(
      "sestina::digest_bits", Kokkos::RangePolicy<Exec>(exec, 0, n),
      KOKKOS_LAMBDA(const std::size_t i, std::uint64_t& sum) { sum += split_mix(words[i], i); }, result);
}

// stride: words from row to row.
template <class Exec, class Word>
void digest_rows_of_words(const Exec& exec, const Word* words, std::size_t n, std::size_t cols, std::size_t stride,
                          Vector<std::uint64_t, Exec> digest) {
  const Kokkos::View<std::uint64_t, typename Exec::memory_space, Kokkos::MemoryUnmanaged> result(digest.data());
  Kokkos::parallel_reduce(
      "sestina::digest_rows", Kokkos::RangePolicy<Exec>(exec, 0, n),
      KOKKOS_LAMBDA(const std::size_t i, std::uint64_t& sum) {
        sum += split_mix(words[i / cols * stride + i % cols], i);
      },
      result);
}

// Returns a word with so many of its lowest `size` bits set, which follow from the seed.
std::uint32_t chosen_bits(std::uint64_t seed, unsigned size, int bits) {
  std::uint32_t mask = 0;
  for (int left = std::min(bits, static_cast<int>(size)); left > 0; seed += golden_ratio) {
    const std::uint32_t bit = std::uint32_t{1} << (mixed(seed) % size);
    if ((mask & bit) != 0) continue;
    mask |= bit;
    --left;
  }
  return mask;
}

template <class Exec, class Word>
void flip_word(const Exec& exec, Word* word, Word mask) {
  Kokkos::parallel_for(
      "sestina::flip_bits", Kokkos::RangePolicy<Exec>(exec, 0, 1),
      KOKKOS_LAMBDA(const std::size_t) { *word = static_cast<Word>(*word ^ mask); });
}

// Calls use with a value of the word's type.
template <class Use>
void with_word(std::size_t bytes, std::size_t width, const Use& use) {
  SESTINA_REQUIRE((width == 1 || width == 2 || width == 4) && bytes % width == 0, "{} bytes in words of {}", bytes,
                  width);
  if (width == 1) return use(std::uint8_t());
  if (width == 2) return use(std::uint16_t());
  use(std::uint32_t());
}

}  // namespace

template <class Exec>
void digest_bits(const Exec& exec, const void* memory, std::size_t bytes, std::size_t width,
                 Vector<std::uint64_t, Exec> digest) {
  with_word(bytes, width, [&](auto word) {
    using Word = decltype(word);
    digest_words<Exec, Word>(exec, static_cast<const Word*>(memory), bytes / sizeof(Word), digest);
  });
}

template <class Exec>
void digest_rows(const Exec& exec, const void* memory, std::size_t rows, std::size_t row, std::size_t stride,
                 std::size_t width, Vector<std::uint64_t, Exec> digest) {
  SESTINA_REQUIRE(stride % width == 0, "rows {} bytes apart in words of {}", stride, width);
  with_word(row, width, [&](auto word) {
    using Word = decltype(word);
    const std::size_t cols = row / sizeof(Word);
    digest_rows_of_words<Exec, Word>(exec, static_cast<const Word*>(memory), rows * cols, cols, stride / sizeof(Word),
                                     digest);
  });
}

template <class Exec>
void flip_bits(const Exec& exec, void* memory, std::size_t bytes, std::size_t width, std::uint64_t place, int bits) {
  if (bytes == 0) return;
  with_word(bytes, width, [&](auto word) {
    using Word = decltype(word);
    const std::uint32_t mask = chosen_bits(mixed(place + 1), 8 * sizeof(Word), bits);
    flip_word<Exec, Word>(exec, static_cast<Word*>(memory) + mixed(place) % (bytes / sizeof(Word)),
                          static_cast<Word>(mask));
  });
}

#define SESTINA_BITS(Exec)                                                                                          \
  template void digest_bits<Exec>(const Exec&, const void*, std::size_t, std::size_t, Vector<std::uint64_t, Exec>); \
  template void digest_rows<Exec>(const Exec&, const void*, std::size_t, std::size_t, std::size_t, std::size_t,     \
                                  Vector<std::uint64_t, Exec>);                                                     \
  template void flip_bits<Exec>(const Exec&, void*, std::size_t, std::size_t, std::uint64_t, int);
SESTINA_INSTANTIATE_SPACES(SESTINA_BITS)

}  // namespace sestina
