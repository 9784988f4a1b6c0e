#include "io/tokens/data_loader.hpp"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {

// One batch waits in `ready` while the caller works on the one it swapped out; the thread fills it again when it is
// empty.
struct DataLoader::State {
  const SampleSet& set;
  const int batch, sequence;
  const BatchPattern pattern;
  std::uint64_t cursor;      // the caller's cursor
  std::uint64_t handed = 0;  // batches that the caller has taken
  std::mutex mutex;
  std::condition_variable changed;
  Batch ready;
  bool full = false, stopping = false;
  std::exception_ptr error;
  std::thread thread;

  State(const SampleSet& set_, int batch_, int sequence_, std::uint64_t cursor_, BatchPattern pattern_)
      : set(set_), batch(batch_), sequence(sequence_), pattern(pattern_), cursor(cursor_) {}

  // Returns the first sample of the batch after batch number `number`, which begins at `sample`.
  std::uint64_t next_sample(std::uint64_t sample, std::uint64_t number) const {
    const bool last = (number + 1) % static_cast<std::uint64_t>(pattern.count) == 0;
    return sample + static_cast<std::uint64_t>(batch) + (last ? pattern.skip : 0);
  }

  void fill(std::uint64_t sample) {
    const auto rows = static_cast<std::size_t>(batch), length = static_cast<std::size_t>(sequence);
    ready.batch = batch;
    ready.sequence = sequence;
    ready.tokens.resize(rows * (length + 1));
    ready.first_key.resize(rows * length);
    for (std::size_t row = 0; row < rows; ++row)
      set.read(sample + row, ready.tokens.data() + row * (length + 1), ready.first_key.data() + row * length);
  }

  void run(std::uint64_t sample) {
    for (std::uint64_t number = 0;; sample = next_sample(sample, number++)) {
      std::exception_ptr caught;
      try {
        fill(sample);
      } catch (...) {
        caught = std::current_exception();
      }
      std::unique_lock lock(mutex);
      full = true;
      error = caught;
      changed.notify_all();
      if (caught) return;
      changed.wait(lock, [&] { return stopping || !full; });
      if (stopping) return;
    }
  }
};

DataLoader::DataLoader(const SampleSet& set, int batch, int sequence, std::uint64_t cursor, BatchPattern pattern)
    : state_(std::make_unique<State>(set, batch, sequence, cursor, pattern)) {
  SESTINA_REQUIRE(batch > 0 && sequence == set.sequence(), "batch {}, sequence {}, the set's {}", batch, sequence,
                  set.sequence());
  if (set.windows() < static_cast<std::uint64_t>(batch))
    fail(ExitCode::bad_data,
         "data: {} windows of {} tokens; a batch needs {}: more text, or a lower data.sequence_length or "
         "train.global_batch\n{}",
         set.windows(), sequence, batch, set.description());
  state_->thread = quiet_thread([state = state_.get()] { state->run(state->cursor); });
}

DataLoader::~DataLoader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

void DataLoader::next(Batch& batch) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&] { return state.full; });
  if (state.error) std::rethrow_exception(state.error);
  std::swap(batch, state.ready);
  state.full = false;
  state.cursor = state.next_sample(state.cursor, state.handed++);
  lock.unlock();
  state.changed.notify_all();
}

std::uint64_t DataLoader::cursor() const { return state_->cursor; }

}  // namespace sestina
