#include "io/store/npy_write.hpp"

#include <fmt/format.h>

#include "io/store/output_file.hpp"

namespace sestina {

void write_npy(const std::string& path, const float* values, std::size_t rows, std::size_t cols) {
  constexpr std::size_t alignment = 64, preamble = 10;  // magic, version, length of the header
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
  header.append(alignment - (preamble + header.size() + 1) % alignment, ' ');
  header.push_back('\n');
  OutputFile file(path);
  file.write(std::string_view("\x93NUMPY\x01\x00", 8));
  const unsigned char length[] = {static_cast<unsigned char>(header.size() & 0xff),
                                  static_cast<unsigned char>(header.size() >> 8)};
  file.write(length, sizeof length);
  file.write(header);
  file.write(values, rows * cols * sizeof(float));
  file.commit();
}

}  // namespace sestina
