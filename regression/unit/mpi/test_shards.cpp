// parallel.shard = "gradients" and "weights" against one rank, and against "state": the same bits where the sums over
// ranks and over micro-batches are the tree of one rank.
#include <gtest/gtest.h>

#include <cstring>

#include "parallel/exchange/traffic.hpp"
#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

using Shard = ParallelOptions::Shard;
constexpr Shard shards[] = {Shard::gradients, Shard::weights};

// All master weights, put together from the ranks that keep them.
std::vector<float> whole_masters(Executor& run, Communicator& ranks) {
  const std::vector<StateField> fields = run.model_fields();
  std::vector<float> all;
  for (const StagePlan& stage : run.plan().stages)
    for (const TensorSpec& spec : stage.specs) {
      std::vector<double> values(static_cast<std::size_t>(spec.elements()), -1e300);
      for (const StateField& field : fields) {
        if (field.path != "/model/" + spec.name || field.dtype != DType::f32) continue;
        std::vector<float> slab(field.bytes() / sizeof(float));
        run.copy_to_host(field, slab.data());
        const std::int64_t begin = field.col_begin, end = field.col_end == 0 ? spec.cols : field.col_end;
        std::size_t next = 0;
        for (std::int64_t r = field.row_begin; r < field.row_end; ++r)
          for (std::int64_t c = begin; c < end; ++c)
            values[static_cast<std::size_t>(r * spec.cols + c)] = static_cast<double>(slab[next++]);
      }
      ranks.all_reduce(values.data(), values.size(), Reduction::max);
      all.insert(all.end(), values.begin(), values.end());
    }
  return all;
}

template <class T>
Trained masters_on(Communicator& ranks, const TrainingCase& run, int steps) {
  TypedExecutor<Host, T> session(Host(), make_plan({run.options, ranks.size()}), ranks);
  session.initialise(5);
  session.weights_changed();
  Trained result;
  train_steps(session, run.options, 0, steps, result);
  result.weights = whole_masters(session, ranks);
  return result;
}

template <class T>
Trained masters_alone(TrainingCase run, int steps) {
  run.options.parallel = ParallelOptions();
  return train_once([&] { return masters_on<T>(*make_lone_communicator(), run, steps); });
}

void expect_same_bits(const Trained& a, const Trained& b, const std::string& what) {
  EXPECT_EQ(a.loss, b.loss) << what;
  EXPECT_EQ(a.norm, b.norm) << what;
  EXPECT_TRUE(a.weights == b.weights) << what;
}

TrainingCase sharded_case(const std::string& kind, int micros, Family family = Family::llama) {
  TrainingCase run = training_case(kind, family);
  run.options.model.num_hidden_layers = 4;
  run.options.parallel.dp = world().size();
  run.options.train.global_batch = micros * world().size();
  return run;
}

std::string name_of(Shard shard, const std::string& what) {
  return what + (shard == Shard::weights ? ", weights" : ", gradients");
}

// Ranks: Shards 2 4

TEST(Shards, GiveTheBitsOfOneRank) {
  for (const char* kind : {"adamw", "muon", "soap"})
    for (const int micros : {1, 3}) {
      TrainingCase run = sharded_case(kind, micros);
      const Trained one = masters_alone<float>(run, 4);
      for (const Shard shard : shards) {
        run.options.parallel.shard = shard;
        expect_same_bits(one, masters_on<float>(world(), run, 4),
                         name_of(shard, fmt::format("{} of {} micro-batches", kind, micros)));
      }
    }
}

TEST(Shards, RoundedWeightsGiveTheBitsOfOneRank) {
  for (const char* kind : {"adamw", "muon"}) {
    TrainingCase run = sharded_case(kind, 3);
    const Trained one = masters_alone<bf16>(run, 5);
    for (const Shard shard : shards) {
      run.options.parallel.shard = shard;
      expect_same_bits(one, masters_on<bf16>(world(), run, 5), name_of(shard, kind));
    }
  }
}

// One data-parallel rank has all masters: it rounds those of a block before each pass that reads it.
TEST(Shards, OneRankNeedNotKeepRoundedWeights) {
  for (const char* kind : {"adamw", "muon", "soap-muon", "soap"})
    for (const bool tied : {false, true}) {
      TrainingCase run = sharded_case(kind, 2);
      run.options.model.tie_word_embeddings = tied;
      run.options.train.precision = TrainOptions::Precision::bf16;
      run.options.parallel = ParallelOptions();
      const auto expect_equal = [&](Communicator& ranks, const std::string& what) {
        run.options.parallel.shard = Shard::state;
        const Trained kept = masters_on<bf16>(ranks, run, 4);
        run.options.parallel.shard = Shard::weights;
        EXPECT_TRUE(weights_in_turn({run.options, ranks.size()})) << what;
        expect_same_bits(kept, masters_on<bf16>(ranks, run, 4), fmt::format("{}, tied {}, {}", kind, tied, what));
      };
      expect_equal(*make_lone_communicator(), "one rank");
      run.options.parallel.tp = 2;
      run.options.parallel.pp = world().size() / 2;
      expect_equal(world(), "tensor-parallel ranks");
    }
}

