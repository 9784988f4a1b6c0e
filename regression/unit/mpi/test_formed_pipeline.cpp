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
};
constexpr Form forms[] = {
    {"poet-x", "adamw"}, {"poet-x", "adamw", Variant::mem}, {"poet-x", "adamw", Variant::xq}, {"lora", "muon"}};

// Merges behind updates 3 and 6, clipped in another way behind them.
TrainingCase formed_case(const Form& form, Family family = Family::llama) {
  TrainingCase run = pipeline_case(form.optimizer, family);
  run.options.train.clip_norm = 0.5;
  LinearOptions& linear = run.options.model.linear;
  linear.form = form.form;
  linear.variant = form.variant;
  linear.block_size = 4;
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

}  // namespace
}  // namespace sestina
