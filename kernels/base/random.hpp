// Counter-based random numbers: pure functions of (seed, name or stream, index), so that no layout, thread count or
// order of calls changes a value. Generator: Philox 4x32-10 (Salmon et al. 2011). No Kokkos.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace sestina {

using Philox = std::array<std::uint32_t, 4>;
Philox philox(std::uint64_t key, std::uint64_t counter_high, std::uint64_t counter_low);

std::uint64_t stream_of(std::uint64_t seed, std::string_view name);  // key of a named stream (64-bit hash)
double uniform(std::uint64_t stream, std::uint64_t index);           // [0, 1), 53 bits
double normal(std::uint64_t stream, std::uint64_t index);            // N(0, 1), Box-Muller
// Writes out[i] = scale * normal(stream, first + i) for i < count, at half the cost. T is float or double.
template <class T>
void normals(std::uint64_t stream, std::uint64_t first, std::uint64_t count, double scale, T* out);
// Returns position `index` of a pseudo-random permutation of [0, n): a Feistel network walked until it lands inside. n
// > 0, index < n.
std::uint64_t permute(std::uint64_t stream, std::uint64_t index, std::uint64_t n);

}  // namespace sestina
