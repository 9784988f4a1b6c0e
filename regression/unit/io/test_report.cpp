#include "io/report.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "io/report_plot.hpp"
#include "io/report_series.hpp"

namespace sestina {
namespace {

using Labels = std::vector<std::string>;
using Values = std::vector<double>;
const double kNan = std::nan("");

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

// Tags close in the order in which they were opened (the page has only these that stay open).
void expect_balanced(const std::string& html) {
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const std::size_t end = html.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = html.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    if (tag[0] == '!' || tag.back() == '/' || name == "meta" || name == "input") continue;
    if (tag[0] != '/') {
      open.push_back(name);
    } else {
      ASSERT_FALSE(open.empty()) << tag;
      ASSERT_EQ("/" + open.back(), tag);
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty());
}

RunHistory run(const std::string& name, int steps, double loss = 3) {
  RunHistory r;
  r.name = name;
  for (int s = 1; s <= steps; ++s) {
    TrainLine t;
    t.step = s;
    t.tokens = static_cast<std::uint64_t>(s) * 1024;
    t.loss = loss + 1.0 / s;
    t.grad_norm = 1;
    t.lr = 1e-3;
    t.step_s = 0.5;
    t.forward_backward_s = 0.25;
    t.optimizer_s = 0.125;
    t.data_s = 0.0625;
    t.tokens_per_s = 2048;
    t.memory_peak_bytes = 1 << 30;
    r.train.push_back(t);
  }
  return r;
}

TEST(ReportPlot, Ticks) {
  EXPECT_EQ(nice_ticks({0, 10}, 5, Unit::plain), (Values{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks({-1, 1}, 4, Unit::plain), (Values{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(nice_ticks({0, 3}, 7, Unit::count), (Values{0, 1, 2, 3}));  // no half steps
  EXPECT_EQ(nice_ticks({0, 3.0 * (1 << 30)}, 5, Unit::bytes), (Values{0, 1 << 30, 2.0 * (1 << 30), 3.0 * (1 << 30)}));
  EXPECT_EQ(nice_ticks({0, 90 * 60}, 5, Unit::seconds), (Values{0, 1800, 3600, 5400}));
  EXPECT_EQ(nice_ticks({5, 5}, 5, Unit::plain), (Values{5}));
  for (const double span : {1e-12, 3e-7, 0.07, 1.0, 42.0, 9.9e5, 7e13, 3e300}) {
    const auto ticks = nice_ticks({0.3 * span, span}, 5, Unit::plain);
    EXPECT_GE(ticks.size(), 2u) << span;
    EXPECT_LE(ticks.size(), 8u) << span;
    const auto labels = tick_labels(ticks, Unit::plain);
    for (std::size_t i = 1; i < labels.size(); ++i) EXPECT_NE(labels[i], labels[i - 1]) << span;
  }
}

TEST(ReportPlot, Labels) {
  EXPECT_EQ(tick_labels({0, 0.5, 1}, Unit::plain), (Labels{"0", "0.5", "1.0"}));
  EXPECT_EQ(tick_labels({0, 2e-4, 4e-4}, Unit::plain), (Labels{"0", "2e-4", "4e-4"}));
  EXPECT_EQ(tick_labels({5000, 10000, 15000}, Unit::plain), (Labels{"5k", "10k", "15k"}));
  EXPECT_EQ(tick_labels({5e8, 1e9, 1.5e9}, Unit::plain), (Labels{"0.5G", "1.0G", "1.5G"}));
  EXPECT_EQ(tick_labels({0, 1 << 20, 1 << 21}, Unit::bytes), (Labels{"0", "1 MiB", "2 MiB"}));
  EXPECT_EQ(tick_labels({0, 3600, 10800}, Unit::seconds), (Labels{"0", "1 h", "3 h"}));
  EXPECT_EQ(tick_labels({0.05, 0.1}, Unit::seconds), (Labels{"50 ms", "100 ms"}));
  EXPECT_EQ(escape_html("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
}

TEST(ReportPlot, GapsCutLinesAndSinglePointsAreDots) {
  Plot plot{"x", "y", Unit::plain, Unit::plain, false, false, {}};
  plot.series.push_back({Series::Style::line, 0, {1, 2, 3, 4, 5, 6}, {1, 2, kNan, 4, kNan, 6}, {}});
  const std::string svg = draw(plot);
  const std::size_t path = svg.find("class=\"line c0\"");
  ASSERT_NE(path, std::string::npos);
  const std::string d = svg.substr(svg.rfind("d=\"", path), path - svg.rfind("d=\"", path));
  EXPECT_EQ(count(d, "M"), 1u);
  EXPECT_EQ(count(d, "L"), 1u);
  EXPECT_EQ(count(svg, "<circle"), 2u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(ReportPlot, NothingToDraw) {
  Plot plot{"x", "y", Unit::plain, Unit::plain, true, true, {}};
  EXPECT_NE(draw(plot).find("no data"), std::string::npos);
  plot.series.push_back({Series::Style::line, 0, {1, 2}, {kNan, INFINITY}, {}});
  EXPECT_NE(draw(plot).find("no data"), std::string::npos);
}

TEST(ReportSeries, SmoothingKeepsMeansAndGaps) {
  EXPECT_EQ(smoothed({1, 2, 3, 4}, 0), (Values{1, 2, 3, 4}));
  EXPECT_EQ(smoothed({1, 4, 7, 1, 4}, 1), (Values{1, 4, 4, 4, 2.5}));
  const Values gap = smoothed({1, kNan, 3, 5}, 1);
  EXPECT_EQ(gap[0], 1);
  EXPECT_TRUE(std::isnan(gap[1]));
  EXPECT_EQ(gap[2], 4);
  EXPECT_TRUE(smoothed({}, 3).empty());
}

TEST(ReportSeries, ThinningKeepsEndsAndMeans) {
  Values x{1, 2, 3, 4, 5, 6, 7}, y{1, 3, 5, kNan, kNan, kNan, 9};
  thin_out(x, y, 4);
  EXPECT_EQ(x, (Values{1, 4, 6, 7}));
  EXPECT_EQ(y[0], 2);
  EXPECT_EQ(y[1], 5);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 9);
}

TEST(ReportSeries, AbscissaeAndSplit) {
  RunHistory r = run("r", 4);
  r.validation = {{0, 9, {}}, {2, 8, {}}, {4, 7, {}}};
  EXPECT_EQ(abscissa(r, Abscissa::tokens), (Values{1024, 2048, 3072, 4096}));
  EXPECT_EQ(abscissa(r, Abscissa::time), (Values{0.5, 1, 1.5, 2}));
  EXPECT_EQ(validation_abscissa(r, Abscissa::step), (Values{0, 2, 4}));
  EXPECT_EQ(validation_abscissa(r, Abscissa::time), (Values{0, 1, 2}));
  r.train[1].reduce_s = 0.03125;
  r.train[1].gather_s = 0.015625;
  const StepSplit split = step_split(r);
  EXPECT_EQ(split.part[4][1], 0.046875);  // neither of the optimizer nor of the rest
  EXPECT_EQ(split.part[0][0], 0.25);
  EXPECT_EQ(split.part[5][0], 0.0625);  // what the other five leave of 0.5 s
}

TEST(ReportSeries, Summary) {
  RunHistory r = run("r", 20);
  r.train[19].loss = kNan;
  r.train[3].tokens_per_s = 1e9;
  r.validation = {{10, 2.5, 1.5}, {20, 2.75, 1.75}};
  const Summary s = summarize(r);
  EXPECT_EQ(s.steps, 20);
  EXPECT_EQ(s.tokens, 20480u);
  double expected = 0;
  for (int step = 10; step <= 19; ++step) expected += 3 + 1.0 / step;
  EXPECT_NEAR(*s.loss, expected / 10, 1e-12);
  EXPECT_EQ(s.validation_loss, 2.75);
  EXPECT_EQ(s.best_validation_loss, 2.5);
  EXPECT_EQ(s.bits_per_byte, 1.75);
  EXPECT_EQ(s.tokens_per_s, 2048);
  EXPECT_EQ(s.seconds, 10);
  EXPECT_FALSE(s.mfu.has_value());
  EXPECT_FALSE(summarize(run("empty", 0)).loss.has_value());
}

TEST(Report, OnePageWithoutTheNetwork) {
  RunHistory a = run("first <run>", 1500), b = run("second", 40, 4);
  a.validation = {{1000, 3.25, 1.5}};
  a.notes = {{1000, "checkpoint", "checkpoints/step_00001000"}, {1200, "event", "stop: TERM & more"}};
  b.train[5].loss = kNan;
  b.bad_lines = 2;
  const std::string html = report_html({a, b}, {"[run]\nname = \"<x>\"\n", ""});
  expect_balanced(html);
  for (const char* network : {"http://", "https://", "src=", "<script", "@import", "url(http"}) EXPECT_EQ(html.find(network), std::string::npos) << network;
  EXPECT_EQ(html.find("nan"), std::string::npos);
  EXPECT_EQ(html.find("first <run>"), std::string::npos);
  for (const char* said : {"first &lt;run&gt;", "second", "stop: TERM &amp; more", "name = &quot;&lt;x&gt;&quot;", "2 lines of metrics.jsonl", "Loss",
                           "Learning rate", "Gradient norm", "Step time", "Memory", "1 GiB"}) {
    EXPECT_NE(html.find(said), std::string::npos) << said;
  }
  EXPECT_EQ(count(html, "<svg viewBox"), 3 * 7u);  // six plots, one more step time, each against steps, tokens and time
  EXPECT_EQ(count(html, "resolved deck"), 1u);
  EXPECT_LT(html.size(), 600'000u);
}

TEST(Report, FewOrNoLines) {
  for (const int steps : {0, 1, 2}) {
    const std::string html = report_html({run("r", steps)}, {});
    expect_balanced(html);
    EXPECT_EQ(html.find("nan"), std::string::npos) << steps;
    EXPECT_EQ(count(html, "no data") > 0, steps == 0);
  }
  expect_balanced(report_html({}, {}));
}

}  // namespace
}  // namespace sestina
