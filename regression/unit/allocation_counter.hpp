// Counts what the calling thread allocates, for tests of "no allocation inside a step". A program that links
// allocation_counter gets counting operators new and delete; they count only while an AllocationCounter lives.
// Left out: allocations that another library makes for itself (oneDNN, libgomp, OpenBLAS), and the handles that
// policies of a Kokkos with deprecated code make (allocation_counter.cpp). Counted: those made on our behalf by the C++
// library, fmt and spdlog.
//   AllocationCounter counter;
//   trainer.step();
//   EXPECT_EQ(counter.heap(), 0) << counter.places();
#pragma once
#include <cstdint>
#include <string>

namespace sestina {

class AllocationCounter {
 public:
  AllocationCounter();  // one at a time per thread
  ~AllocationCounter();
  AllocationCounter(const AllocationCounter&) = delete;
  AllocationCounter& operator=(const AllocationCounter&) = delete;

  std::int64_t heap() const;    // calls of operator new
  std::int64_t kokkos() const;  // allocations of Kokkos, in any memory space; on the host these are heap ones too
  // Who called: the first few places, one per line, to be turned into source lines with addr2line.
  std::string places() const;
};

}  // namespace sestina