TEST(Shards, GiveTheBitsOfOneRankInEveryFamily) {
  for (const Family family : {Family::olmo2, Family::qwen3, Family::gpt, Family::qwen3_moe})
    for (const bool tied : {false, true}) {
      TrainingCase run = sharded_case("muon", 2, family);
      run.options.model.tie_word_embeddings = tied;
      run.options.train.recompute = tied;
      const Trained one = masters_alone<float>(run, 4);
      for (const Shard shard : shards) {
        run.options.parallel.shard = shard;
        run.options.parallel.node_size = tied ? 2 : 0;
        expect_same_bits(one, masters_on<float>(world(), run, 4),
                         name_of(shard, fmt::format("{}, tied {}", name(family), tied)));
        run.options.parallel = ParallelOptions();
        run.options.parallel.dp = world().size();
      }
    }
}

TEST(Shards, ChangeNoBitOfOtherPartitions) {
  TrainingCase run = sharded_case("muon", 2);
  const Trained one = masters_alone<float>(run, 4);
  for (const auto partition : {ParallelOptions::Partition::balanced, ParallelOptions::Partition::layerwise,
                               ParallelOptions::Partition::start_index})
    for (const Shard shard : shards) {
      run.options.parallel.shard = shard;
      run.options.parallel.partition = partition;
      expect_same_bits(one, masters_on<float>(world(), run, 4),
                       name_of(shard, fmt::format("partition {}", static_cast<int>(partition))));
    }
}

TEST(Shards, AgreeWithStateUnderMeansLookaheadAndClippedScores) {
  const auto expect_equal = [](TrainingCase run, const char* what) {
    const Trained state = masters_on<float>(world(), run, 5);
    for (const Shard shard : shards) {
      run.options.parallel.shard = shard;
      expect_same_bits(state, masters_on<float>(world(), run, 5), name_of(shard, what));
    }
  };
  TrainingCase run = sharded_case("muon", 2);
  run.options.train.ema_tau = 10;
  run.options.train.lookahead = {.factor = 0.3, .from = 0, .until = 100};
  expect_equal(run, "a mean, and lookahead");
  TrainingCase clipped = sharded_case("muon", 2);
  clipped.options.optimizer.qk_clip = 0.01;
  expect_equal(clipped, "clipped scores");
  expect_equal(sharded_case("schedule-free", 2), "schedule-free");
}

// In pipelines the data-parallel ranks of a stage are half of all.
TEST(Shards, GiveTheBitsOfOneRankInPipelines) {
  if (world().size() != 4) return;
  for (const Kind schedule : {Kind::one_f_one_b, Kind::gpipe, Kind::interleaved})
    for (const bool tied : {false, true}) {
      TrainingCase run = pipeline_case("muon");
      run.options.model.tie_word_embeddings = tied;
      const Trained one = masters_alone<float>(run, 4);
      run.options.parallel.dp = 2;
      run.options.parallel.pp = schedule == Kind::interleaved ? 4 : 2;
      run.options.parallel.schedule = schedule;
      if (schedule == Kind::interleaved) run.options.parallel.placement = ParallelOptions::Placement::round_robin;
      for (const Shard shard : shards) {
        run.options.parallel.shard = shard;
        expect_same_bits(one, masters_on<float>(world(), run, 4),
                         name_of(shard, fmt::format("{}, tied {}", name(schedule), tied)));
      }
    }
}

