// Replicas that drift with tensor parallelism and in asynchronous pipelines: made equal they are the same bits on all
// ranks that have them, shards are those of the homes' matrices, bytes are the plan's, and a run that was saved goes on
// as it would have.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "app/train/refresh_setup.hpp"
#include "parallel/plan/make_plan.hpp"
#include "regression/unit/mpi/coherence_rig.hpp"
#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

using TpUpdate = ParallelOptions::TpUpdate;
using Partition = ParallelOptions::Partition;

struct CoherentLayout {
  std::string name;
  int dp = 1, tp = 1;
  TpUpdate tp_update = TpUpdate::home;
  Partition partition = Partition::replicated;
  bool async = false;
  int node_size = 2;
};

std::vector<CoherentLayout> coherent_layouts() {
  if (world().size() == 2)
    return {{"duplicated", 1, 2, TpUpdate::duplicated, Partition::optimal},
            {"async-1f1b in one process", 2, 1, TpUpdate::home, Partition::replicated, true}};
  return {{"homes", 2, 2},
          {"homes, nodes of one", 2, 2, TpUpdate::home, Partition::replicated, false, 1},
          {"blockwise", 2, 2, TpUpdate::blockwise},
          {"duplicated", 2, 2, TpUpdate::duplicated},
          {"duplicated, nodes of three", 2, 2, TpUpdate::duplicated, Partition::replicated, false, 3},
          {"duplicated and owned", 2, 2, TpUpdate::duplicated, Partition::optimal},
          {"async-1f1b", 2, 1, TpUpdate::home, Partition::replicated, true},
          {"async-1f1b of homes", 2, 2, TpUpdate::home, Partition::replicated, true}};
}

TrainingCase on_layout(TrainingCase run, const CoherentLayout& layout) {
  Options& o = run.options;
  o.model.tie_word_embeddings = false;
  o.parallel.dp = layout.dp;
  o.parallel.tp = layout.tp;
  o.parallel.tp_update = layout.tp_update;
  o.parallel.partition = layout.partition;
  o.parallel.node_size = layout.node_size;
  o.parallel.micro_group_bytes = 30000;  // several micro-groups
  if (!layout.async) return run;
  o.parallel.pp = 2;
  o.parallel.schedule = ParallelOptions::Schedule::async_1f1b;
  o.parallel.clip_scope = ParallelOptions::ClipScope::stage;
  return run;
}

