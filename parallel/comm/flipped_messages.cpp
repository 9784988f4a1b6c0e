#include "parallel/comm/flipped_messages.hpp"

#include <string_view>
#include <utility>

#include "kernels/base/random.hpp"

namespace sestina {
namespace {

class FlippedExchange final : public Exchange {
 public:
  FlippedExchange(std::unique_ptr<Exchange> inner, bool of_weights, std::vector<Message> receives,
                  std::shared_ptr<MessageFlip> flip)
      : inner_(std::move(inner)), of_weights_(of_weights), receives_(std::move(receives)), flip_(std::move(flip)) {}
  void start() override {
    inner_->start();
    under_way_ = true;
  }
  bool test() override { return inner_->test(); }
  void finish() override {
    inner_->finish();
    if (std::exchange(under_way_, false) && flip_->next && (flip_->next->tensor % 2 == 1) == of_weights_) flip_one();
  }

 private:
  // Flips bits of one byte of what was received.
  void flip_one() {
    std::uint64_t bytes = 0;
    for (const Message& message : receives_) bytes += message.bytes();
    std::uint64_t at = stream_of(flip_->next->place, "byte of a message") % bytes;
    for (const Message& message : receives_) {
      for (BlockCursor cursor(message.blocks); !cursor.at_end(); cursor.advance(cursor.run())) {
        if (at < cursor.run()) {
          cursor.here()[at] = static_cast<char>(cursor.here()[at] ^ mask());
          flip_->next.reset();
          return;
        }
        at -= cursor.run();
      }
    }
  }
  int mask() const {
    const int bits = std::min(flip_->next->bits, 8);
    return ((1 << bits) - 1) << (stream_of(flip_->next->place, "bit of a message") % static_cast<unsigned>(9 - bits));
  }

  std::unique_ptr<Exchange> inner_;
  bool of_weights_, under_way_ = false;
  std::vector<Message> receives_;
  std::shared_ptr<MessageFlip> flip_;
};

class FlippedGroup final : public ForwardingCommunicator {
 public:
  FlippedGroup(std::unique_ptr<Communicator> inner, std::shared_ptr<MessageFlip> flip)
      : ForwardingCommunicator(std::move(inner)), flip_(std::move(flip)) {}
  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    std::vector<Message> from_others = receives;
    std::erase_if(from_others, [&](const Message& one) { return one.peer == rank() || one.bytes() == 0; });
    std::unique_ptr<Exchange> exchange = inner_->make_exchange(name, std::move(sends), std::move(receives));
    const std::string_view what = name;
    const bool of_weights = what == "weights";
    if (from_others.empty() || (!of_weights && what != "gradients" && what != "further gradients")) return exchange;
    return std::make_unique<FlippedExchange>(std::move(exchange), of_weights, std::move(from_others), flip_);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return with_flips(inner_->split(color, key), flip_);
  }
  std::unique_ptr<Communicator> split_by_node() override { return with_flips(inner_->split_by_node(), flip_); }

 private:
  std::shared_ptr<MessageFlip> flip_;
};

}  // namespace

std::unique_ptr<Communicator> with_flips(std::unique_ptr<Communicator> group, std::shared_ptr<MessageFlip> flip) {
  return std::make_unique<FlippedGroup>(std::move(group), std::move(flip));
}

}  // namespace sestina
