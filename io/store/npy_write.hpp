// One matrix as a NumPy file (format version 1.0). No Kokkos.
#pragma once
#include <cstddef>
#include <string>

namespace sestina {

// values (rows, cols), row-major float32. Error(cannot_create) or Error(io_error).
void write_npy(const std::string& path, const float* values, std::size_t rows, std::size_t cols);

}  // namespace sestina