template <class T>
struct DriftingRun {
  DriftingRun(const TrainingCase& c, const std::vector<std::int64_t>& periods = {})
      : run(c), executor(Host(), make_plan({run.options, world().size()}), world()) {
    executor.initialise(5);
    if (!periods.empty()) use_periods(executor, {periods, 0});
    executor.weights_changed();
    executor.start_at(0);
  }
  void step() {
    train_steps(executor, run.options, updates, updates + 1, result);
    ++updates;
  }
  std::size_t ranks_of_a_replica() const { return replica_levels(run.options.parallel).node_of.size(); }
  void for_each_matrix(const std::function<void(MatrixSet<Host>&, std::size_t)>& what) {
    for (std::size_t s = 0; s < executor.stage_count(); ++s)
      if (MatrixSet<Host>* matrices = executor.stage(s).optimizer().matrices())
        for (std::size_t i = 0; i < matrices->size(); ++i) what(*matrices, i);
  }
  // Of this rank's master weights of replicas, by path.
  std::map<std::string, std::vector<float>> masters() {
    std::map<std::string, std::vector<float>> all;
    for_each_matrix([&](MatrixSet<Host>& matrices, std::size_t i) {
      const StateField master = matrices.replica(i).back();
      const auto* data = static_cast<const float*>(master.data);
      all[master.path].assign(data, data + master.bytes() / sizeof(float));
    });
    return all;
  }
  // As if results had been seen at other updates: by a rank in the group of replicas, each a little more than the last.
  void drift_apart() {
    const float factor = 1.0f + 0.01f * static_cast<float>(world().rank() + 1);
    for_each_matrix([&](MatrixSet<Host>& matrices, std::size_t i) {
      const StateField master = matrices.replica(i).back();
      const auto bytes = write_to(master);
      auto* data = reinterpret_cast<float*>(bytes.view());
      for (std::size_t k = 0; k < master.bytes() / sizeof(float); ++k) data[k] *= factor;
    });
  }
  // Until a job of every matrix has been sent since the last synchronisation.
  void step_until_all_may_differ() {
    for (double differ = 0; differ == 0; world().all_reduce(&differ, 1, Reduction::min)) {
      step();
      differ = 1;
      for_each_matrix([&](MatrixSet<Host>& matrices, std::size_t i) {
        if (matrices.refresh_clock(i).sent == 0) differ = 0;
      });
    }
  }
  // Whole matrices and state of replicas on this rank against those of all others that have them.
  void expect_alike(const std::string& what) {
    std::string mine;
    for_each_matrix([&](MatrixSet<Host>& matrices, std::size_t i) {
      for (const StateField& field : matrices.replica(i))
        mine += fmt::format("{} {:x}\n", field.path,
                            std::hash<std::string_view>()({static_cast<const char*>(field.data), field.bytes()}));
    });
    std::map<std::string, std::pair<std::string, std::size_t>> seen;  // by path: value, ranks
    for (const std::string& lines : world().all_gather(mine))
      for (std::size_t at = 0, end; at < lines.size(); at = end + 1) {
        end = lines.find('\n', at);
        const std::size_t space = lines.rfind(' ', end);
        auto& [value, ranks] = seen[lines.substr(at, space - at)];
        if (ranks++ == 0) value = lines.substr(space, end - space);
        EXPECT_EQ(lines.substr(space, end - space), value) << what << ' ' << lines.substr(at, space - at);
      }
    ASSERT_FALSE(seen.empty());
    for (const auto& [path, value] : seen) EXPECT_EQ(value.second, ranks_of_a_replica()) << what << ' ' << path;
  }
  // Shards on all ranks, put together, are the rounded master weights of the rank that has the whole matrix.
  void expect_shards_of_masters(const std::string& what) {
    const std::vector<float> whole = whole_weights(executor);
    EXPECT_TRUE(all_equal(bytes_of(whole))) << what;
    const auto all = masters();
    std::size_t begin = 0, compared = 0;
    for (const StagePlan& stage : executor.plan().stages)
      for (const TensorSpec& spec : stage.specs) {
        const auto n = static_cast<std::size_t>(spec.elements());
        const auto found = all.find("/model/" + spec.name);
        for (std::size_t k = 0; found != all.end() && k < n; ++k)
          ASSERT_EQ(whole[begin + k], static_cast<float>(static_cast<T>(found->second[k])))
              << what << ' ' << spec.name << ' ' << k;
        compared += found == all.end() ? 0 : 1;
        begin += n;
      }
    if (executor.plan().input.parallel.tp_update != TpUpdate::blockwise)  // whose matrices have names of their own
      EXPECT_GT(summed(static_cast<double>(compared)), 0) << what;
  }

  TrainingCase run;
  TypedExecutor<Host, T> executor;
  Trained result;
  int updates = 0;
};

// Ranks: CoherentLayouts 2 4

template <class T>
void expect_alike_behind_saves_and_refreshes(const CoherentLayout& layout, const std::string& kind) {
  const std::string what = layout.name + ", " + kind + (sizeof(T) == 2 ? ", bf16" : "");
  DriftingRun<T> run(on_layout(drifting(kind, 0), layout));
  run.step_until_all_may_differ();
  run.drift_apart();
  const auto before = run.masters();
  EXPECT_FALSE(all_equal(bytes_of(before.begin()->second))) << what;
  run.executor.take_coherence();
  run.executor.synchronise();  // before a save or an evaluation
  EXPECT_GT(run.executor.take_coherence().drift, 1e-3) << what;
  run.expect_alike(what);
  run.expect_shards_of_masters(what);
  run.drift_apart();
  std::int64_t blocks = 0;
  for (int later = 0; blocks == 0 && later < 9; ++later) {  // after the next refresh
    run.step();
    blocks = run.executor.take_coherence().blocks;
  }
  EXPECT_GT(blocks, 0) << what;
  run.expect_alike(what);
  run.expect_shards_of_masters(what);
}

TEST(CoherentLayouts, ReplicasAreAlikeAndShardsAreThoseOfTheirHomes) {
  for (const CoherentLayout& layout : coherent_layouts()) {
    for (const char* kind : {"soap", "shampoo"}) expect_alike_behind_saves_and_refreshes<float>(layout, kind);
    expect_alike_behind_saves_and_refreshes<bf16>(layout, "kl-shampoo");
  }
}

// The mean over the homes of the data-parallel ranks, in double, rounded once to fp32 from what each of them had.
TEST(CoherentLayouts, HomesAverageTheirMasters) {
  if (world().size() != 4) return;
  DriftingRun<float> run(on_layout(drifting("soap", 0), coherent_layouts()[0]));
  run.step_until_all_may_differ();
  run.drift_apart();
  const auto before = run.masters();
  run.executor.synchronise();
  for (const auto& [path, after] : run.masters()) {
    std::vector<double> sum(before.at(path).begin(), before.at(path).end());
    run.executor.grid().dp_group->all_reduce(sum.data(), sum.size(), Reduction::sum);
    for (std::size_t k = 0; k < sum.size(); ++k)
      ASSERT_NEAR(after[k], sum[k] / 2, 1.2e-7 * std::abs(sum[k] / 2)) << path << ' ' << k;  // eps of fp32
  }
}

