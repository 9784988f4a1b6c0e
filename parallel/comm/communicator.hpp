// A group of ranks and their operations together. Memory is the host's, or a device's where the library below can read
// it. All calls come from the main thread. Whatever waits for another rank gives up at the limit (poll.hpp) with
// Error(unavailable), which names what was waited for. Calls of one group are made in the same order on all its ranks.
// No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"

namespace sestina {

// A block of memory: `rows` stretches of `row_bytes`, the first bytes of neighbours `stride` bytes apart.
struct Block {
  void* data = nullptr;
  std::size_t rows = 1, row_bytes = 0, stride = 0;
  std::size_t bytes() const { return rows * row_bytes; }
};
inline Block block_of(void* data, std::size_t bytes) { return {data, 1, bytes, bytes}; }

// A message to, or from, one other rank; the bytes of both sides' blocks pair off in their order.
struct Message {
  int peer = 0;
  std::vector<Block> blocks;
  std::size_t bytes() const;
};

using Queue = void*;  // a device's, which does its work in turn (a CUDA stream); null: none (stream_order.hpp)

// Messages that travel again and again: made once, then started and finished any number of times without allocation.
// This one form serves variable reduce-scatter (before the sum), variable all-gather and fused all-to-all: empty
// messages are not sent, and a message to oneself is a copy.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void start() = 0;
  virtual bool test() = 0;    // moves the exchange on; true when complete (or never started)
  virtual void finish() = 0;  // waits until the exchange is complete
  // Work that the queue gets from now on waits for the exchange. The host waits too, unless the group can leave that to
  // the device: then whoever waits for the queue calls the group's complete() first.
  virtual void finish_in(Queue) { finish(); }
};

enum class Reduction { sum, max, min };
struct NodeLevels;  // parallel/comm/nodes.hpp

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;

  virtual void barrier() = 0;
  // Reduces in place, with the same result on all ranks. Sums whose bits must not depend on the library take other
  // ways: parallel/rounds/reduce_rounds.hpp and kernels/blas/sums.hpp.
  virtual void all_reduce(double* data, std::size_t n, Reduction) = 0;
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  virtual void all_gather(const void* mine, std::size_t bytes, void* all) = 0;  // all: size() * bytes

  // Send texts of any length: from root to all ranks; from each rank to all, returned by rank.
  void broadcast(std::string&, int root);
  std::vector<std::string> all_gather(const std::string& mine);

  // Every rank of the group makes the same exchanges in the same order. The blocks must outlive the exchange.
  // `name` must outlive it too: it appears in messages and in the trace.
  virtual std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                                  std::vector<Message> receives) = 0;

  // Exchanges that the group's library makes as a whole, in place, where it has such; null: it has none. owned[r] lies
  // in the same places on all ranks. Sums of floats come to owned[r] of rank r, with the bits of the library; what rank
  // r owns comes to all.
  virtual std::unique_ptr<Exchange> make_reduce_scatter(const char* /*name*/, const std::vector<Block>& /*owned*/) {
    return nullptr;
  }
  virtual std::unique_ptr<Exchange> make_all_gather(const char* /*name*/,
                                                    const std::vector<std::vector<Block>>& /*owned*/) {
    return nullptr;
  }

  // An all_gather that is started and finished any number of times: mine and all must outlive it.
  virtual std::unique_ptr<Exchange> make_all_gather(const char* name, const void* mine, std::size_t bytes,
                                                    void* all) = 0;

  // Single messages: any number of sends and receives, which are complete after wait(). They allocate nothing after
  // their first uses.
  virtual void send(int peer, const void* data, std::size_t bytes) = 0;
  virtual void receive(int peer, void* data, std::size_t bytes) = 0;
  virtual void wait(const char* name) = 0;
  virtual void wait_in(Queue, const char* name) { wait(name); }  // see Exchange::finish_in

  // Returns whether what is started from now on begins, without the host, when all that the queue has so far is done.
  virtual bool start_after(Queue) { return false; }
  // Waits, up to the limit, for all that queues wait for by finish_in and wait_in: a wait for the queue itself has no
  // limit.
  virtual void complete(const char*) {}

  // Splits the group: ranks of one colour form a group, ordered by key.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  virtual std::unique_ptr<Communicator> split_by_node() = 0;  // the ranks that share memory

  // Says which ranks share nodes, where the group works in two levels; else null.
  virtual const NodeLevels* levels() const { return nullptr; }

  // Returns whether exchanges run one after the other in the order of their starts, so that one may send what the one
  // before it receives.
  virtual bool runs_in_order() const { return false; }
};

