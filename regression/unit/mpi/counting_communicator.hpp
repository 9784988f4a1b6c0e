// A communicator that counts what a step really does, in the words of the plan: of each kind, calls and bytes of the
// whole buffers, worked out from the messages that a rank sends and receives.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "parallel/comm/communicator.hpp"

namespace sestina {

struct CountedKind {
  std::int64_t count = 0, bytes = 0;
  std::int64_t to_others = 0;  // bytes that went to other ranks
};

// By group, operation and what, with blanks between them. all_to_all: bytes are those that this rank sends, to itself
// too, and add up over the group. Gradients that are reduced: in the same way, in all rounds, to others alone.
using CountedKinds = std::map<std::string, CountedKind>;

class CountingCommunicator final : public Communicator {
 public:
  // homes: whole gradients go to one home each, not to everybody. `counts` must outlive it.
  CountingCommunicator(Communicator& group, std::string name, bool homes, CountedKinds& counts)
      : group_(group), name_(std::move(name)), homes_(homes), counts_(counts) {}
  int size() const override { return group_.size(); }
  int rank() const override { return group_.rank(); }
  void barrier() override { group_.barrier(); }
  void broadcast(void* data, std::size_t bytes, int root) override { group_.broadcast(data, bytes, root); }

  void all_reduce(double* data, std::size_t n, Reduction reduction) override {
    add("all_reduce", name_ == "all" ? "largest scores" : "loss and norm", n * sizeof(double), 1);
    group_.all_reduce(data, n, reduction);
  }
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    add("all_gather", "norm", bytes * ranks(), bytes);
    group_.all_gather(mine, bytes, all);
  }

  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    std::size_t to_others = 0, to_me = 0, from_others = 0;
    for (const Message& message : sends) (message.peer == rank() ? to_me : to_others) += message.bytes();
    for (const Message& message : receives)
      if (message.peer != rank()) from_others += message.bytes();
    const std::string what = name;
    const std::size_t gathered = from_others + to_others / others();
    Counted::Kind kind{"all_to_all", "updates", to_others + to_me, to_others};
    if (what == "gradients") kind = {"reduce_scatter", what, to_others, to_others};
    if (what == "further gradients") kind = {"reduce_scatter", "gradients", to_others, to_others, 0};  // rounds, chunks
    if (what == "summed gradients") kind = {"all_gather", "gradients", gathered, to_others};
    if (what == "weights") kind = {"all_gather", what, gathered, to_others};
    if (what == "whole gradients" && homes_) kind.what = what;
    if (what == "whole gradients" && !homes_) kind = {"all_gather", what, gathered, to_others};
    return std::make_unique<Counted>(group_.make_exchange(name, std::move(sends), std::move(receives)), *this, kind);
  }

  std::unique_ptr<Exchange> make_all_gather(const char* name, const void* mine, std::size_t bytes, void* all) override {
    return group_.make_all_gather(name, mine, bytes, all);
  }
  void send(int peer, const void* data, std::size_t bytes) override {
    sent_ += bytes;
    group_.send(peer, data, bytes);
  }
  void receive(int peer, void* data, std::size_t bytes) override {
    received_ += bytes;
    group_.receive(peer, data, bytes);
  }
  void wait(const char* name) override {
    group_.wait(name);
    const std::string what = name;
    const auto starts = [&](const char* begin) { return what.rfind(begin, 0) == 0; };
    if (starts("gather over")) add("all_gather", "activations", received_ + sent_ / others(), sent_);
    if (starts("sum of rows")) add("reduce_scatter", "activations", sent_ + received_ / others(), sent_);
    if (starts("sum over")) add("all_reduce", "sums", sent_ / others(), sent_);
    if (starts("parts of a sum")) add("all_reduce", "sums", sent_ + received_ / others(), sent_);
    sent_ = received_ = 0;
  }

  // The grid splits the group of all ranks into the data-parallel groups, then into the tensor-parallel ones.
  std::unique_ptr<Communicator> split(int color, int key) override {
    const std::string part = name_ != "all" ? name_ : splits_++ == 0 ? "dp" : "tp";
    parts_.push_back(group_.split(color, key));
    return std::make_unique<CountingCommunicator>(*parts_.back(), part, homes_, counts_);
  }
  std::unique_ptr<Communicator> split_by_node() override { return group_.split_by_node(); }

 private:
  struct Counted final : Exchange {
    struct Kind {
      std::string operation, what;
      std::size_t bytes, to_others;
      std::int64_t count = 1;
    };
    Counted(std::unique_ptr<Exchange> exchange, CountingCommunicator& group, Kind kind)
        : exchange(std::move(exchange)), group(group), kind(std::move(kind)) {}
    void start() override {
      group.add(kind.operation, kind.what, kind.bytes, kind.to_others, kind.count);
      exchange->start();
    }
    bool test() override { return exchange->test(); }
    void finish() override { exchange->finish(); }
    std::unique_ptr<Exchange> exchange;
    CountingCommunicator& group;
    Kind kind;
  };

  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  std::size_t others() const { return ranks() > 1 ? ranks() - 1 : 1; }
  void add(const std::string& operation, const std::string& what, std::size_t bytes, std::size_t to_others,
           std::int64_t count = 1) {
    if (size() == 1) return;
    CountedKind& kind = counts_[name_ + " " + operation + " " + what];
    kind.count += count;
    kind.bytes += static_cast<std::int64_t>(bytes);
    kind.to_others += static_cast<std::int64_t>(to_others);
  }

  Communicator& group_;
  std::string name_;
  bool homes_;
  CountedKinds& counts_;
  std::vector<std::unique_ptr<Communicator>> parts_;
  std::size_t sent_ = 0, received_ = 0;
  int splits_ = 0;
};

}  // namespace sestina