// The bytes that ranks sent are those of the plan, as often as blocks were synchronised, and no less of them.
TEST(CoherentLayouts, SendWhatThePlanSays) {
  for (const CoherentLayout& layout : coherent_layouts()) {
    DriftingRun<float> run(on_layout(drifting("soap", 0), layout));
    for (int t = 0; t < 14; ++t) run.step();
    run.executor.synchronise();
    const CoherenceCount count = run.executor.take_coherence();
    const CoherencePlan& plan = run.executor.plan().coherence;
    ASSERT_GT(plan.blocks, 0) << layout.name;
    const double all = static_cast<double>(plan.blocks) * static_cast<double>(run.ranks_of_a_replica()),
                 times = summed(static_cast<double>(count.blocks)) / all;
    EXPECT_EQ(times, std::floor(times)) << layout.name;  // all are due together
    EXPECT_GE(times, 2) << layout.name;
    EXPECT_EQ(summed(static_cast<double>(count.bytes.sent)), times * static_cast<double>(plan.synchronisation.sent))
        << layout.name;
    EXPECT_EQ(summed(static_cast<double>(count.bytes.between_nodes)),
              times * static_cast<double>(plan.synchronisation.between_nodes))
        << layout.name;
    run.executor.synchronise();
    EXPECT_EQ(run.executor.take_coherence().bytes.sent, 0) << layout.name;  // nothing has changed since
  }
}

// Drift is found on every layout, by looks whose bytes are the plan's, and without it nothing else is sent.
TEST(CoherentLayouts, MakeEqualWhatHasDrifted) {
  for (const CoherentLayout& layout : coherent_layouts())
    for (const double bound : {1e-3, 1e3}) {
      TrainingCase c = on_layout(drifting("soap", 0), layout);
      c.options.optimizer.refresh.coherence_drift = bound;
      DriftingRun<float> run(c);
      run.step_until_all_may_differ();
      run.executor.take_coherence();
      if (bound < 1) run.drift_apart();
      CoherenceCount count;
      for (int later = 0; later < 5; ++later) {  // one job of each matrix, every = 4, at least
        run.step();
        count.add(run.executor.take_coherence());
        if (count.blocks > 0) break;
      }
      const CoherencePlan& plan = run.executor.plan().coherence;
      const std::string what = layout.name + fmt::format(", bound {}", bound);
      EXPECT_GT(summed(static_cast<double>(count.sketches)), 0) << what;
      if (bound < 1) {
        EXPECT_GT(summed(static_cast<double>(count.blocks)), 0) << what;
        EXPECT_GT(count.drift, 1e-3) << what;
        run.expect_alike(what);
        run.expect_shards_of_masters(what);
        continue;
      }
      EXPECT_EQ(count.blocks, 0) << what;
      const double times = summed(static_cast<double>(count.sketches)) /
                           static_cast<double>(plan.blocks * static_cast<std::int64_t>(run.ranks_of_a_replica()));
      EXPECT_EQ(summed(static_cast<double>(count.bytes.sent)), times * static_cast<double>(plan.sketch.sent)) << what;
    }
}

// Matrices with periods of their own are due at different updates on different homes.
TEST(CoherentLayouts, MatricesWithOtherPeriodsAreMadeAlikeOnTheirOwn) {
  for (const CoherentLayout& layout : coherent_layouts()) {
    const TrainingCase c = on_layout(drifting("soap", 0), layout);
    std::vector<std::int64_t> periods(matrix_count(tensor_specs(c.options.model), c.options.optimizer));
    for (std::size_t i = 0; i < periods.size(); ++i) periods[i] = 3 + static_cast<std::int64_t>(i % 5);
    DriftingRun<float> run(c, periods);
    std::int64_t least = 1 << 20, most = 0;
    for (int t = 0; t < 16; ++t) {
      run.step();
      if (const std::int64_t blocks = run.executor.take_coherence().blocks; blocks > 0) {
        least = std::min(least, blocks);
        most = std::max(most, blocks);
      }
    }
    EXPECT_LT(least, run.masters().size()) << layout.name;
    EXPECT_GT(most, 0) << layout.name;
    run.executor.synchronise();
    run.expect_alike(layout.name);
    run.expect_shards_of_masters(layout.name);
  }
}

// What is written to a checkpoint, by path and place: of all ranks together.
using Written = std::map<std::string, std::string>;

