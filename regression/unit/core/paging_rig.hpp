// A store in memory whose disk is slow, fails and hangs on demand, for tests of what is paged out to it.
#pragma once
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/memory/pager.hpp"

namespace sestina::reference {

class MemoryStore final : public BlockStore {
 public:
  std::size_t add(const std::string& name, std::size_t bytes) override {
    names.push_back(name);
    kept.emplace_back(bytes);
    return kept.size() - 1;
  }
  void open() override { opened = true; }
  void serve(Queue& queue) override {
    while (true) {
      Transfer* next = queue.next(false);
      if (next == nullptr) next = queue.next(true);
      if (next == nullptr) return;
      if (before) before();
      move(*next);
      queue.ended(*next);
    }
  }
  void move(Transfer& t) {
    t.error.clear();
    t.moved = 0;
    if (fails && fails(t)) {
      t.error = names[t.block] + ": no";
      t.code = ExitCode::io_error;
      return;
    }
    std::vector<std::byte>& place = kept[t.block];
    if (t.same) {
      moved.bytes_same += place.size();
      if (std::memcmp(place.data(), t.memory, place.size()) != 0) ++lost;
      return;
    }
    if (t.writes) {
      std::memcpy(place.data(), t.memory, place.size());
      written.insert(names[t.block]);
    } else {
      std::memcpy(t.memory, place.data(), place.size());
    }
    (t.writes ? moved.bytes_written : moved.bytes_read) += t.moved = place.size();
  }
  Traffic traffic() const override { return moved; }
  std::string describe() const override { return "memory"; }
  bool is_in_memory(std::size_t) const override { return in_memory; }
  void warn(const std::string& message) const override { warnings.push_back(message); }

  std::vector<std::string> names;
  std::vector<std::vector<std::byte>> kept;
  std::function<void()> before;
  std::function<bool(const Transfer&)> fails;
  Traffic moved;
  int lost = 0;                   // blocks said to be the same, and were not
  std::set<std::string> written;  // names of blocks
  bool opened = false;
  bool in_memory = false;  // what is_in_memory() says
  mutable std::vector<std::string> warnings;
};

}  // namespace sestina::reference
