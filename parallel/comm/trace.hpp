// The record of what a rank did and when: spans of computation, and exchanges from their start until they were seen
// complete, each in a row of its own, and counts of how things stand. Recording reads a clock and fills memory that was
// there before: nothing allocates. A full memory drops what comes, and counts it. On a device, spans of computation are
// those of the calls that queue it. No Kokkos.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.hpp"

namespace sestina {

class Trace {
 public:
  using Handle = std::int64_t;  // names a span; below 0: none
  // The last four are those of a block of state: it was read or written, or the step or a refresh worker waited for it.
  enum class Kind : std::uint8_t { work, wait, exchange, count, block_read, block_write, block_wait, worker_wait };
  struct Event {
    const char* name = nullptr;        // is not copied: static text, but for add()
    std::int64_t number = -1;          // the number of the block, bucket or group; -1: none; of state: the update
    std::int64_t begin = 0, end = -1;  // nanoseconds since the start; -1: not ended
    int row = 0;
    Kind kind = Kind::work;
    double value = 0;                           // the value of a count; of state: bytes
    const char *from = nullptr, *to = nullptr;  // tiers
  };
  static constexpr int work_row = 0;

  explicit Trace(std::size_t capacity);
  int add_row(std::string name);  // allocates, so call it before recording

  void start();  // forgets what was recorded; the clock starts at 0
  void stop();   // ends what is still open
  bool recording() const { return recording_; }

  Handle begin(int row, const char* name, std::int64_t number = -1, Kind kind = Kind::work);
  void end(Handle);
  void end_as(Handle, const char* name);                            // for a span whose name is known only at its end
  void count(const char* name, std::int64_t number, double value);  // holds from now on
  // Adds what another thread did and when, as far as that lies after the start. name must live until the trace is
  // written.
  void add(int row, const char* name, std::chrono::steady_clock::time_point begin,
           std::chrono::steady_clock::time_point end);

  // Adds an event of a block of state as it is given, but for its times. What was before the start is shown there, so
  // that bytes add up.
  void add(const Event&, std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end);

  const std::vector<Event>& events() const { return events_; }
  const std::vector<std::string>& rows() const { return rows_; }
  std::int64_t dropped() const { return dropped_; }

 private:
  std::int64_t now() const;

  std::vector<Event> events_;
  std::vector<std::string> rows_{"computation"};
  Handle first_ = 0;  // the handle of events_[0]; spans of earlier recordings have lower ones
  std::int64_t origin_ = 0, dropped_ = 0;
  bool recording_ = false;
};

// Spans one after another in the row of computation; with a null trace it does nothing.
class OpenSpan {
 public:
  explicit OpenSpan(Trace* trace) : trace_(trace) {}
  void begin(const char* name, std::int64_t number = -1, Trace::Kind kind = Trace::Kind::work) {
    end();
    if (trace_) handle_ = trace_->begin(Trace::work_row, name, number, kind);
  }
  void end() {
    if (handle_ >= 0) trace_->end(handle_);
    handle_ = -1;
  }

 private:
  Trace* trace_;
  Trace::Handle handle_ = -1;
};

// A span that lasts as long as this object lives.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, const char* name, std::int64_t number = -1, Trace::Kind kind = Trace::Kind::work)
      : span_(trace) {
    span_.begin(name, number, kind);
  }
  ~TraceSpan() { span_.end(); }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  OpenSpan span_;
};

// A group of ranks whose operations are seen in a trace: exchanges each in a row of its own, from their start until
// they were seen complete, and what waits for others in one row of the group.

// Returns the group as one that is traced. The trace must outlive it. label: the name of the group's row. Groups that
// are split off are traced too.
std::unique_ptr<Communicator> traced(std::unique_ptr<Communicator>, Trace&, const char* label);

}  // namespace sestina
