// Weights in another form than dense in pipeline stages: on several ranks, or in one process, against the whole model.
#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

// Ranks: FormedPipeline 2 4
template <class Space>
class FormedPipeline : public testing::Test {};
TYPED_TEST_SUITE(FormedPipeline, reference::RunSpaces, reference::SpaceNames);

using Variant = LinearOptions::Variant;

struct Form {
  const char *form, *optimizer;
  Variant variant = Variant::fast;
  int bits = 8;  // of codes; those of 4 have residuals
};
constexpr Form forms[] = {{"poet-x", "adamw"},
                          {"poet-x", "adamw", Variant::mem},
                          {"poet-x", "adamw", Variant::xq},
                          {"poet-x", "adamw", Variant::xq, 4},
                          {"lora", "muon"}};

// Merges after updates 3 and 6, clipped in another way after them.
TrainingCase formed_case(const Form& form, Family family = Family::llama) {
  TrainingCase run = pipeline_case(form.optimizer, family);
  run.options.train.clip_norm = 0.5;
  LinearOptions& linear = run.options.model.linear;
  linear.form = form.form;
  linear.variant = form.variant;
  linear.base_bits = form.bits;
  linear.residual = form.bits == 4;
  linear.block_size = 16;
  linear.one_block = form.variant == Variant::mem;
  linear.merge_every = 3;
  linear.group_size = 64;
  linear.rank = 3;
  linear.clip_warmup_steps = 2;
  linear.clip_warmup_until = 100;
  linear.clip_start_ratio = 0.1;
  return run;
}

TYPED_TEST(FormedPipeline, SynchronousSchedulesGiveTheBitsOfOneStage) {
  for (const Form& form : forms)
    for (const Family family : {Family::llama, Family::olmo2, Family::gpt}) {
      if (family != Family::llama && (form.variant != Variant::fast || form.form == std::string("lora"))) continue;
      const TrainingCase plain = formed_case(form, family);
      const Trained whole = train_in_one_process<TypeParam>(plain, 4);
      for (const Kind kind : {Kind::one_f_one_b, Kind::interleaved, Kind::zb_h1}) {
        const TrainingCase run = in_stages(plain, kind);
        const std::string what =
            fmt::format("{} {}, schedule {}", form.form, static_cast<int>(form.variant), static_cast<int>(kind));
        expect_same(whole, train_pipeline<TypeParam>(world(), run, 4), what);
        if (kind == Kind::zb_h1) expect_same(whole, train_in_one_process<TypeParam>(run, 4), what + ", one process");
      }
    }
}

// Their gradients are dense ones, so that a backward pass has nothing to hand on.
TYPED_TEST(FormedPipeline, WeightsInEightBitsGiveTheBitsOfOneStage) {
  for (const char* optimizer : {galore_int8, apollo_int8}) {
    const TrainingCase plain = pipeline_case(optimizer, Family::llama);
    const Trained whole = train_in_one_process<TypeParam>(plain, 4);
    for (const Kind kind : {Kind::one_f_one_b, Kind::interleaved, Kind::zb_h1})
      expect_same(whole, train_pipeline<TypeParam>(world(), in_stages(plain, kind), 4), optimizer);
  }
}

TrainingCase late(TrainingCase run, Stash stash, int micro_batch) {
  run.options.train.micro_batch = micro_batch;
  run.options.parallel.pp = 4;
  run.options.parallel.schedule = Kind::async_1f1b;
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::stage;
  run.options.parallel.stash = stash;
  return run;
}

