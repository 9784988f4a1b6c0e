// Traces: spans in order, a full memory, recordings one after another, what other threads did.
#include "parallel/comm/trace.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace sestina {
namespace {

TEST(Trace, RecordsSpansInTheirRows) {
  Trace trace(10);
  const int row = trace.add_row("gradients 0");
  EXPECT_EQ(trace.begin(row, "before"), -1);
  trace.start();
  const Trace::Handle open = trace.begin(row, "gradients", 0, Trace::Kind::exchange);
  { const TraceSpan span(&trace, "forward", 3); }
  trace.end(open);
  trace.begin(row, "still open");
  trace.stop();
  ASSERT_EQ(trace.events().size(), 3u);
  const Trace::Event &exchange = trace.events()[0], &forward = trace.events()[1], &last = trace.events()[2];
  EXPECT_STREQ(exchange.name, "gradients");
  EXPECT_EQ(exchange.row, row);
  EXPECT_EQ(exchange.kind, Trace::Kind::exchange);
  EXPECT_EQ(forward.row, Trace::work_row);
  EXPECT_EQ(forward.number, 3);
  EXPECT_GE(exchange.begin, 0);
  EXPECT_LE(exchange.begin, forward.begin);
  EXPECT_LE(forward.begin, forward.end);
  EXPECT_LE(forward.end, exchange.end);
  EXPECT_GE(last.end, last.begin);
}

TEST(Trace, DropsAndCountsWhatDoesNotFit) {
  Trace trace(2);
  const std::size_t capacity = trace.events().capacity();
  trace.start();
  for (int i = 0; i < 5; ++i) const TraceSpan span(&trace, "work", i);
  EXPECT_EQ(trace.events().size(), capacity);
  EXPECT_EQ(trace.events().capacity(), capacity);
  EXPECT_EQ(trace.dropped(), 5 - static_cast<std::int64_t>(capacity));
}

TEST(Trace, SpansOfAnEarlierRecordingEndNothing) {
  Trace trace(4);
  trace.start();
  const Trace::Handle old = trace.begin(0, "old");
  trace.start();
  const Trace::Handle now = trace.begin(0, "new");
  trace.end(old);
  EXPECT_EQ(trace.events()[0].end, -1);
  trace.end(now);
  EXPECT_GE(trace.events()[0].end, 0);
}

TEST(Trace, CountsKeepTheirValues) {
  Trace trace(1);
  trace.count("age", 1, 5);  // not recording
  trace.start();
  while (trace.events().size() < trace.events().capacity()) trace.count("age", 1, 2.5);
  trace.count("age", 1, 7);
  EXPECT_EQ(trace.dropped(), 1);
  const Trace::Event& event = trace.events()[0];
  EXPECT_EQ(event.kind, Trace::Kind::count);
  EXPECT_EQ(event.value, 2.5);
  EXPECT_EQ(event.number, 1);
  EXPECT_EQ(event.begin, event.end);
}

TEST(Trace, TakesWhatOtherThreadsDidAsFarAsItRecordedThen) {
  using namespace std::chrono_literals;
  using Clock = std::chrono::steady_clock;
  Trace trace(4);
  const int row = trace.add_row("refresh worker 0");
  const auto early = Clock::now();
  trace.add(row, "not recording", early, early);
  std::this_thread::sleep_for(2ms);
  trace.start();
  trace.add(row, "over before", early, early + 1ms);
  const Trace::Handle around = trace.begin(Trace::work_row, "around");
  const auto begin = Clock::now();
  std::this_thread::sleep_for(2ms);
  const auto end = Clock::now();
  trace.add(row, "begun before", early, begin);
  trace.add(row, "inside", begin, end);
  trace.end(around);
  ASSERT_EQ(trace.events().size(), 3u);
  const Trace::Event &outer = trace.events()[0], &first = trace.events()[1], &second = trace.events()[2];
  EXPECT_STREQ(first.name, "begun before");
  EXPECT_EQ(first.begin, 0);
  EXPECT_STREQ(second.name, "inside");
  EXPECT_EQ(second.row, row);
  EXPECT_EQ(second.begin, first.end);
  EXPECT_EQ(second.end - second.begin, std::chrono::nanoseconds(end - begin).count());
  EXPECT_LE(outer.begin, second.begin);  // the same clock
  EXPECT_GE(outer.end, second.end);
  while (trace.events().size() < trace.events().capacity()) trace.add(row, "more", begin, end);
  trace.add(row, "too much", begin, end);
  EXPECT_EQ(trace.dropped(), 1);
}

TEST(Trace, StateThatMovedBeforeTheStartIsShownThere) {
  using namespace std::chrono_literals;
  Trace trace(2);
  const auto early = std::chrono::steady_clock::now() - 10ms;
  const Trace::Event read{
      .name = "w/m", .number = 3, .kind = Trace::Kind::block_read, .value = 4096, .from = "nvme", .to = "host"};
  trace.add(read, early, early + 1ms);  // not recording
  trace.start();
  trace.add(read, early, early + 1ms);
  trace.add(read, early, early + 10s);
  ASSERT_EQ(trace.events().size(), 2u);
  for (const Trace::Event& event : trace.events()) {
    EXPECT_EQ(event.begin, 0);
    EXPECT_STREQ(event.from, "nvme");
    EXPECT_EQ(event.value, 4096);
    EXPECT_EQ(event.number, 3);
    EXPECT_EQ(event.kind, Trace::Kind::block_read);
  }
  EXPECT_EQ(trace.events()[0].end, 0);
  EXPECT_GT(trace.events()[1].end, 9'000'000'000);
}

TEST(Trace, WithoutOneNothingHappens) {
  OpenSpan span(nullptr);
  span.begin("forward", 1);
  span.end();
}

}  // namespace
}  // namespace sestina
