// The functions that all groups share, and the group of one rank.
#include "parallel/comm/communicator.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"

namespace sestina {

std::size_t Message::bytes() const {
  std::size_t sum = 0;
  for (const Block& block : blocks) sum += block.bytes();
  return sum;
}

void Communicator::broadcast(std::string& text, int root) {
  std::uint64_t length = text.size();
  broadcast(&length, sizeof length, root);
  text.resize(length);
  if (length > 0) broadcast(text.data(), length, root);
}

std::vector<std::string> Communicator::all_gather(const std::string& mine) {
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size()));
  all_gather(&length, sizeof length, lengths.data());
  const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(lengths.size());
  if (longest == 0) return texts;
  std::string padded = mine, all(longest * lengths.size(), '\0');
  padded.resize(longest);
  all_gather(padded.data(), longest, all.data());
  for (std::size_t i = 0; i < texts.size(); ++i) texts[i] = all.substr(i * longest, lengths[i]);
  return texts;
}

namespace {

class LoneExchange final : public Exchange {
 public:
  LoneExchange(std::vector<Message> sends, std::vector<Message> receives)
      : sends_(std::move(sends)), receives_(std::move(receives)) {
    SESTINA_REQUIRE(sends_.size() == receives_.size() && sends_.size() <= 1, "{} messages out, {} in, on one rank",
                    sends_.size(), receives_.size());
  }
  void start() override {
    if (!sends_.empty()) copy_blocks(sends_[0].blocks, receives_[0].blocks);
  }
  bool test() override { return true; }
  void finish() override {}

 private:
  std::vector<Message> sends_, receives_;
};

class LoneGather final : public Exchange {
 public:
  LoneGather(const void* mine, std::size_t bytes, void* all) : mine_(mine), bytes_(bytes), all_(all) {}
  void start() override { std::memcpy(all_, mine_, bytes_); }
  bool test() override { return true; }
  void finish() override {}

 private:
  const void* mine_;
  std::size_t bytes_;
  void* all_;
};

class LoneCommunicator final : public Communicator {
 public:
  int size() const override { return 1; }
  int rank() const override { return 0; }
  void barrier() override {}
  void all_reduce(double*, std::size_t, Reduction) override {}
  void broadcast(void*, std::size_t, int) override {}
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    if (bytes > 0) std::memcpy(all, mine, bytes);
  }
  std::unique_ptr<Exchange> make_exchange(const char*, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    return std::make_unique<LoneExchange>(std::move(sends), std::move(receives));
  }
  std::unique_ptr<Exchange> make_all_gather(const char*, const void* mine, std::size_t bytes, void* all) override {
    return std::make_unique<LoneGather>(mine, bytes, all);
  }
  void send(int, const void*, std::size_t) override { SESTINA_REQUIRE(false, "one rank cannot send"); }
  void receive(int, void*, std::size_t) override { SESTINA_REQUIRE(false, "one rank cannot receive"); }
  void wait(const char*) override {}
  std::unique_ptr<Communicator> split(int, int) override { return make_lone_communicator(); }
  std::unique_ptr<Communicator> split_by_node() override { return make_lone_communicator(); }
};

}  // namespace

std::unique_ptr<Communicator> make_lone_communicator() { return std::make_unique<LoneCommunicator>(); }

namespace {

// Writes an outcome as text that travels: "" for success, else code and message.
std::string outcome_of(const std::function<void()>& f) {
  try {
    f();
    return "";
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    return fmt::format("{} {}", static_cast<int>(failure.code), failure.message);
  }
}

[[noreturn]] void throw_outcome(const std::string& outcome, const std::string& whose) {
  int code = 0;
  const auto end = std::from_chars(outcome.data(), outcome.data() + outcome.size(), code).ptr;
  throw AgreedError(static_cast<ExitCode>(code), whose + std::string(end + 1));
}

}  // namespace

void agree(Communicator& group, const std::function<void()>& f) {
  if (group.size() == 1) return f();
  const std::string mine = outcome_of(f);
  call_roll(group, "agreement");
  const std::vector<std::string> outcomes = group.all_gather(mine);
  const bool equal = std::all_of(outcomes.begin(), outcomes.end(), [&](const auto& o) { return o == outcomes[0]; });
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    if (!outcomes[r].empty()) throw_outcome(outcomes[r], equal ? "" : fmt::format("rank {}: ", r));
}

void call_roll(Communicator& group, const char* name) {
  const bool first = group.rank() == 0;
  std::vector<char> words(static_cast<std::size_t>(group.size()));
  std::vector<Message> peers;
  for (int peer = first ? 1 : 0; peer < (first ? group.size() : 1); ++peer)
    peers.push_back({peer, {block_of(&words[static_cast<std::size_t>(peer)], 1)}});
  const std::vector<Message> none;
  for (const bool to_first : {true, false}) {
    const bool sends = to_first != first;
    const auto exchange = group.make_exchange(name, sends ? peers : none, sends ? none : peers);
    exchange->start();
    exchange->finish();
  }
}

}  // namespace sestina
