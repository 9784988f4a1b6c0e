// Traces of real steps: every exchange starts as early as the data allows, and is over when its data is needed; and
// trace.json is what a viewer reads.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "io/report/trace_write.hpp"
#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

using Event = Trace::Event;
using Spans = std::vector<Event>;

TrainingCase traced_case(int tp) {
  TrainingCase run = training_case("muon");
  Options& o = run.options;
  o.model.num_hidden_layers = 4;
  o.train.global_batch = 2 * world().size();  // two micro-batches or more on each rank
  o.parallel.tp = tp;
  o.parallel.dp = world().size() / tp;
  o.parallel.bucket_elements = 4000;
  o.parallel.micro_group_bytes = 30000;
  return run;
}

// A few updates on all ranks, recorded after the first.
struct Recorded {
  Recorded(const TrainingCase& run, int steps)
      : options(run.options),
        session(Host(), make_plan({options, world().size()}), world(), &trace),
        micros(session.share().count) {
    session.initialise(5);
    Trained result;
    train_steps(session, options, 0, 1, result);
    world().barrier();
    trace.start();
    train_steps(session, options, 1, 1 + steps, result);
    trace.stop();
  }
  // In the order of their beginnings.
  Spans named(const std::string& name, std::int64_t number = -2, Trace::Kind kind = Trace::Kind::work) const {
    Spans found;
    for (const Event& event : trace.events())
      if (event.name == name && event.kind == kind && (number == -2 || event.number == number)) found.push_back(event);
    return found;
  }
  Spans exchanges(const std::string& name, std::int64_t number) const {
    return named(name, number, Trace::Kind::exchange);
  }
  const Options options;
  Trace trace{100000};
  TypedExecutor<Host, float> session;
  int micros;
};

std::vector<int> traced_tensor_sizes() {
  return world().size() % 4 == 0 ? std::vector<int>{1, 2} : std::vector<int>{1};
}

constexpr int steps = 3;

// Ranks: TraceOrder 2 4

TEST(TraceOrder, GradientsLeaveWhenTheirLastBlockIsDone) {
  for (const int tp : traced_tensor_sizes()) {
    const Recorded run(traced_case(tp), steps);
    std::vector<BucketLayout> buckets = gradient_buckets(run.session.run().plan()).buckets;
    std::stable_sort(buckets.begin(), buckets.end(), [](const auto& a, const auto& b) { return a.block > b.block; });
    ASSERT_GT(buckets.size(), 5u);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      const Spans exchanges = run.exchanges("gradients", static_cast<std::int64_t>(b));
      const Spans backward = run.named("backward", buckets[b].block);
      ASSERT_EQ(exchanges.size(), std::size_t{steps});
      ASSERT_EQ(backward.size(), static_cast<std::size_t>(steps * run.micros));
      for (int step = 0; step < steps; ++step) {
        const Event& exchange = exchanges[static_cast<std::size_t>(step)];
        const Event& last = backward[static_cast<std::size_t>((step + 1) * run.micros - 1)];
        EXPECT_GE(exchange.begin, last.end) << "bucket " << b;
        for (const Event& event : run.trace.events())  // nothing is computed in between
          if (event.row == Trace::work_row && event.kind == Trace::Kind::work && event.begin >= last.end)
            EXPECT_GE(event.begin, exchange.begin) << "bucket " << b << ", " << event.name << " " << event.number;
        const Spans norm = run.named("loss and norm");
        EXPECT_LE(exchange.end, norm[static_cast<std::size_t>(step)].begin) << "bucket " << b;
      }
    }
  }
}

TEST(TraceOrder, WeightsTravelUntilTheirBlockNeedsThem) {
  for (const int tp : traced_tensor_sizes()) {
    const Recorded run(traced_case(tp), steps);
    const std::vector<BucketLayout> buckets = gradient_buckets(run.session.run().plan()).buckets;
    const Spans first = run.named("forward", 0);
    const Spans matrices = run.named(tp == 1 ? "matrices" : "matrices of group");
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      const Spans exchanges = run.exchanges("weights", static_cast<std::int64_t>(b));
      const Spans forward = run.named("forward", buckets[b].block);
      ASSERT_EQ(exchanges.size(), std::size_t{steps});
      for (int step = 0; step + 1 < steps; ++step) {  // the last ones end without a forward pass
        const Event& exchange = exchanges[static_cast<std::size_t>(step)];
        const auto next = static_cast<std::size_t>((step + 1) * run.micros);
        EXPECT_GE(exchange.begin, matrices[matrices.size() / steps * static_cast<std::size_t>(step + 1) - 1].end);
        EXPECT_LE(exchange.begin, first[next].begin) << "bucket " << b;
        EXPECT_LE(exchange.end, forward[next].begin) << "bucket " << b;
      }
    }
  }
}

