#include "parallel/comm/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "parallel/comm/communicator.hpp"

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

void Trace::add(const Event& given, std::chrono::steady_clock::time_point begin,
                std::chrono::steady_clock::time_point end) {
  const Handle handle = this->begin(given.row, given.name);
  if (handle < 0) return;
  Event& event = events_[static_cast<std::size_t>(handle - first_)];
  event = given;
  event.begin = std::max<std::int64_t>(0, nanoseconds_of(begin) - origin_);
  event.end = std::max<std::int64_t>(0, nanoseconds_of(end) - origin_);
}

namespace {

using SpanKind = Trace::Kind;

class TracedExchange final : public Exchange {
 public:
  TracedExchange(std::unique_ptr<Exchange> exchange, Trace& trace, const char* name, int number)
      : exchange_(std::move(exchange)),
        trace_(trace),
        name_(name),
        number_(number),
        row_(trace.add_row(fmt::format("{} {}", name, number))) {}
  void start() override {
    open_ = trace_.begin(row_, name_, number_, SpanKind::exchange);
    exchange_->start();
  }
  bool test() override {
    const bool complete = exchange_->test();
    if (complete) close();
    return complete;
  }
  void finish() override {
    if (open_ < 0) return exchange_->finish();
    const TraceSpan wait(&trace_, name_, number_, SpanKind::wait);
    exchange_->finish();
    close();
  }
  void finish_in(Queue queue) override {
    if (open_ < 0) return exchange_->finish_in(queue);
    const TraceSpan wait(&trace_, name_, number_, SpanKind::wait);
    exchange_->finish_in(queue);
    close();
  }

 private:
  void close() {
    trace_.end(open_);
    open_ = -1;
  }

  std::unique_ptr<Exchange> exchange_;
  Trace& trace_;
  const char* name_;
  int number_ = 0, row_ = 0;
  Trace::Handle open_ = -1;
};

class TracedCommunicator final : public ForwardingCommunicator {
 public:
  TracedCommunicator(std::unique_ptr<Communicator> group, Trace& trace, const char* label)
      : ForwardingCommunicator(std::move(group)), trace_(trace), label_(label), row_(trace.add_row(label)) {}

  void barrier() override {
    during("barrier", [&] { inner_->barrier(); });
  }
  void all_reduce(double* data, std::size_t n, Reduction reduction) override {
    during("all_reduce", [&] { inner_->all_reduce(data, n, reduction); });
  }
  void broadcast(void* data, std::size_t bytes, int root) override {
    during("broadcast", [&] { inner_->broadcast(data, bytes, root); });
  }
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    during("all_gather", [&] { inner_->all_gather(mine, bytes, all); });
  }
  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    return traced(name, inner_->make_exchange(name, std::move(sends), std::move(receives)));
  }
  std::unique_ptr<Exchange> make_reduce_scatter(const char* name, const std::vector<Block>& owned) override {
    return traced(name, inner_->make_reduce_scatter(name, owned));
  }
  std::unique_ptr<Exchange> make_all_gather(const char* name, const std::vector<std::vector<Block>>& owned) override {
    return traced(name, inner_->make_all_gather(name, owned));
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<TracedCommunicator>(inner_->split(color, key), trace_, label_);
  }
  // A round of messages begins with the first of them.
  void send(int peer, const void* data, std::size_t bytes) override {
    begin_round();
    inner_->send(peer, data, bytes);
  }
  void receive(int peer, void* data, std::size_t bytes) override {
    begin_round();
    inner_->receive(peer, data, bytes);
  }
  void wait(const char* name) override {
    inner_->wait(name);
    end_round(name);
  }
  void wait_in(Queue queue, const char* name) override {
    inner_->wait_in(queue, name);
    end_round(name);
  }
  bool start_after(Queue queue) override { return inner_->start_after(queue); }
  bool runs_in_order() const override { return inner_->runs_in_order(); }
  void complete(const char* name) override { inner_->complete(name); }

 private:
  std::unique_ptr<Exchange> traced(const char* name, std::unique_ptr<Exchange> exchange) {
    if (!exchange) return nullptr;
    return std::make_unique<TracedExchange>(std::move(exchange), trace_, name, exchanges_[name]++);
  }
  template <class Operation>
  void during(const char* name, const Operation& operation) {
    const Trace::Handle span = trace_.begin(row_, name, -1, SpanKind::exchange);
    operation();
    trace_.end(span);
  }
  void begin_round() {
    if (!in_round_) round_ = trace_.begin(row_, "messages", -1, SpanKind::exchange);
    in_round_ = true;
  }
  void end_round(const char* name) {
    if (!in_round_) return;
    trace_.end_as(round_, name);
    in_round_ = false;
  }

  Trace& trace_;
  const char* label_;
  std::map<std::string, int> exchanges_;  // made so far, by name
  int row_ = 0;
  Trace::Handle round_ = -1;
  bool in_round_ = false;
};

}  // namespace

std::unique_ptr<Communicator> traced(std::unique_ptr<Communicator> group, Trace& trace, const char* label) {
  return std::make_unique<TracedCommunicator>(std::move(group), trace, label);
}

}  // namespace sestina
