#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/store/output_file.hpp"

namespace sestina {
namespace {

// Format 1.0 of NumPy: magic, version, little-endian length of a header that ends on a multiple of 64, then the values.
TEST(NpyWrite, WritesWhatNumpyReads) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("sestina_npy_" + std::to_string(getpid()));
  const std::string path = (folder / "deep" / "x.npy").string();
  const float values[] = {1, 2, 3, 4, 5, -0.5f};
  write_npy(path, values, 2, 3);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  ASSERT_GT(bytes.size(), sizeof values);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const std::size_t header = static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  EXPECT_EQ((10 + header) % 64, 0u);
  EXPECT_NE(bytes.find("'shape': (2, 3)"), std::string::npos);
  EXPECT_EQ(bytes[9 + header], '\n');
  ASSERT_EQ(bytes.size(), 10 + header + sizeof values);
  EXPECT_EQ(std::memcmp(bytes.data() + 10 + header, values, sizeof values), 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace sestina