// The group of one rank: everything is the identity.
std::unique_ptr<Communicator> make_lone_communicator();

// A group that is built on another and leaves to it whatever it does not do itself, but for the order of queues,
// because its own exchanges may belong to several groups.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  int size() const override { return inner_->size(); }
  int rank() const override { return inner_->rank(); }
  void barrier() override { inner_->barrier(); }
  void all_reduce(double* data, std::size_t n, Reduction reduction) override { inner_->all_reduce(data, n, reduction); }
  void broadcast(void* data, std::size_t bytes, int root) override { inner_->broadcast(data, bytes, root); }
  void all_gather(const void* mine, std::size_t bytes, void* all) override { inner_->all_gather(mine, bytes, all); }
  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    return inner_->make_exchange(name, std::move(sends), std::move(receives));
  }
  std::unique_ptr<Exchange> make_reduce_scatter(const char* name, const std::vector<Block>& owned) override {
    return inner_->make_reduce_scatter(name, owned);
  }
  std::unique_ptr<Exchange> make_all_gather(const char* name, const std::vector<std::vector<Block>>& owned) override {
    return inner_->make_all_gather(name, owned);
  }
  std::unique_ptr<Exchange> make_all_gather(const char* name, const void* mine, std::size_t bytes, void* all) override {
    return inner_->make_all_gather(name, mine, bytes, all);
  }
  void send(int peer, const void* data, std::size_t bytes) override { inner_->send(peer, data, bytes); }
  void receive(int peer, void* data, std::size_t bytes) override { inner_->receive(peer, data, bytes); }
  void wait(const char* name) override { inner_->wait(name); }
  std::unique_ptr<Communicator> split(int color, int key) override { return inner_->split(color, key); }
  std::unique_ptr<Communicator> split_by_node() override { return inner_->split_by_node(); }
  const NodeLevels* levels() const override { return inner_->levels(); }

 protected:
  std::unique_ptr<Communicator> inner_;
};

// copy_blocks copies between lists of blocks that hold the same bytes in the same order but are cut differently.

// Walks over the bytes of a list of blocks.
class BlockCursor {
 public:
  explicit BlockCursor(const std::vector<Block>& blocks) : blocks_(blocks) { skip_empty(); }
  bool at_end() const { return block_ == blocks_.size(); }
  std::size_t run() const { return blocks_[block_].row_bytes - byte_; }  // bytes that lie together from here
  char* here() const { return static_cast<char*>(blocks_[block_].data) + row_ * blocks_[block_].stride + byte_; }
  void advance(std::size_t bytes) {
    byte_ += bytes;
    if (byte_ < blocks_[block_].row_bytes) return;
    byte_ = 0;
    if (++row_ < blocks_[block_].rows) return;
    row_ = 0;
    ++block_;
    skip_empty();
  }

 private:
  void skip_empty() {
    while (block_ < blocks_.size() && blocks_[block_].bytes() == 0) ++block_;
  }
  const std::vector<Block>& blocks_;
  std::size_t block_ = 0, row_ = 0, byte_ = 0;
};

inline void copy_blocks(const std::vector<Block>& from, const std::vector<Block>& to) {
  BlockCursor source(from), target(to);
  while (!source.at_end() && !target.at_end()) {
    const std::size_t n = std::min(source.run(), target.run());
    std::memcpy(target.here(), source.here(), n);
    source.advance(n);
    target.advance(n);
  }
  SESTINA_REQUIRE(source.at_end() && target.at_end(), "blocks of different sizes");
}

// These functions let the ranks of a group find out together whether one of them failed.

// An Error that all ranks have agreed on: the first one reports it, all exit with its code.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Fails on all ranks with one report and one code, for what all of them have found out.
template <class... Args>
[[noreturn]] void fail_on_all(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw AgreedError(code, fmt::format(format, std::forward<Args>(args)...));
}

// Calls f on every rank; when it fails on any, the lowest failing rank's Error is thrown on all of them, as an
// AgreedError, and names that rank unless all failed in the same way. It serves phases in which a rank may fail by
// itself while others would wait for it. The first rank calls the roll: a rank that does not come is named.
void agree(Communicator&, const std::function<void()>& f);

// Every other rank sends the first one a byte, and gets one back. Error(unavailable) names a rank that did not come.
void call_roll(Communicator&, const char* name);

}  // namespace sestina
