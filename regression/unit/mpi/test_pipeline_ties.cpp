// Stages cut by hand, tied embeddings, and pipelines that are emptied, on several ranks against one process.
#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

// Ranks: PipelineTies 2 4

// Wherever stages are cut, synchronous ones give the same bits; asynchronous ones have their delays at other layers.
TEST(PipelineTies, StagesAreCutByHand) {
  TrainingCase run = pipeline_case("muon");
  const Trained whole = train_in_one_process(run, 3);
  run.options.parallel.pp = 2;
  run.options.parallel.stage_layers = {3, 1};
  const auto two = world().split(world().rank() / 2, world().rank());
  expect_same(whole, train_pipeline(*two, run, 3), "synchronous");
  run.options.parallel.schedule = Kind::async_1f1b;
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::stage;
  const Trained one = train_in_one_process(run, 6);
  expect_same(one, train_pipeline(*two, run, 6), "asynchronous");
  expect_goes_on(one, {run, 3, 6}, "stopped and resumed");
  TrainingCase even = run;
  even.options.parallel.stage_layers.clear();
  EXPECT_FALSE(one.weights == train_in_one_process(even, 6).weights);
  const auto alone = make_lone_communicator();  // what is in flight belongs to one cut
  TypedExecutor<Host, float> by_hand(Host(), make_plan({run.options, alone->size()}), *alone),
      in_halves(Host(), make_plan({even.options, alone->size()}), *alone);
  EXPECT_EQ(by_hand.stage(0).range().end, 3);
  EXPECT_FALSE(in_halves.resume(3, by_hand.pipeline_state().value()));
}

TrainingCase tied(TrainingCase run) {
  run.options.model.tie_word_embeddings = true;
  return run;
}

// The first stage owns the matrix, the last one multiplies by it: to the bits of one rank.
TEST(PipelineTies, TiedEmbeddingsGiveTheBitsOfOneStage) {
  for (const Family family : {Family::llama, Family::gpt})
    for (const int micro_batch : {1, 8}) {  // several leaves of the tree of gradients, and one
      TrainingCase plain = tied(pipeline_case("muon", family));
      plain.options.train.micro_batch = micro_batch;
      const Trained whole = train_in_one_process(plain, 4);
      for (const Kind kind : {Kind::one_f_one_b, Kind::gpipe, Kind::interleaved, Kind::zb_h1})
        for (const bool many : {false, true}) {
          const TrainingCase run = in_stages(plain, kind);
          expect_same(whole, many ? train_pipeline(world(), run, 4) : train_in_one_process(run, 4),
                      fmt::format("schedule {}, {} ranks, micro-batches of {}", static_cast<int>(kind),
                                  many ? world().size() : 1, micro_batch));
        }
    }
}

TEST(PipelineTies, TiedEmbeddingsOfStagesOfSeveralRanks) {
  if (world().size() != 4) return;
  const auto half = world().split(world().rank() / 2, world().rank());
  for (const bool tensor : {false, true})
    for (const Kind schedule : {Kind::one_f_one_b, Kind::zb_h1}) {
      TrainingCase run = tied(pipeline_case("adamw"));
      (tensor ? run.options.parallel.tp : run.options.parallel.dp) = 2;
      const Trained flat = train_pipeline(*half, run, 4);
      run.options.parallel.pp = 2;
      run.options.parallel.schedule = schedule;
      expect_same(flat, train_pipeline(world(), run, 4), tensor ? "tp 2" : "dp 2");
    }
}

TEST(PipelineTies, TiedEmbeddingsOfAsynchronousStages) {
  for (const Correction kind : {Correction::none, Correction::prediction, Correction::dc_asgd})
    for (const int micro_batch : {8, 4}) {
      TrainingCase run = tied(corrected_case(kind, "adamw", micro_batch));
      run.options.parallel.drain_every = micro_batch == 4 ? 5 : 0;
      const Trained one = train_in_one_process(run, 8);
      expect_same(one, train_pipeline(world(), run, 8), fmt::format("{}, {}", name(kind), micro_batch));
      expect_goes_on(one, {run, 4, 8}, "stopped and resumed");
    }
}

// Emptied at a save: as by parallel.drain_every, on any number of ranks, and as from the checkpoint.
TEST(PipelineTies, ASaveCanEmptyIt) {
  for (const auto& [kind, optimizer] : {std::pair(Correction::none, "muon"), std::pair(Correction::prediction, "adamw"),
                                        std::pair(Correction::pipemare, "adamw")})
    for (const Stash stash : {Stash::on, Stash::recompute, Stash::saved})
      for (const int micro_batch : {8, 4}) {
        TrainingCase run = corrected_case(kind, optimizer, micro_batch);
        if (kind == Correction::none)
          run.options.parallel.stash = stash;
        else if (stash != Stash::on)
          continue;
        run.options.model.tie_word_embeddings = run.options.parallel.stash == Stash::on;
        SCOPED_TRACE(
            fmt::format("{}, stash {}, micro-batches of {}", name(kind), static_cast<int>(stash), micro_batch));
        const auto alone = make_lone_communicator();
        const Trained one = train_pipeline(*alone, run, 8, 4);
        EXPECT_FALSE(one.weights == train_in_one_process(run, 8).weights);
        expect_same(one, train_pipeline(world(), run, 8, 4), "on many ranks");
        expect_goes_on(one, {run, 4, 8, true}, "stopped and resumed");
        run.options.parallel.drain_every = 4;
        expect_same(one, train_in_one_process(run, 8), "as drain_every");
      }
}

// What an evaluation multiplies by is the newest matrix: the losses of a run without stages.
TEST(PipelineTies, TiedEmbeddingsAreEvaluatedAsTheyAre) {
  const auto losses = [](Communicator& ranks, const TrainingCase& run) {
    TypedExecutor<Host, float> executor(Host(), make_plan({run.options, ranks.size()}), ranks);
    executor.initialise(5);
    executor.weights_changed();
    SampleBatches batches(run.options, executor.share(), 0);
    const std::vector<std::int32_t> tokens = sample_tokens(run.options, 3);
    std::vector<double> all;
    for (int t = 1; t <= 3; ++t) {
      for (int batch = 0; batch < 2; ++batch) {  // the second one needs no message
        double loss = executor.loss({tokens.data(), nullptr});
        executor.pipeline().all_reduce(&loss, 1, Reduction::sum);
        all.push_back(loss);
      }
      take_step(executor, t, batches);
    }
    return all;
  };
  TrainingCase run = tied(pipeline_case("adamw"));
  const auto alone = make_lone_communicator();
  const std::vector<double> whole = losses(*alone, run);
  EXPECT_NE(whole[0], whole[2]);
  run.options.parallel.pp = world().size();
  EXPECT_EQ(whole, losses(world(), run));
}

}  // namespace
}  // namespace sestina
