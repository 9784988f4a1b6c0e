// Counts bytes for MPI. Its counts are ints, so a longer message is one element of a type of so many bytes.
#pragma once
#include <mpi.h>

#include <climits>
#include <cstddef>

#include "kernels/base/error.hpp"

namespace sestina {

// Returns a number as the int that an MPI call takes. what: what is counted, in which call.
inline int mpi_count(std::size_t n, const char* what) {
  if (n > INT_MAX) fail(ExitCode::unavailable, "MPI: {}: got {}, at most {} in one call", what, n, INT_MAX);
  return static_cast<int>(n);
}

// Makes a type of so many contiguous bytes, not committed. limit: the largest count; tests take a small one.
inline MPI_Datatype bytes_type(std::size_t bytes, std::size_t limit = INT_MAX) {
  MPI_Datatype type;
  if (bytes <= limit) {
    MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type);
    return type;
  }
  std::size_t page = std::size_t{1} << 20;
  while (page > limit) page /= 2;
  MPI_Datatype one_page, parts[2];
  MPI_Type_contiguous(static_cast<int>(page), MPI_BYTE, &one_page);
  MPI_Type_contiguous(mpi_count(bytes / page, "pages of a message"), one_page, &parts[0]);
  MPI_Type_contiguous(static_cast<int>(bytes % page), MPI_BYTE, &parts[1]);
  const int lengths[2] = {1, 1};
  const MPI_Aint places[2] = {0, static_cast<MPI_Aint>(bytes / page * page)};
  MPI_Type_create_struct(2, lengths, places, parts, &type);
  for (MPI_Datatype* done : {&one_page, &parts[0], &parts[1]}) MPI_Type_free(done);
  return type;
}

// The count and type for a call that moves contiguous bytes, however many.
class CountedBytes {
 public:
  explicit CountedBytes(std::size_t bytes, std::size_t limit = INT_MAX) : long_(bytes > limit) {
    if (!long_) {
      count_ = static_cast<int>(bytes);
      return;
    }
    type_ = bytes_type(bytes, limit);
    MPI_Type_commit(&type_);
  }
  // MPI keeps what calls under way need of a type that is freed.
  ~CountedBytes() {
    if (long_) MPI_Type_free(&type_);
  }
  CountedBytes(const CountedBytes&) = delete;
  CountedBytes& operator=(const CountedBytes&) = delete;
  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  bool long_;
  int count_ = 1;
  MPI_Datatype type_ = MPI_BYTE;
};

}  // namespace sestina