TYPED_TEST(FormedPipeline, AsynchronousStagesGiveTheBitsOfOneProcess) {
  for (const Form& form : forms)
    for (const Stash stash : {Stash::on, Stash::recompute, Stash::saved})
      for (const int micro_batch : {8, 4}) {                              // one and two micro-batches of an update
        if (micro_batch == 8 && form.variant != Variant::fast) continue;  // stages do not tell variants apart
        TrainingCase run = late(formed_case(form), stash, micro_batch);
        const std::string what = fmt::format("{} {}, stash {}, micro-batches of {}", form.form,
                                             static_cast<int>(form.variant), static_cast<int>(stash), micro_batch);
        const Trained one = train_in_one_process<TypeParam>(run, 8);
        expect_same(one, train_pipeline<TypeParam>(world(), run, 8), what);
        if (world().size() == 4) continue;
        run.options.parallel.placement = ParallelOptions::Placement::round_robin;
        expect_same(one, train_pipeline<TypeParam>(world(), run, 8), what + ", round-robin");
      }
}

// Rotations by matrix optimizers, from old gradients: state begins again in the merges for which the pipeline drains,
// that of refresh workers too.
TYPED_TEST(FormedPipeline, MatrixOptimizersTurnRotationsOfAsynchronousStages) {
  for (const char* kind : {"muon", "basis-rotation", "soap"}) {
    TrainingCase run = late(formed_case({"poet-x", kind}), Stash::on, 4);
    if (kind == std::string("soap")) {
      run.options.optimizer.refresh.asynchronous = true;
      run.options.optimizer.matrix->refresh_every = 2;
      run.options.optimizer.matrix->refresh_staleness = 1;
    }
    const Trained one = train_in_one_process<TypeParam>(run, 8);
    expect_same(one, train_pipeline<TypeParam>(world(), run, 8), kind);
    if (std::is_same_v<TypeParam, Host>) expect_goes_on(one, {run, 5, 8}, fmt::format("{}, stopped and resumed", kind));
    run.options.parallel.delay_scale = 0;
    EXPECT_NE(train_pipeline<TypeParam>(world(), run, 8).loss, one.loss) << kind;  // a delay shows
  }
}

TYPED_TEST(FormedPipeline, WithoutDelayAnAsynchronousPipelineIsASynchronousOne) {
  for (const Form& form : forms) {
    TrainingCase run = late(formed_case(form), Stash::on, 4);
    run.options.parallel.schedule = Kind::one_f_one_b;
    const Trained synchronous = train_pipeline<TypeParam>(world(), run, 7);
    run.options.parallel.schedule = Kind::async_1f1b;
    run.options.parallel.delay_scale = 0;
    const Trained none = train_pipeline<TypeParam>(world(), run, 7);
    EXPECT_EQ(synchronous.loss, none.loss) << form.form;
    EXPECT_TRUE(synchronous.weights == none.weights) << form.form;
    run.options.parallel.delay_scale = 1;
    EXPECT_NE(train_pipeline<TypeParam>(world(), run, 7).loss, none.loss);  // a delay shows
  }
}

// A merge drains as drain_every does: to say so as well changes nothing. What is never merged has no drains.
TYPED_TEST(FormedPipeline, AMergeDrains) {
  if (world().size() != 2) return;  // the first rank does all of it, once
  for (const Form& form : forms) {
    TrainingCase run = late(formed_case(form), Stash::on, 8);
    const Trained merged = train_in_one_process<TypeParam>(run, 8);
    run.options.parallel.drain_every = 3;
    const Trained drained = train_in_one_process<TypeParam>(run, 8);
    if (form.form == std::string("poet-x"))
      expect_same(merged, drained, "drained as well");
    else
      EXPECT_NE(merged.loss, drained.loss);
  }
}

// In the middle of an interval, at a merge, and after it.
TYPED_TEST(FormedPipeline, GoesOnFromACheckpoint) {
  if (!std::is_same_v<TypeParam, Host> || world().size() != 2) return;  // as above
  for (const Form& form : forms)
    for (const Stash stash : {Stash::on, Stash::saved}) {
      const TrainingCase run = late(formed_case(form), stash, 4);
      const Trained one = train_in_one_process(run, 8);
      for (const int stop : {2, 3, 5, 6})
        expect_goes_on(one, {run, stop, 8}, fmt::format("{}, stop {}", form.form, stop));
    }
}

