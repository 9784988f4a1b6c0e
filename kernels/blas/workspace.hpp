// Scratch memory of one execution-space instance: one allocation made before the first step, handed out as a stack.
// Usage: `auto frame = workspace.frame(); auto x = workspace.take<float>(n);` — the frame gives back what was taken in
// it.
//
// What takes memory says so once. A function that takes several pieces has a struct for them, whose constructor takes
// them from a workspace (NewtonSchulzScratch). The function makes that struct of the workspace that it works in;
// whoever sizes a workspace makes it of one that counts (bytes_of, bytes_taken). What a function calls while it holds
// pieces is declared after them, in a frame of its own (declare): the count is the largest that is ever held at once.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

template <class Exec>
class Workspace {
 public:
  static constexpr std::size_t alignment =
      256;  // bytes; a multiple of the cache line and of cuBLAS' preferred alignment

  // The memory begins at a multiple of the alignment, which a view's does not: Kokkos keeps a header of 128 bytes
  // before its data, and plans count neither that nor what is left out here.
  explicit Workspace(std::size_t bytes = 0)
      : buffer_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::workspace"),
                bytes == 0 ? 0 : bytes + alignment),
        capacity_(bytes) {
    begin_ = buffer_.data();
    const std::size_t past = reinterpret_cast<std::uintptr_t>(begin_) % alignment;
    if (past != 0) begin_ += alignment - past;
  }

  // A workspace without memory that has room for everything. What is taken of it has its shape, and no data.
  static Workspace counter() { return Workspace(Counts{}); }

  class Frame {
   public:
    explicit Frame(Workspace& owner) : owner_(owner), mark_(owner.used_) {}
    ~Frame() { owner_.used_ = mark_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Workspace& owner_;
    std::size_t mark_;
  };
  Frame frame() { return Frame(*this); }

  // Returns the bytes that one take of n elements uses.
  template <class T>
  static constexpr std::size_t bytes(std::size_t n) {
    return (n * sizeof(T) + alignment - 1) / alignment * alignment;
  }

  // Returns uninitialised storage for n elements.
  template <class T>
  Vector<T, Exec> take(std::size_t n) {
    const std::size_t need = bytes<T>(n);
    SESTINA_REQUIRE(counts_ || used_ + need <= capacity_, "workspace holds {} bytes, {} in use, {} more asked",
                    capacity_, used_, need);
    T* const begin = counts_ ? nullptr : reinterpret_cast<T*>(begin_ + used_);
    used_ += need;
    peak_ = std::max(peak_, used_);
    return Vector<T, Exec>(begin, n);
  }
  template <class T>
  Matrix<T, Exec> take(std::size_t rows, std::size_t cols) {
    return Matrix<T, Exec>(take<T>(rows * cols).data(), rows, cols);
  }
  std::size_t capacity() const { return capacity_; }
  std::size_t room() const { return capacity_ - used_; }  // bytes that are not in use
  std::size_t peak() const { return peak_; }              // the most bytes that were in use at once

 private:
  struct Counts {};
  explicit Workspace(Counts) : counts_(true) {}

  Kokkos::View<std::byte*, typename Exec::memory_space> buffer_;
  std::byte* begin_ = nullptr;
  std::size_t capacity_ = 0, used_ = 0, peak_ = 0;
  bool counts_ = false;
};

// Declares what a call takes that is made while the pieces taken before are held: takes it and gives it back.
template <class Scratch, class Exec, class... Shape>
void declare(Workspace<Exec>& workspace, const Shape&... shape) {
  const auto frame = workspace.frame();
  [[maybe_unused]] const Scratch scratch(workspace, shape...);
}

// One matrix of floats, as many calls take one.
template <class Exec>
struct MatrixScratch {
  MatrixScratch(Workspace<Exec>& workspace, std::size_t rows, std::size_t cols)
      : values(workspace.template take<float>(rows, cols)) {}
  Matrix<float, Exec> values;
};

// Returns the bytes of a workspace from which take(workspace) can take all that it takes.
template <class Exec, class Take>
std::size_t bytes_taken(const Take& take) {
  auto counter = Workspace<Exec>::counter();
  take(counter);
  return counter.peak();
}

// Returns the bytes of one struct of pieces.
template <class Scratch, class Exec, class... Shape>
std::size_t bytes_of(const Shape&... shape) {
  return bytes_taken<Exec>([&](Workspace<Exec>& counter) { declare<Scratch>(counter, shape...); });
}

}  // namespace sestina
