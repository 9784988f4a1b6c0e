// How many pages of mapped memory are in main memory, by the system's own account.
#pragma once
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sestina::test {

// From the first page of `memory`, which begins one.
inline std::size_t resident_pages(void* memory, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((bytes + page - 1) / page);
  EXPECT_EQ(::mincore(memory, bytes, pages.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char flags) { return (flags & 1u) != 0; }));
}

}  // namespace sestina::test
