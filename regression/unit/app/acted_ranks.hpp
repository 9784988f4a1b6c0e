// Thousands of ranks acted in one thread: each runs on a stack of its own and gives way to the next one wherever it
// waits for others. What they say to each other is counted; the collectives are those of a library, so a call counts as
// one.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// What one rank took part in.
struct SaidByRank {
  std::int64_t calls = 0;         // of collectives
  std::int64_t buffer_bytes = 0;  // of their buffers
  std::int64_t messages = 0;      // sent and received one by one
  std::int64_t message_bytes = 0;
};

class ActedRanks {
 public:
  // f(rank's group of all ranks) on every rank; the first exception of a rank is thrown.
  std::vector<SaidByRank> run(int ranks, const std::function<void(std::unique_ptr<Communicator>)>& f);
  void give_way() { swapcontext(&fibers_[current_].context, &scheduler_); }
  SaidByRank& said() { return said_[current_]; }

 private:
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    bool done = false;
  };
  static void enter(unsigned high, unsigned low);

  std::vector<Fiber> fibers_;
  std::vector<SaidByRank> said_;
  std::size_t current_ = 0;
  ucontext_t scheduler_{};
  std::function<void(int)> body_;
  std::exception_ptr failure_;
};

// What the ranks of a group share.
struct ActedGroup {
  struct Meeting {
    std::vector<std::vector<char>> parts;  // by rank
    std::size_t there = 0;
    std::vector<std::shared_ptr<ActedGroup>> groups;  // by rank, of a split
    std::vector<int> ranks;
  };
  explicit ActedGroup(std::size_t size) : size(size), meeting(fresh()), mail(size) {}
  std::shared_ptr<Meeting> fresh() const {
    auto made = std::make_shared<Meeting>();
    made->parts.resize(size);
    return made;
  }
  std::size_t size;
  std::shared_ptr<Meeting> meeting;
  std::vector<std::map<int, std::deque<std::vector<char>>>> mail;  // by receiver, then by sender
};

class ActedCommunicator final : public Communicator {
 public:
  ActedCommunicator(ActedRanks& ranks, std::shared_ptr<ActedGroup> group, int rank)
      : ranks_(ranks), group_(std::move(group)), rank_(rank) {}
  int size() const override { return static_cast<int>(group_->size); }
  int rank() const override { return rank_; }