std::string place_of(const StateField& field) {
  return fmt::format("{} {} {} {} {}", field.path, field.row_begin, field.row_end, field.col_begin, field.col_end);
}

Written written_by_all(const std::vector<StateField>& fields) {
  std::string mine;
  for (const StateField& field : fields) {
    if (!field.saved || field.bytes() == 0) continue;
    mine += fmt::format("{}\n{}\n", place_of(field), field.bytes());
    mine.append(static_cast<const char*>(field.data), field.bytes());
  }
  Written all;
  for (const std::string& text : world().all_gather(mine))
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t name = text.find('\n', at), count = text.find('\n', name + 1);
      const std::size_t bytes = std::stoul(text.substr(name + 1, count - name - 1));
      const bool is_new = all.emplace(text.substr(at, name - at), text.substr(count + 1, bytes)).second;
      EXPECT_TRUE(is_new) << text.substr(at, name - at) << " is written twice";
      at = count + 1 + bytes;
    }
  return all;
}

void read_back(const std::vector<StateField>& fields, const Written& written) {
  for (const StateField& field : fields) {
    if (field.bytes() == 0) continue;
    const auto found = written.find(place_of(field));
    ASSERT_NE(found, written.end()) << place_of(field);
    ASSERT_EQ(found->second.size(), field.bytes()) << place_of(field);
    const auto whole = write_to(field, Pager::Need::room);
    std::memcpy(whole.view(), found->second.data(), field.bytes());
  }
}

TrainingCase async_case(Stash stash, Correction correction) {
  TrainingCase c = on_layout(drifting("soap", 1000),
                             {"", 2, world().size() == 4 ? 2 : 1, TpUpdate::home, Partition::replicated, true});
  c.options.optimizer.matrix->refresh_every = 10;  // between two jobs there is time for a save and updates after it
  c.options.parallel.stash = stash;
  c.options.parallel.correction.kind = correction;
  c.options.parallel.correction.lambda = 1e4;
  c.options.parallel.delay_scale = 3;
  return c;
}

// Passes are in flight that began under weights of their own on each rank: the save keeps these, and the run goes on
// with them as it would have.
TEST(CoherentLayouts, AnAsynchronousRunThatWasSavedGoesOnToTheSameBits) {
  const std::pair<Stash, Correction> cases[] = {{Stash::on, Correction::none},
                                                {Stash::recompute, Correction::none},
                                                {Stash::saved, Correction::none},
                                                {Stash::on, Correction::prediction},
                                                {Stash::on, Correction::dc_asgd}};
  for (const auto& [stash, correction] : cases) {
    const std::string what = fmt::format("stash {}, {}", name(stash), name(correction));
    DriftingRun<float> first(async_case(stash, correction));
    SampleBatches batches(first.run.options, first.executor.share(), 0);
    const auto steps = [](DriftingRun<float>& run, Batches& samples, int begin, int end) {
      train_finished(run.executor, run.run.options, samples, begin, end, run.result);
      run.executor.finish_gather();
    };
    steps(first, batches, 0, 15);  // the job of update 11 was used in 13 at the latest; the next is sent in 21
    first.drift_apart();
    steps(first, batches, 15, 17);
    first.executor.synchronise();
    first.expect_alike(what);
    std::vector<StateField> fields = first.executor.in_flight_fields(false);
    EXPECT_FALSE(fields.empty()) << what;
    for (StateField& field : first.executor.fields()) fields.push_back(std::move(field));
    const Written written = written_by_all(fields);
    const PipelineState state = first.executor.pipeline_state().value();
    EXPECT_EQ(state.replicas, 2) << what;
    steps(first, batches, 17, 20);

    DriftingRun<float> second(async_case(stash, correction));
    read_back(second.executor.fields(), written);
    ASSERT_TRUE(second.executor.resume(17, state)) << what;
    read_back(second.executor.in_flight_fields(true), written);
    second.executor.weights_changed();
    SampleBatches rest(second.run.options, second.executor.share(), 17);
    steps(second, rest, 17, 20);
    const std::vector<double>& loss = first.result.loss;
    EXPECT_EQ(second.result.loss, std::vector<double>(loss.end() - 3, loss.end())) << what;
    EXPECT_EQ(whole_weights(second.executor), whole_weights(first.executor)) << what;
    PipelineState owned = state, other = state;
    owned.replicas = 0;
    other.shards = 3;
    EXPECT_FALSE(owned.fits(second.executor.pipeline_state().value())) << what;
    EXPECT_FALSE(other.fits(second.executor.pipeline_state().value())) << what;
  }
}

}  // namespace
}  // namespace sestina