// Under the update of one group the next one's gradients come in and the last one's weights go out.
TEST(TraceOrder, MicroGroupsOverlap) {
  const Recorded run(traced_case(2), 1);
  const Spans updates = run.named("matrices of group");
  ASSERT_GT(updates.size(), 2u);
  for (std::size_t g = 0; g < updates.size(); ++g) {
    const Spans in = run.exchanges("whole gradients", static_cast<std::int64_t>(g)),
                out = run.exchanges("updated shards", static_cast<std::int64_t>(g));
    ASSERT_EQ(in.size(), 1u);
    ASSERT_EQ(out.size(), 1u);
    EXPECT_LE(in[0].end, updates[g].begin);
    EXPECT_GE(out[0].begin, updates[g].end);
    if (g > 0) EXPECT_LE(in[0].begin, updates[g - 1].begin) << "group " << g;
    if (g + 1 < updates.size()) {
      EXPECT_LE(out[0].begin, updates[g + 1].begin) << "group " << g;
      EXPECT_GE(out[0].end, updates[g + 1].end) << "group " << g;
    }
  }
}

// The buckets of the last layers are updated, and their weights leave, before this rank has waited for all gradients.
TEST(TraceOrder, BucketsAreUpdatedWhileGradientsTravel) {
  TrainingCase set = traced_case(1);
  set.options.parallel.overlap_updates = true;
  set.options.parallel.clip_scope = ParallelOptions::ClipScope::matrix;
  const Recorded run(set, steps);
  const std::size_t buckets = gradient_buckets(run.session.run().plan()).buckets.size();
  const Spans rest = run.named("rest of the gradients"), updates = run.named("matrices of a bucket");
  ASSERT_EQ(rest.size(), std::size_t{steps});
  ASSERT_EQ(updates.size() % steps, 0u);
  const std::size_t updated = updates.size() / steps;
  ASSERT_GT(updated, 1u);
  for (std::size_t step = 0; step < steps; ++step) {
    const Event first = updates[step * updated], last = updates[(step + 1) * updated - 1];
    EXPECT_LE(last.end, rest[step].begin);
    bool left = false;  // before the last update
    for (std::size_t b = 0; b < buckets; ++b) {
      const Event weights = run.exchanges("weights", static_cast<std::int64_t>(b))[step];
      left = left || (weights.begin >= first.end && weights.begin < last.begin);
    }
    EXPECT_TRUE(left);
  }
}

// In a pipeline the receive of the next micro-batch is under way while one is computed: of activations on the last
// rank, of gradients on the first one.
TEST(TraceOrder, ReceivesOfAPipelineStartAhead) {
  for (const auto schedule : {ParallelOptions::Schedule::one_f_one_b, ParallelOptions::Schedule::async_1f1b}) {
    TrainingCase set = in_stages(pipeline_case("adamw"), schedule);
    Options& o = set.options;
    o.train.micro_batch = 1;
    if (o.parallel.is_async()) o.parallel.clip_scope = ParallelOptions::ClipScope::stage;
    Recorded run(set, steps);
    if (o.parallel.is_async()) run.session.drain(1 + steps);  // nothing is left on its way
    const bool is_first = world().rank() == 0, is_last = world().rank() + 1 == world().size();
    if (!is_first && !is_last) continue;  // they both send and receive under these names
    const Spans receives =
        run.named(is_first ? "gradients of a stage" : "activations of a stage", -2, Trace::Kind::exchange);
    ASSERT_EQ(receives.size(), static_cast<std::size_t>(steps * run.micros));
    const auto works = [&](const Event& receive) {
      return std::any_of(run.trace.events().begin(), run.trace.events().end(), [&](const Event& event) {
        return event.row == Trace::work_row && event.kind == Trace::Kind::work && event.begin >= receive.begin &&
               event.end <= receive.end;
      });
    };
    // The first one of an update has nothing to start under.
    EXPECT_GE(std::count_if(receives.begin(), receives.end(), works), steps * (run.micros - 1));
  }
}

// Rows leave for their experts, and come back, before the shared expert works, and are waited for after that: twice in
// the forward pass of a layer, twice for the gradients of inputs, once for those of weights, under which the router's
// gradient is computed in any case.
TEST(TraceOrder, TheSharedExpertWorksWhileTokensTravel) {
  for (const std::int64_t shared : {0, 16}) {
    TrainingCase set = training_case("adamw", Family::qwen3_moe);
    Options& o = set.options;
    o.model.num_experts = 4;
    o.model.num_experts_per_tok = 2;
    o.model.moe_intermediate_size = 24;
    o.model.shared_expert_intermediate_size = shared;
    o.parallel.dp = o.parallel.ep = world().size();
    const Recorded run(set, steps);
    const Spans works = run.named("while tokens travel");
    const auto passes = static_cast<std::size_t>(steps * run.micros * o.model.num_hidden_layers);
    EXPECT_EQ(works.size(), (shared > 0 ? 5 : 1) * passes);
    Spans exchanges = run.exchanges("tokens to the experts", -1);
    const Spans back = run.exchanges("tokens back from the experts", -1);
    EXPECT_EQ(exchanges.size(), 3 * passes);
    EXPECT_EQ(back.size(), 2 * passes);
    exchanges.insert(exchanges.end(), back.begin(), back.end());
    for (const Event& work : works)
      EXPECT_EQ(std::count_if(exchanges.begin(), exchanges.end(),
                              [&](const Event& e) { return e.begin <= work.begin && work.end <= e.end; }),
                1)
          << "shared expert " << shared;
  }
}

