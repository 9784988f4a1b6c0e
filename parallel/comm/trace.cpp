#include "parallel/comm/trace.hpp"

#include <algorithm>
#include <utility>

namespace sestina {
namespace {

std::int64_t nanoseconds_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

Trace::Trace(std::size_t capacity) { events_.reserve(capacity); }

int Trace::add_row(std::string name) {
  rows_.push_back(std::move(name));
  return static_cast<int>(rows_.size()) - 1;
}

std::int64_t Trace::now() const { return nanoseconds_of(std::chrono::steady_clock::now()) - origin_; }

void Trace::start() {
  first_ += static_cast<Handle>(events_.size());
  events_.clear();
  dropped_ = 0;
  origin_ = 0;
  origin_ = now();
  recording_ = true;
}

void Trace::stop() {
  if (!recording_) return;
  const std::int64_t last = now();
  for (Event& event : events_)
    if (event.end < 0) event.end = last;
  recording_ = false;
}

Trace::Handle Trace::begin(int row, const char* name, std::int64_t number, Kind kind) {
  if (!recording_) return -1;
  if (events_.size() == events_.capacity()) {
    ++dropped_;
    return -1;
  }
  events_.push_back({name, number, now(), -1, row, kind});
  return first_ + static_cast<Handle>(events_.size()) - 1;
}

void Trace::end(Handle handle) {
  if (!recording_ || handle < first_) return;
  events_[static_cast<std::size_t>(handle - first_)].end = now();
}

void Trace::end_as(Handle handle, const char* name) {
  end(handle);
  if (recording_ && handle >= first_) events_[static_cast<std::size_t>(handle - first_)].name = name;
}

void Trace::count(const char* name, std::int64_t number, double value) {
  const Handle handle = begin(work_row, name, number, Kind::count);
  if (handle < 0) return;
  Event& event = events_[static_cast<std::size_t>(handle - first_)];
  event.end = event.begin;
  event.value = value;
}

void Trace::add(int row, const char* name, std::chrono::steady_clock::time_point begin,
                std::chrono::steady_clock::time_point end) {
  if (!recording_ || nanoseconds_of(end) < origin_) return;
  const Handle handle = this->begin(row, name);
  if (handle < 0) return;
  Event& event = events_[static_cast<std::size_t>(handle - first_)];
  event.begin = std::max<std::int64_t>(0, nanoseconds_of(begin) - origin_);
  event.end = nanoseconds_of(end) - origin_;
}

}  // namespace sestina
