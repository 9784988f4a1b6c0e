#include "kernels/base/random.hpp"

#include <bit>
#include <cmath>
#include <numbers>

namespace sestina {
namespace {

// The finaliser of SplitMix64 (Steele et al. 2014): a bijection that mixes every bit into every other.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t join(std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; }

// Returns the top 53 bits as a number in [0, 1).
double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// Computes the pair of independent normals number `pair` of a stream (Box & Muller 1958). 1 - u lies in (0, 1], so that
// the logarithm is finite.
void normal_pair(std::uint64_t stream, std::uint64_t pair, double& first, double& second) {
  const Philox r = philox(stream, 1, pair);
  const double radius = std::sqrt(-2 * std::log(1 - unit(join(r[0], r[1]))));
  const double angle = 2 * std::numbers::pi * unit(join(r[2], r[3]));
  first = radius * std::cos(angle);
  second = radius * std::sin(angle);
}

}  // namespace

Philox philox(std::uint64_t key, std::uint64_t counter_high, std::uint64_t counter_low) {
  Philox c{static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
           static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xd2511f53u} * c[0], p1 = std::uint64_t{0xcd9e8d57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return c;
}

std::uint64_t stream_of(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over the name, then mixed with the seed
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mix(hash + mix(seed + 0x9e3779b97f4a7c15u));
}

double uniform(std::uint64_t stream, std::uint64_t index) {
  const Philox r = philox(stream, 0, index);
  return unit(join(r[0], r[1]));
}

double normal(std::uint64_t stream, std::uint64_t index) {
  double even, odd;
  normal_pair(stream, index / 2, even, odd);
  return index % 2 == 0 ? even : odd;
}

template <class T>
void normals(std::uint64_t stream, std::uint64_t first, std::uint64_t count, double scale, T* out) {
  std::uint64_t i = 0;
  if (first % 2 == 1 && count > 0) out[i++] = static_cast<T>(scale * normal(stream, first));
  for (; i + 1 < count; i += 2) {
    double even, odd;
    normal_pair(stream, (first + i) / 2, even, odd);
    out[i] = static_cast<T>(scale * even);
    out[i + 1] = static_cast<T>(scale * odd);
  }
  if (i < count) out[i] = static_cast<T>(scale * normal(stream, first + i));
}
template void normals(std::uint64_t, std::uint64_t, std::uint64_t, double, float*);
template void normals(std::uint64_t, std::uint64_t, std::uint64_t, double, double*);

std::uint64_t permute(std::uint64_t stream, std::uint64_t index, std::uint64_t n) {
  // A balanced Feistel network of four rounds (Luby & Rackoff 1988) on the smallest even number of bits that holds n;
  // at most 4 n values exist there, so the walk (Black & Rogaway 2002) takes less than four turns on average.
  const int half = (static_cast<int>(std::bit_width(n > 1 ? n - 1 : 1)) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = index >> half, right = index & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const Philox r = philox(stream, 2 + round, right);
      const std::uint64_t next = left ^ (join(r[0], r[1]) & mask);
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= n);
  return index;
}

}  // namespace sestina
