// Device memory over MPI. A library that reads it gets the blocks as they are; for others they are copied to pinned
// host memory before they are sent, and from there when they have come. What a rank sends to itself stays on the
// device.
#include <algorithm>
#include <deque>
#include <utility>

#include "kernels/base/error.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/comm/device_copies.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {
namespace {

// A message over pinned host memory.
struct Staged {
  explicit Staged(std::vector<Block> all) : blocks(std::move(all)), buffer(Staging::Place::pinned_host) {
    std::size_t bytes = 0;
    for (const Block& block : blocks) bytes += block.bytes();
    buffer.reserve(bytes);
  }
  std::vector<Block> blocks;
  Staging buffer;
};

class StagedExchange final : public Exchange {
 public:
  StagedExchange(const char* name, Communicator& group, bool direct, std::vector<Message> sends,
                 std::vector<Message> receives)
      : name_(name) {
    sends = over_host(std::move(sends), group.rank(), direct, out_, own_out_);
    receives = over_host(std::move(receives), group.rank(), direct, in_, own_in_);
    const std::size_t own = own_out_.bytes();
    SESTINA_REQUIRE(own == own_in_.bytes(), "{}: {} bytes to oneself, {} from oneself", name, own, own_in_.bytes());
    own_.reserve(own);
    inner_ = group.make_exchange(name, std::move(sends), std::move(receives));
  }
  void start() override {
    SESTINA_REQUIRE(state_ == State::idle, "{}: started twice", name_);
    for (const Staged& staged : out_) pack(staged.blocks, staged.buffer.data(), stream_);
    pack(own_out_.blocks, own_.data(), stream_);
    unpack(own_.data(), own_in_.blocks, stream_);
    stream_.wait();
    inner_->start();
    state_ = State::travelling;
  }
  bool test() override {
    if (state_ == State::travelling && inner_->test()) take_up();
    if (state_ == State::landing && landed_.done(name_)) state_ = State::idle;
    return state_ == State::idle;
  }
  void finish() override {
    if (state_ == State::travelling) {
      inner_->finish();
      take_up();
    }
    if (state_ == State::landing) stream_.wait();
    state_ = State::idle;
  }

 private:
  enum class State { idle, travelling, landing };

  // The messages as the inner group sees them; the same blocks to several peers share a copy.
  static std::vector<Message> over_host(std::vector<Message> messages, int rank, bool direct,
                                        std::deque<Staged>& staged, Message& own) {
    std::vector<Message> result;
    for (Message& message : messages) {
      message.blocks = without_empty(std::move(message.blocks));
      if (message.blocks.empty()) continue;
      if (message.peer == rank) {
        own = std::move(message);
      } else if (direct || !any_in_device_memory(message.blocks)) {
        result.push_back(std::move(message));
      } else {
        const std::size_t bytes = message.bytes();
        auto found = std::find_if(staged.begin(), staged.end(),
                                  [&](const Staged& other) { return same_blocks(other.blocks, message.blocks); });
        if (found == staged.end()) {
          staged.emplace_back(std::move(message.blocks));
          found = std::prev(staged.end());
        }
        result.push_back({message.peer, {block_of(found->buffer.data(), bytes)}});
      }
    }
    return result;
  }
  void take_up() {
    for (const Staged& staged : in_) unpack(staged.buffer.data(), staged.blocks, stream_);
    landed_.record(stream_);
    state_ = State::landing;
  }

  const char* name_;
  CudaStream stream_;
  CudaEvent landed_;
  std::deque<Staged> out_, in_;
  Message own_out_, own_in_;
  Staging own_{Staging::Place::device};
  std::unique_ptr<Exchange> inner_;
  State state_ = State::idle;
};

class ThroughHost final : public ForwardingCommunicator {
 public:
  explicit ThroughHost(std::unique_ptr<Communicator> inner)
      : ForwardingCommunicator(std::move(inner)), direct_(ranks::reads_device_memory()) {}

  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    return std::make_unique<StagedExchange>(name, *inner_, direct_, std::move(sends), std::move(receives));
  }
  void send(int peer, const void* data, std::size_t bytes) override { add(peer, const_cast<void*>(data), bytes, true); }
  void receive(int peer, void* data, std::size_t bytes) override { add(peer, data, bytes, false); }

  // Nothing leaves before this, so that messages between two ranks keep their order, wherever they lie.
  void wait(const char* name) override {
    for (const Single& single : singles_)
      if (single.out && single.owns_copy) copy(single.copy->data(), single.data, single.bytes);
    stream_.wait();
    for (const Single& single : singles_) {
      void* at = single.copy != nullptr ? single.copy->data() : single.data;
      if (single.out)
        inner_->send(single.peer, at, single.bytes);
      else
        inner_->receive(single.peer, at, single.bytes);
    }
    inner_->wait(name);
    for (const Single& single : singles_)
      if (!single.out && single.copy != nullptr) copy(single.data, single.copy->data(), single.bytes);
    stream_.wait();
    singles_.clear();
    used_ = 0;
  }

  std::unique_ptr<Communicator> split(int color, int key) override { return through_host(inner_->split(color, key)); }
  std::unique_ptr<Communicator> split_by_node() override { return through_host(inner_->split_by_node()); }

 private:
  struct Single {
    int peer;
    void* data;
    std::size_t bytes;
    bool out;
    Staging* copy;   // null: the data go as they are
    bool owns_copy;  // false: the copy is that of an earlier message with the same data
  };
  void add(int peer, void* data, std::size_t bytes, bool out) {
    if (bytes == 0) return;
    Single single{peer, data, bytes, out, nullptr, false};
    if (!direct_ && is_device_memory(data)) {
      const auto same = std::find_if(singles_.begin(), singles_.end(), [&](const Single& other) {
        return out && other.out && other.data == data && other.bytes == bytes;
      });
      single.owns_copy = same == singles_.end();
      single.copy = single.owns_copy ? &next_copy(bytes) : same->copy;
    }
    singles_.push_back(single);
  }
  Staging& next_copy(std::size_t bytes) {
    if (used_ == copies_.size()) copies_.emplace_back(Staging::Place::pinned_host);
    Staging& copy = copies_[used_++];
    copy.reserve(bytes);
    return copy;
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copying a message");
  }

  bool direct_;
  CudaStream stream_;
  std::vector<Single> singles_;
  std::deque<Staging> copies_;  // by their turn between two waits
  std::size_t used_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> through_host(std::unique_ptr<Communicator> group) {
  return std::make_unique<ThroughHost>(std::move(group));
}

}  // namespace sestina
