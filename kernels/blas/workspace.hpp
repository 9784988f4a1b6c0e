// Scratch memory of one execution-space instance: one allocation made before the first step, handed out as a stack.
// Usage: `auto frame = workspace.frame(); auto x = workspace.take<float>(n);` — the frame gives back what was taken in
// it.
#pragma once
#include <cstddef>

#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

template <class Exec>
class Workspace {
 public:
  static constexpr std::size_t alignment =
      256;  // bytes; a multiple of the cache line and of cuBLAS' preferred alignment

  explicit Workspace(std::size_t bytes = 0)
      : buffer_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::workspace"), bytes) {}

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

  // Bytes that one take of n elements uses: add these up to size a workspace.
  template <class T>
  static constexpr std::size_t bytes(std::size_t n) {
    return (n * sizeof(T) + alignment - 1) / alignment * alignment;
  }

  // Uninitialised storage for n elements.
  template <class T>
  Vector<T, Exec> take(std::size_t n) {
    const std::size_t need = bytes<T>(n);
    SESTINA_REQUIRE(used_ + need <= buffer_.size(), "workspace holds {} bytes, {} in use, {} more asked",
                    buffer_.size(), used_, need);
    auto* begin = reinterpret_cast<T*>(buffer_.data() + used_);
    used_ += need;
    return Vector<T, Exec>(begin, n);
  }
  template <class T>
  Matrix<T, Exec> take(std::size_t rows, std::size_t cols) {
    return Matrix<T, Exec>(take<T>(rows * cols).data(), rows, cols);
  }
  std::size_t capacity() const { return buffer_.size(); }

 private:
  Kokkos::View<std::byte*, typename Exec::memory_space> buffer_;
  std::size_t used_ = 0;
};

}  // namespace sestina
