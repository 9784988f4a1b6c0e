// Types of elements in files and of state. No Kokkos.
#pragma once
#include <cstddef>

namespace sestina {

enum class DType { f32, f64, bf16, i32, i64, u8, u16, u32 };
std::size_t size_of(DType);
const char* name(DType);

}  // namespace sestina
