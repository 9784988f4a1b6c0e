#include "io/checkpoint/field_stream.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/memory/state_field.hpp"
#include "io/store/finite.hpp"

namespace sestina {

void FieldStream::begin(std::vector<StateField> fields) {
  fields_ = std::move(fields);
  std::erase_if(fields_, [](const StateField& field) { return field.bytes() == 0; });
  next_ = at_ = 0;
  problem_.clear();
  const Lock lock(mutex_);
  closed_ = false;
}

bool FieldStream::feed(const CopyFromDevice& copy) try {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::seconds(1);
  while (next_ < fields_.size()) {
    Bytes piece;
    {
      Lock lock(mutex_);
      const auto may_fill = [this] { return closed_ || !empty_.empty() || pieces_ < most; };
      if (!changed_.wait_until(lock, until, may_fill)) return true;
      if (closed_) break;
      if (empty_.empty()) {
        ++pieces_;
      } else {
        piece = std::move(empty_.front());
        empty_.pop_front();
      }
    }
    fill(piece, copy);
    Lock lock(mutex_);
    if (!closed_) full_.push_back(std::move(piece));
    if (!problem_.empty()) close(lock, problem_);
    changed_.notify_all();
    if (closed_) break;
    if (next_ < fields_.size() && Clock::now() >= until) return true;
  }
  pin_.reset();
  return false;
} catch (const std::exception& error) {
  pin_.reset();
  Lock lock(mutex_);
  close(lock, error.what());
  throw;
}

// Pins the block that the next byte lies in. The one after it, of this field or of the next one, is asked for while
// this one is copied.
void FieldStream::pin_block() {
  const StateField& field = fields_[next_];
  const std::byte* const at = static_cast<const std::byte*>(field.data) + at_;
  pin_.emplace(field.pager, at, Pager::Need::reading);
  const auto block = field.pager != nullptr ? field.pager->block_of(at) : std::span<const std::byte>();
  const auto left = static_cast<std::size_t>(block.data() + block.size() - at);
  pinned_ = block.empty() ? field.bytes() : std::min(field.bytes(), at_ + left);
  if (pinned_ < field.bytes())
    field.pager->want(block.data() + block.size());
  else if (next_ + 1 < fields_.size() && fields_[next_ + 1].pager != nullptr)
    fields_[next_ + 1].pager->want(fields_[next_ + 1].data);
}

void FieldStream::fill(Bytes& piece, const CopyFromDevice& copy) {
  const StateField& field = fields_[next_];
  if (at_ == 0 || at_ == pinned_) pin_block();
  piece.resize(std::min(field_piece_bytes, pinned_ - at_));
  const StateField bytes = bytes_of(field, at_, piece.size());
  if (field.on_device) {
    SESTINA_REQUIRE(copy, "{} lies on the device and cannot be copied", field.path);
    copy(bytes, piece.data());
  } else {
    std::memcpy(piece.data(), bytes.data, piece.size());
  }
  if (const auto index = first_nonfinite(field.dtype, piece.data(), piece.size()))
    problem_ = nonfinite_text(field, piece.data() + *index * size_of(field.dtype), at_ / size_of(field.dtype) + *index);
  if (field.of_places) {
    StateField places = field;
    places.row_end = places.row_begin + static_cast<std::int64_t>(piece.size() / size_of(field.dtype));
    places_to_whole(places, piece.data());
  }
  move_on(piece.size());
}

void FieldStream::move_on(std::size_t bytes) {
  at_ += bytes;
  if (at_ < fields_[next_].bytes()) return;
  pin_.reset();
  at_ = 0;
  ++next_;
}

void FieldStream::give_up() {
  pin_.reset();
  Lock lock(mutex_);
  if (next_ < fields_.size()) close(lock, "the run ended before all of it was there");
}

void FieldStream::take(const StateField& field, const std::function<void(const void*, std::size_t)>& use) {
  for (std::size_t left = field.bytes(); left > 0;) {
    Lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !full_.empty(); });
    if (closed_) fail(ExitCode::io_error, "{}", why_);
    Bytes piece = std::move(full_.front());
    full_.pop_front();
    lock.unlock();
    SESTINA_REQUIRE(piece.size() <= left, "{}: {} bytes are left, got {}", field.path, left, piece.size());
    use(piece.data(), piece.size());
    left -= piece.size();
    lock.lock();
    empty_.push_back(std::move(piece));
    changed_.notify_all();
  }
}

void FieldStream::end() {
  Lock lock(mutex_);
  close(lock, "the save has ended");
  full_.clear();
  empty_.clear();
  pieces_ = 0;
}

// Closes the stream; the first reason stays.
void FieldStream::close(Lock&, const std::string& why) {
  if (!std::exchange(closed_, true)) why_ = why;
  changed_.notify_all();
}

}  // namespace sestina
