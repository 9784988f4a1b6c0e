// The width of the widest vector of the target. Host only. No compiler has one name for it: __BIGGEST_ALIGNMENT__ is it
// under g++, and 16 under clang whatever -march says, so that the target's own macros are asked.
#pragma once

namespace sestina {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif

}  // namespace sestina
