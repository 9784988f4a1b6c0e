// The boundary between a stage and the next one: activations go up, gradients come back. Inside a process both stages
// see the same memory, and nothing is sent; between processes each side has its own, messages start as soon as their
// contents are there, and receives start before they are waited for, so that messages arrive while the receiver
// computes: on a host the receives of an update start as soon as their place is free, on a device in the one order of
// all ranks (receive_order.hpp). Micro-batches are numbered on through the run; evaluation has a place of its own.
#pragma once
#include <memory>
#include <vector>

#include "kernels/blas/exec.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/exchange/pipeline_exchange.hpp"

namespace sestina {

// One direction: matrices (rows, cols) by number.
template <class Exec, class T>
class Channel {
 public:
  static constexpr std::int64_t evaluation = -1;  // in place of a number

  // All ranks of the pipeline group make the same channels in the same order; those of neither side hold nothing. On a
  // device a group's messages run in the order of their starts, and one that nobody has asked for yet would hold up
  // those after it: each channel is a group of its own there.
  Channel(Communicator& pipeline, const char* name, const ChannelOptions&);
  ~Channel();  // keeps the memory of what is under way after a step that failed
  Channel(Channel&&) = default;
  Channel& operator=(Channel&&) = delete;

  // A sender asks for the place before it writes there, which waits until the message before in that place has gone.
  Matrix<T, Exec> to_write(std::int64_t number);
  void send(const Exec&, std::int64_t number);
  Matrix<T, Exec> receive(const Exec&, std::int64_t number);
  // On a host: says that numbers begin to end - 1 will be received next, and that what lies below `read` is not read
  // again. Their receives start as places get free. All that were expected before have been received.
  void expect(std::int64_t begin, std::int64_t end, std::int64_t read);
  // On a device: starts the receive of this number after what the space has to do so far, which reads its place for the
  // last time.
  void start_receive(const Exec&, std::int64_t number);
  void has_read(std::int64_t number);                // says that numbers up to this one are not read again
  Matrix<T, Exec> place(std::int64_t number) const;  // has what arrived, or was written, before

  // Says that numbers below this one are there without a message: a resumed run has read them.
  void restored(std::int64_t number) { here_until_ = number; }
  bool between_ranks() const { return !messages_.empty(); }

 private:
  std::size_t index(std::int64_t number) const {
    return static_cast<std::size_t>(number == evaluation ? places_ : number % places_);
  }
  static constexpr bool receives_expected = is_host<Exec>;
  void start_receives();

  int places_;
  std::int64_t here_until_ = 0;
  std::int64_t started_ = 0, begin_ = 0, end_ = 0;  // receives of begin_ <= number < started_ are under way, to end_
  std::int64_t read_ = 0;
  std::size_t rows_, cols_, stride_;                      // stride: elements from place to place
  Kokkos::View<T*, typename Exec::memory_space> values_;  // the last place is for evaluation
  std::unique_ptr<Communicator> own_group_;               // the group of a device's messages
  Communicator* group_;                                   // the group that messages go through
  std::vector<std::unique_ptr<Exchange>> messages_;       // by place; none inside a process
};

template <class Exec, class T>
class Link {
 public:
  static constexpr std::int64_t evaluation = Channel<Exec, T>::evaluation;

  Link(const Exec&, Communicator& pipeline, const LinkOptions&);

  // Boundary tensors (rows, cols) of a micro-batch on this rank.
  Matrix<T, Exec> activation_to_write(std::int64_t micro) { return up_.to_write(micro); }
  Matrix<T, Exec> gradient_to_write(std::int64_t micro) { return down_.to_write(micro); }
  void send_activation(std::int64_t micro) { up_.send(exec_, micro); }
  void send_gradient(std::int64_t micro) { down_.send(exec_, micro); }
  Matrix<T, Exec> receive_activation(std::int64_t micro) { return up_.receive(exec_, micro); }
  Matrix<T, Exec> receive_gradient(std::int64_t micro) { return down_.receive(exec_, micro); }
  Matrix<T, Exec> activation(std::int64_t micro) const { return up_.place(micro); }
  // Receives that start before they are waited for, as in Channel.
  void start_activation(std::int64_t micro) { up_.start_receive(exec_, micro); }
  void start_gradient(std::int64_t micro) { down_.start_receive(exec_, micro); }
  void expect_activations(std::int64_t begin, std::int64_t end, std::int64_t read) { up_.expect(begin, end, read); }
  void expect_gradients(std::int64_t begin, std::int64_t end) { down_.expect(begin, end, begin); }
  void has_read_activation(std::int64_t micro) { up_.has_read(micro); }
  void has_read_gradient(std::int64_t micro) { down_.has_read(micro); }

  bool between_ranks() const { return up_.between_ranks(); }
  void restored(std::int64_t micro) { up_.restored(micro); }

 private:
  Exec exec_;
  Channel<Exec, T> up_, down_;
};

// The channels between the ends of a model with tied embeddings (TieOptions).
template <class Exec, class T>
struct Tie {
  Channel<Exec, T> weights;
  Channel<Exec, Acc<T>> gradients;
};

}  // namespace sestina