  void barrier() override {
    meet({}, [](ActedGroup::Meeting&) {});
  }
  void all_reduce(double* data, std::size_t n, Reduction reduction) override {
    const auto met = meet(bytes_of(data, n * sizeof *data), [&](ActedGroup::Meeting& meeting) {
      std::vector<double> sum(n), part(n);
      for (std::size_t r = 0; r < group_->size; ++r) {
        std::memcpy(part.data(), meeting.parts[r].data(), n * sizeof(double));
        for (std::size_t i = 0; i < n; ++i)
          sum[i] = r == 0                        ? part[i]
                   : reduction == Reduction::sum ? sum[i] + part[i]
                   : reduction == Reduction::max ? std::max(sum[i], part[i])
                                                 : std::min(sum[i], part[i]);
      }
      meeting.parts[0] = bytes_of(sum.data(), n * sizeof(double));
    });
    std::memcpy(data, met->parts[0].data(), n * sizeof *data);
  }
  void broadcast(void* data, std::size_t bytes, int root) override {
    const auto met = meet(rank_ == root ? bytes_of(data, bytes) : std::vector<char>(), [](ActedGroup::Meeting&) {});
    std::memcpy(data, met->parts[static_cast<std::size_t>(root)].data(), bytes);
    ranks_.said().buffer_bytes += rank_ == root ? 0 : static_cast<std::int64_t>(bytes);
  }
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    const auto met = meet(bytes_of(mine, bytes), [&](ActedGroup::Meeting& meeting) {
      std::vector<char> whole;
      for (const auto& part : meeting.parts) whole.insert(whole.end(), part.begin(), part.end());
      meeting.parts[0] = std::move(whole);
    });
    std::memcpy(all, met->parts[0].data(), bytes * group_->size);
    ranks_.said().buffer_bytes += static_cast<std::int64_t>(bytes * (group_->size - 1));
  }

  std::unique_ptr<Exchange> make_exchange(const char*, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    struct Acted final : Exchange {
      Acted(ActedCommunicator& group, std::vector<Message> out, std::vector<Message> in)
          : group(group), sends(std::move(out)), receives(std::move(in)) {}
      void start() override {
        for (const Message& message : sends) group.post(message);
      }
      bool test() override { return false; }
      void finish() override {
        for (const Message& message : receives) group.take(message);
      }
      ActedCommunicator& group;
      std::vector<Message> sends, receives;
    };
    return std::make_unique<Acted>(*this, std::move(sends), std::move(receives));
  }
  std::unique_ptr<Exchange> make_all_gather(const char*, const void*, std::size_t, void*) override {
    SESTINA_REQUIRE(false, "acted ranks gather at once");
    return nullptr;
  }
  void send(int, const void*, std::size_t) override { SESTINA_REQUIRE(false, "acted ranks exchange messages"); }
  void receive(int, void*, std::size_t) override { SESTINA_REQUIRE(false, "acted ranks exchange messages"); }
  void wait(const char*) override {}

  std::unique_ptr<Communicator> split(int color, int key) override {
    const int mine[2] = {color, key};
    const auto met = meet(bytes_of(mine, sizeof mine), [&](ActedGroup::Meeting& meeting) { form_groups(meeting); });
    const auto me = static_cast<std::size_t>(rank_);
    return std::make_unique<ActedCommunicator>(ranks_, met->groups[me], met->ranks[me]);
  }
  std::unique_ptr<Communicator> split_by_node() override { return split(0, rank_); }

 private:
  static std::vector<char> bytes_of(const void* data, std::size_t bytes) {
    const char* begin = static_cast<const char*>(data);
    return {begin, begin + bytes};
  }
  // Waits for all ranks of the group; the last one to come works on what they brought.
  template <class Work>
  std::shared_ptr<ActedGroup::Meeting> meet(std::vector<char> mine, Work work) {
    ++ranks_.said().calls;
    ranks_.said().buffer_bytes += static_cast<std::int64_t>(mine.size());
    const std::shared_ptr<ActedGroup::Meeting> meeting = group_->meeting;
    meeting->parts[static_cast<std::size_t>(rank_)] = std::move(mine);
    if (meeting->there + 1 == group_->size) {
      group_->meeting = group_->fresh();
      work(*meeting);
    }
    ++meeting->there;
    while (meeting->there < group_->size) ranks_.give_way();
    return meeting;
  }
  static void form_groups(ActedGroup::Meeting& meeting) {
    std::map<int, std::vector<std::pair<int, int>>> members;  // by colour: key, rank
    for (std::size_t r = 0; r < meeting.parts.size(); ++r) {
      int said[2];
      std::memcpy(said, meeting.parts[r].data(), sizeof said);
      members[said[0]].emplace_back(said[1], static_cast<int>(r));
    }
    meeting.groups.resize(meeting.parts.size());
    meeting.ranks.resize(meeting.parts.size());
    for (auto& [color, list] : members) {
      std::sort(list.begin(), list.end());
      const auto group = std::make_shared<ActedGroup>(list.size());
      for (std::size_t i = 0; i < list.size(); ++i) {
        meeting.groups[static_cast<std::size_t>(list[i].second)] = group;
        meeting.ranks[static_cast<std::size_t>(list[i].second)] = static_cast<int>(i);
      }
    }
  }
  void count(const Message& message) {
    ++ranks_.said().messages;
    ranks_.said().message_bytes += static_cast<std::int64_t>(message.bytes());
  }
  void post(const Message& message) {
    std::vector<char> content;
    for (const Block& block : message.blocks) {
      const auto part = bytes_of(block.data, block.bytes());
      content.insert(content.end(), part.begin(), part.end());
    }
    count(message);
    group_->mail[static_cast<std::size_t>(message.peer)][rank_].push_back(std::move(content));
  }
  void take(const Message& message) {
    auto& letters = group_->mail[static_cast<std::size_t>(rank_)][message.peer];
    while (letters.empty()) ranks_.give_way();
    const char* from = letters.front().data();
    for (const Block& block : message.blocks) {
      std::memcpy(block.data, from, block.bytes());
      from += block.bytes();
    }
    letters.pop_front();
    count(message);
  }

  ActedRanks& ranks_;
  std::shared_ptr<ActedGroup> group_;
  int rank_;
};

inline void ActedRanks::enter(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<ActedRanks*>(static_cast<std::uintptr_t>(high) << 32 | low);
  const std::size_t me = self->current_;
  try {
    self->body_(static_cast<int>(me));
  } catch (...) {
    if (!self->failure_) self->failure_ = std::current_exception();
  }
  self->fibers_[me].done = true;
  self->give_way();
}

inline std::vector<SaidByRank> ActedRanks::run(int ranks, const std::function<void(std::unique_ptr<Communicator>)>& f) {
  constexpr std::size_t stack_bytes = 128 << 10;
  const auto n = static_cast<std::size_t>(ranks);
  const auto world = std::make_shared<ActedGroup>(n);
  body_ = [&](int rank) { f(std::make_unique<ActedCommunicator>(*this, world, rank)); };
  fibers_ = std::vector<Fiber>(n);
  said_.assign(n, {});
  const auto address = reinterpret_cast<std::uintptr_t>(this);
  for (Fiber& fiber : fibers_) {
    fiber.stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = stack_bytes;
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&ActedRanks::enter), 2,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  }
  for (std::size_t left = n; left > 0 && !failure_;)
    for (current_ = 0; current_ < n; ++current_) {
      if (fibers_[current_].done) continue;
      swapcontext(&scheduler_, &fibers_[current_].context);
      left -= fibers_[current_].done ? 1 : 0;
    }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return said_;
}

}  // namespace sestina
