// A device of a toy kind, whose memory the host may not touch where none is mapped, and whose work and copies go on in
// threads of their own, late: tests of state that leaves it. Blocks in unified memory hold what they held when they
// have gone, and may not be touched until they come again: such a device would compute on them where they lie, but
// slowly.
#pragma once
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "core/memory/blocks.hpp"
#include "kernels/base/error.hpp"

namespace sestina::reference {

// Work in turn, as in a stream. Who wants to know when it has come so far asks for done().
class ToyStream {
 public:
  explicit ToyStream(unsigned seed) : draw_(seed), thread_([this] { run(); }) {}
  ~ToyStream() {
    add({});
    thread_.join();
  }
  ToyStream(const ToyStream&) = delete;
  ToyStream& operator=(const ToyStream&) = delete;

  std::size_t add(std::function<void()> work) {  // its number
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    some_.notify_one();
    return ++added_;
  }
  std::size_t added() const { return added_; }
  std::size_t done() const { return done_; }
  void wait(std::size_t number) const {
    while (done_ < number) std::this_thread::sleep_for(std::chrono::microseconds(5));
  }

 private:
  void run() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        some_.wait(lock, [this] { return !work_.empty(); });
        work = std::move(work_.front());
        work_.pop_front();
      }
      if (!work) return;
      std::this_thread::sleep_for(std::chrono::microseconds(draw_() % 100));
      work();
      ++done_;
    }
  }

  std::mt19937 draw_;
  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<std::function<void()>> work_;
  std::atomic<std::size_t> added_{0}, done_{0};
  std::thread thread_;
};

class ToyDevice final : public DeviceBlocks {
 public:
  // Pages that have no memory yet: whoever touches them ends the test program.
  static std::shared_ptr<std::byte> addresses(std::size_t bytes) {
    const std::size_t whole = whole_device_pages(bytes);
    void* const at = ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    SESTINA_REQUIRE(at != MAP_FAILED, "{} bytes of addresses", whole);
    return {static_cast<std::byte*>(at), [whole](std::byte* first) { ::munmap(first, whole); }};
  }

  std::size_t whole(std::size_t bytes) const override { return whole_device_pages(bytes); }
  void add(const std::shared_ptr<std::byte>& block) override { uses[block.get()] = 0; }
  void keep(std::size_t) override {}
  void watch(void* queue) override { watched = queue; }
  void come(std::byte* block, std::size_t bytes, bool zero) override {
    const std::lock_guard lock(mutex);
    if (mapped + whole(bytes) > most) fail(ExitCode::unavailable, "the toy has no more memory");
    mapped += whole(bytes);
    largest = std::max(largest, mapped);
    ::mprotect(block, whole(bytes), PROT_READ | PROT_WRITE);
    if (unified.contains(block)) ++asked_in;
    if (zero || !unified.contains(block)) std::memset(block, zero ? 0 : 0xee, bytes);
  }
  void go(std::byte* block, std::size_t bytes) override {
    const std::lock_guard lock(mutex);
    mapped -= whole(bytes);
    if (!unified.contains(block)) ::madvise(block, whole(bytes), MADV_DONTNEED);
    ::mprotect(block, whole(bytes), PROT_NONE);
  }
  void used(const std::byte* block) override { uses.at(block) = compute.added(); }
  std::shared_ptr<std::byte> pinned(std::size_t bytes) override {
    pinned_bytes += bytes;
    return page_memory(bytes);
  }
  void start_out(int copy, const std::byte* block, std::byte* host, std::size_t bytes) override {
    const std::size_t last_use = uses.at(block);
    copied += bytes;
    const auto move = [this, last_use, block, host, bytes] {
      compute.wait(last_use);
      std::memcpy(host, block, bytes);
    };
    ends[static_cast<std::size_t>(copy)] = {&out, out.add(move)};
  }
  void start_in(int copy, const std::byte* host, std::byte* block, std::size_t bytes) override {
    copied += bytes;
    const auto move = [block, host, bytes] {
      if (bytes > 0) std::memcpy(block, host, bytes);
    };
    ends[static_cast<std::size_t>(copy)] = {&in, in.add(move)};
  }
  void start_back(int copy, const std::byte* block, std::size_t) override {
    SESTINA_REQUIRE(unified.contains(block), "a block with memory of its own");
    ++asked_back;
    ends[static_cast<std::size_t>(copy)] = {&out, out.add([this, last = uses.at(block)] { compute.wait(last); })};
  }
  bool is_done(int copy) override {
    const auto& [stream, number] = ends[static_cast<std::size_t>(copy)];
    return stream->done() >= number;
  }

  ToyStream compute{1}, in{2}, out{3};
  std::mutex mutex;
  std::size_t most = ~std::size_t{0}, mapped = 0, largest = 0, pinned_bytes = 0;
  std::map<const std::byte*, std::size_t> uses;
  std::array<std::pair<ToyStream*, std::size_t>, most_copies> ends{};
  std::set<const std::byte*> unified;                              // blocks in unified memory
  std::atomic<std::size_t> asked_in{0}, asked_back{0}, copied{0};  // of them; bytes of all copies
  void* watched = nullptr;
};

}  // namespace sestina::reference
