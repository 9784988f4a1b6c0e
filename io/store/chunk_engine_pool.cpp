#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "io/store/chunk_engine.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {

namespace {

// A queue, first come, first served, in a ring of as many places as there are slots.
template <class T>
class Queue {
 public:
  explicit Queue(std::size_t most) : items_(most) {}
  bool empty() const { return count_ == 0; }
  void push(const T& item) { items_[(first_ + count_++) % items_.size()] = item; }
  T pop() {
    const T item = items_[first_];
    first_ = (first_ + 1) % items_.size();
    --count_;
    return item;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0, count_ = 0;
};

class ChunkPool final : public ChunkEngine {
 public:
  ChunkPool(int file, const ChunkBuffers& buffers, int threads)
      : file_(file), buffers_(buffers), asked_(buffers.slots), ended_(buffers.slots) {
    for (int i = 0; i < threads; ++i) threads_.push_back(quiet_thread([this] { work(); }));
  }
  ~ChunkPool() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      for_threads_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;

  void submit(const Chunk& chunk) override {
    const std::lock_guard lock(mutex_);
    asked_.push(chunk);
    ++under_way_;
    for_threads_.notify_one();
  }
  bool take(Done& done, bool wait) override {
    std::unique_lock lock(mutex_);
    if (wait) for_taker_.wait(lock, [this] { return !ended_.empty() || under_way_ == 0; });
    if (ended_.empty()) return false;
    done = ended_.pop();
    --under_way_;
    return true;
  }
  std::string name() const override { return fmt::format("{} threads", threads_.size()); }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      for_threads_.wait(lock, [this] { return stopping_ || !asked_.empty(); });
      if (asked_.empty()) return;
      const Chunk chunk = asked_.pop();
      lock.unlock();
      std::byte* memory = buffers_.of(chunk);
      const auto offset = static_cast<off_t>(chunk.offset);
      const int file = chunk.file < 0 ? file_ : chunk.file;
      const ssize_t moved =
          chunk.writes ? ::pwrite(file, memory, chunk.bytes, offset) : ::pread(file, memory, chunk.bytes, offset);
      const std::int64_t result = moved < 0 ? -std::int64_t{errno} : moved;
      lock.lock();
      ended_.push({chunk.slot, result});
      for_taker_.notify_one();
    }
  }

  int file_;
  ChunkBuffers buffers_;
  std::mutex mutex_;
  std::condition_variable for_threads_, for_taker_;
  Queue<Chunk> asked_;
  Queue<Done> ended_;
  int under_way_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ChunkEngine> make_chunk_pool(int file, const ChunkBuffers& buffers, int depth) {
  constexpr int most = 64;
  return std::make_unique<ChunkPool>(file, buffers, std::min(depth, most));
}

}  // namespace sestina