TYPED_TEST(FormedPipeline, CorrectionsOfDelaysGiveTheBitsOfOneProcess) {
  constexpr Correction corrections[] = {Correction::pipedream_lr, Correction::nesterov, Correction::pipemare,
                                        Correction::prediction, Correction::dc_asgd};
  for (const char* name : {"poet-x", "lora"})
    for (const Correction kind : corrections) {
      TrainingCase run = formed_case({name, "adamw"});
      run.options.parallel = corrected_case(kind, "adamw", 4).options.parallel;
      run.options.train.micro_batch = 4;
      if (kind == Correction::nesterov) run.options.optimizer.adamw.momentum_decay = 1.0;
      const Trained one = train_in_one_process<TypeParam>(run, 8);
      expect_same(one, train_pipeline<TypeParam>(world(), run, 8), fmt::format("{}, {}", name, static_cast<int>(kind)));
      if (std::is_same_v<TypeParam, Host>) expect_goes_on(one, {run, 4, 8}, "stopped and resumed");
    }
}

// Stages of two data-parallel ranks: as those ranks with all stages.
TYPED_TEST(FormedPipeline, StagesOfSeveralRanksGiveTheirBitsOnFewerRanks) {
  if (world().size() != 4) return;
  const auto half = world().split(world().rank() / 2, world().rank());
  for (const Form& form : forms)
    for (const Kind schedule : {Kind::zb_h1, Kind::async_1f1b}) {
      TrainingCase run = late(formed_case(form), Stash::on, 2);
      run.options.parallel.dp = 2;
      run.options.parallel.schedule = schedule;
      expect_same(train_pipeline<TypeParam>(*half, run, 7), train_pipeline<TypeParam>(world(), run, 7),
                  fmt::format("{}, schedule {}", form.form, static_cast<int>(schedule)));
    }
}

// Ranks: FormedUpdates 2

// The weights are merged and the moments started over on time, whether their updates are withheld or not.
TEST(FormedUpdates, AreMergedWhenWithheld) {
  const TrainingCase run = late(formed_case({"poet-x", "adamw"}), Stash::on, 8);
  LoneRun lone(run, 2);
  auto& executor = lone.executor;
  const std::string name = "model.layers.0.mlp.down_proj.weight/";
  const auto state = [&] {
    SavedState all;
    save(executor, executor.fields(), all);
    return all;
  };
  const auto zero = [](const std::vector<std::byte>& bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
  };
  const SavedState ahead = state();
  executor.run(0).withhold();
  const SavedState merged = state();
  executor.run(0).withhold();
  const SavedState after_merge = state();
  const std::string rotation = "/model/" + name + "rotation_in",
                    moments = "/optimizer/" + name + "rotation_in/momentum";
  EXPECT_FALSE(zero(ahead.at(rotation)));
  EXPECT_TRUE(zero(merged.at(rotation)));
  EXPECT_NE(ahead.at("/model/" + name + "perm_in"), merged.at("/model/" + name + "perm_in"));
  EXPECT_EQ(ahead.at(moments), merged.at(moments));
  EXPECT_FALSE(zero(merged.at(moments)));
  EXPECT_TRUE(zero(after_merge.at(moments)));
}

// What is kept of older versions is what is trained.
TEST(FormedUpdates, VersionsHoldWhatIsTrained) {
  for (const Form& form : forms) {
    const TrainingCase run = late(formed_case(form), Stash::on, 8);
    LoneRun lone(run, 2);
    auto& executor = lone.executor;
    SavedState kept;
    save(executor, executor.in_flight_fields(false), kept);
    std::size_t trained = 0;
    for (const TensorHolding& tensor : executor.stage(0).arena().layout().tensors) {
      const TensorSpec& spec = tensor.whole;
      const bool has = kept.contains("/run/pipeline/version_1/" + spec.name);
      EXPECT_EQ(has, spec.trainable) << spec.name;
      trained += has ? 1 : 0;
    }
    EXPECT_GT(trained, 10U);
  }
}

}  // namespace
}  // namespace sestina
