// The boundary between a stage and the next one: activations go up, gradients come back. Inside a process both stages
// see the same memory, and nothing is sent; between processes each side has its own, and messages start as soon as
// their contents are there. Micro-batches are numbered on through the run; evaluation has a place of its own.
#pragma once
#include <memory>
#include <vector>

#include "kernels/blas/exec.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

struct LinkSetting {
  int from = 0, to = 0;  // pipeline ranks of the two stages
  std::size_t rows = 0, cols = 0;
  int activations = 1, gradients = 1;  // places (parallel/plan/pipeline_schedule.hpp)
};

template <class Exec, class T>
class Link {
 public:
  static constexpr std::int64_t evaluation = -1;  // in place of a micro-batch's number

  // All ranks of the pipeline group make the same links in the same order; those of neither side hold nothing.
  Link(const Exec&, Communicator& pipeline, const LinkSetting&);

  // Boundary tensors (rows, cols) of a micro-batch on this rank. A sender asks for its place before it writes there,
  // which waits until the message before in that place has gone.
  Matrix<T, Exec> activation_to_write(std::int64_t micro) { return up_.to_write(micro); }
  Matrix<T, Exec> gradient_to_write(std::int64_t micro) { return down_.to_write(micro); }
  void send_activation(std::int64_t micro) { up_.send(exec_, micro); }
  void send_gradient(std::int64_t micro) { down_.send(exec_, micro); }
  Matrix<T, Exec> receive_activation(std::int64_t micro) { return up_.receive(micro); }
  Matrix<T, Exec> receive_gradient(std::int64_t micro) { return down_.receive(micro); }
  // What has arrived, or was written, before.
  Matrix<T, Exec> activation(std::int64_t micro) const { return up_.place(micro); }

  bool between_ranks() const { return up_.between_ranks(); }
  // Activations of micro-batches below this number are there without a message: a resumed run has read them.
  void restored(std::int64_t micro) { up_.restored(micro); }

 private:
  class Way {  // one direction
   public:
    Way(Communicator&, const char* name, int from, int to, std::size_t rows, std::size_t cols, int places);
    Matrix<T, Exec> to_write(std::int64_t micro);
    void send(const Exec&, std::int64_t micro);
    Matrix<T, Exec> receive(std::int64_t micro);
    Matrix<T, Exec> place(std::int64_t micro) const;
    void restored(std::int64_t micro) { here_until_ = micro; }
    bool between_ranks() const { return !messages_.empty(); }

   private:
    std::size_t index(std::int64_t micro) const {
      return static_cast<std::size_t>(micro == evaluation ? places_ : micro % places_);
    }
    int places_;
    std::int64_t here_until_ = 0;
    std::size_t rows_, cols_;
    Kokkos::View<T*, typename Exec::memory_space> values_;  // (places + 1, rows, cols), the last one for evaluation
    std::vector<std::unique_ptr<Exchange>> messages_;       // by place; none inside a process
  };

  Exec exec_;
  Way up_, down_;
};

}  // namespace sestina