// Experts on the ranks of their place: one holder of each, or two, and parts of them on tensor-parallel ranks. With one
// micro-batch the sums are those of "state"; of several, others are together in the products of an expert.
TEST(Shards, OfExpertsAgreeWithState) {
  for (const char* kind : {"adamw", "muon"})
    for (const auto& [tp, ep, micros] : {std::tuple(1, 2, 1), {1, 2, 3}, {1, 4, 1}, {2, 2, 1}, {2, 1, 2}, {2, 2, 2}}) {
      const int dp = world().size() / tp;
      if (dp % ep != 0 || dp == 1) continue;
      TrainingCase run = sharded_case(kind, 1, Family::qwen3_moe);
      run.options.model.num_experts = 8;
      run.options.parallel.tp = tp;
      run.options.parallel.dp = dp;
      run.options.parallel.ep = ep;
      run.options.train.global_batch = micros * dp;
      run.options.train.recompute = ep == 4;
      const Trained state = masters_on<float>(world(), run, 4);
      for (const Shard shard : shards) {
        run.options.parallel.shard = shard;
        const Trained other = masters_on<float>(world(), run, 4);
        const std::string what =
            name_of(shard, fmt::format("{}, tp {}, ep {}, {} micro-batches", kind, tp, ep, micros));
        if (micros == 1) {
          expect_same_bits(state, other, what);
          continue;
        }
        EXPECT_LT(largest_difference(state, other), allowed_drift(kind, 4).loss) << what;
        EXPECT_LT(weight_difference(state, other), allowed_drift(kind, 4).weights) << what;
      }
    }
}

// Weights of a block come as often as the plan says: those of experts from their holders, where there are several.
TEST(Shards, OfExpertsComeAsThePlanSays) {
  for (const int ep : {2, world().size()}) {
    TrainingCase run = sharded_case("muon", 2, Family::qwen3_moe);
    run.options.model.num_experts = 8;
    run.options.parallel.ep = ep;
    run.options.parallel.shard = Shard::weights;
    const Plan plan = make_plan({run.options, world().size()});
    std::int64_t all = 0, of_experts = 0;
    for (const Collective& collective : collectives(plan)) {
      if (collective.what == "weights") all += collective.count;
      if (collective.what == "expert weights") of_experts += collective.count;
    }
    EXPECT_EQ(of_experts > 0, ep < world().size());
    TypedExecutor<Host, float> executor(Host(), plan, world());
    executor.initialise(5);
    Trained result;
    train_steps(executor, run.options, 0, 3, result);
    EXPECT_EQ(executor.exchanges_per_step().weights, all + of_experts) << ep;
  }
}

// Ranks: ShardsOfShards 4

// With tensor parallelism, parts of gradients are summed over its ranks before micro-batches are: in another order than
// with "state" where there are several.
TEST(ShardsOfShards, AgreeWithState) {
  using TpUpdate = ParallelOptions::TpUpdate;
  for (const auto update : {TpUpdate::home, TpUpdate::duplicated, TpUpdate::distributed, TpUpdate::blockwise})
    for (const int micros : {1, 2}) {
      TrainingCase run = grid_case("muon", 2);
      run.options.parallel.bucket_elements = 0;
      run.options.parallel.tp_update = update;
      run.options.train.global_batch = micros * run.options.parallel.dp;
      const Trained state = masters_on<float>(world(), run, 4);
      for (const Shard shard : shards) {
        run.options.parallel.shard = shard;
        const Trained other = masters_on<float>(world(), run, 4);
        const std::string what = name_of(shard, fmt::format("tp_update {}, {}", static_cast<int>(update), micros));
        if (micros == 1) {
          expect_same_bits(state, other, what);
          continue;
        }
        EXPECT_LT(largest_difference(state, other), allowed_drift("muon", 4).loss) << what;
      }
    }
}

// Ranks: UnevenShards 3

// Three ranks are no power of two: with one micro-batch each the sums are those of "state", with three they are taken
// in another order.
TEST(UnevenShards, AgreeWithState) {
  for (const char* kind : {"adamw", "muon", "soap"})
    for (const int micros : {1, 2}) {
      TrainingCase run = sharded_case(kind, micros);
      const Trained state = masters_on<float>(world(), run, 4);
      for (const Shard shard : shards) {
        run.options.parallel.shard = shard;
        const Trained other = masters_on<float>(world(), run, 4);
        if (micros == 1) {
          expect_same_bits(state, other, name_of(shard, kind));
          continue;
        }
        EXPECT_NEAR(state.loss[0], other.loss[0], 1e-12 * state.loss[0]) << name_of(shard, kind);
        EXPECT_LT(largest_difference(state, other), allowed_drift(kind, 4).loss) << name_of(shard, kind);
      }
    }
}

TEST(UnevenShards, SumInAnyOrderWhereBitsMayDiffer) {
  TrainingCase run = sharded_case("muon", 3);
  run.options.run.deterministic = false;
  const Trained state = masters_on<float>(world(), run, 4);
  for (const Shard shard : shards) {
    run.options.parallel.shard = shard;
    EXPECT_LT(largest_difference(state, masters_on<float>(world(), run, 4)), allowed_drift("muon", 4).loss);
  }
}

}  // namespace
}  // namespace sestina