// Perfetto shows the thread with the number of its process, and a thread 0, as the one main row: so computation has
// that number, and no other row has the number of a process.
void expect_rows_stay_apart(const std::map<int, std::vector<std::pair<int, std::string>>>& named) {
  for (const auto& [pid, threads] : named) {
    EXPECT_EQ(threads.at(0), (std::pair<int, std::string>(pid, "computation")));
    std::set<int> seen{pid};
    for (auto thread = threads.begin() + 1; thread != threads.end(); ++thread) {
      EXPECT_FALSE(named.contains(thread->first)) << "rank " << pid << ", row " << thread->second;
      EXPECT_TRUE(seen.insert(thread->first).second) << "rank " << pid << ", row " << thread->second;
    }
  }
}

// Ranks: TraceFile 2 4

TEST(TraceFile, IsWhatAViewerReads) {
  const Recorded run(traced_case(world().size() % 4 == 0 ? 2 : 1), steps);
  std::string path = std::filesystem::temp_directory_path() / fmt::format("sestina_trace_{}.json", ::getpid());
  world().broadcast(path, 0);
  write_trace(path, run.trace, world(), fmt::format("rank {}", world().rank()));
  auto events = static_cast<double>(run.trace.events().size());
  world().all_reduce(&events, 1, Reduction::sum);
  if (world().rank() > 0) return;
  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> rows;
  std::set<std::string> names;
  std::set<int> labelled;
  std::map<int, std::vector<std::pair<int, std::string>>> named;  // threads of each process
  double complete = 0;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    const std::string kind = event.at("ph"), name = event.at("name");
    const int pid = event.at("pid"), tid = event.at("tid");
    if (kind == "M" && name == "process_name") labelled.insert(pid);
    if (kind == "M" && name == "thread_name") named[pid].push_back({tid, event.at("args").at("name")});
    if (kind != "X") continue;
    const double begin = event.at("ts"), duration = event.at("dur");
    EXPECT_GE(begin, 0);
    EXPECT_GE(duration, 0);
    rows[{pid, tid}].push_back({begin, begin + duration});
    names.insert(name);
    ++complete;
  }
  EXPECT_EQ(complete, events);
  EXPECT_EQ(labelled.size(), static_cast<std::size_t>(world().size()));
  expect_rows_stay_apart(named);
  for (const char* name : {"forward 0", "backward 5", "gradients 0", "weights 0", "loss and norm", "scalar optimizer"})
    EXPECT_EQ(names.count(name), 1u) << name;
  for (auto& [row, spans] : rows) {  // spans of a row lie inside one another or apart
    std::vector<double> open;
    for (const auto& [begin, end] : spans) {
      while (!open.empty() && open.back() <= begin) open.pop_back();
      if (!open.empty()) EXPECT_LE(end, open.back() + 1e-3) << "rank " << row.first << ", row " << row.second;
      open.push_back(end);
    }
  }
  std::filesystem::remove(path);
}

// Nobody has to read what a block moved to in order to tell them from waits of the step.
TEST(TraceFile, TellsWaitsOfWorkersByTheirKind) {
  using Kind = Trace::Kind;
  Trace trace(8);
  trace.start();
  const auto now = std::chrono::steady_clock::now();
  for (const Kind kind : {Kind::block_read, Kind::block_write, Kind::block_wait, Kind::worker_wait})
    trace.add({.name = "w/m", .number = 3, .kind = kind, .value = 8, .from = "nvme", .to = "host"}, now, now);
  trace.stop();
  std::string path = std::filesystem::temp_directory_path() / fmt::format("sestina_waits_{}.json", ::getpid());
  world().broadcast(path, 0);
  write_trace(path, trace, world(), "");
  if (world().rank() > 0) return;
  std::ifstream file(path);
  std::map<std::string, int> begins;
  const nlohmann::json shown = nlohmann::json::parse(file);
  for (const nlohmann::json& event : shown.at("traceEvents"))
    if (event.at("ph") == "b") ++begins[event.at("cat")];
  const int each = world().size();
  EXPECT_EQ(begins,
            (std::map<std::string, int>{
                {"state read", each}, {"state wait", each}, {"state wait of a worker", each}, {"state write", each}}));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace sestina
