// Models against Hugging Face transformers: logits, loss, every gradient, and 30 AdamW updates, within the tolerances
// that the files themselves carry (8 times the spread of the reference's own single-precision runs). mixtral-balanced
// has one layer and its load-balancing loss in the gradients.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/optimizer/gradient_norm.hpp"
#include "core/optimizer/learning_rate_schedule.hpp"
#include "core/optimizer/methods/adamw.hpp"
#include "io/hf/safetensors.hpp"
#include "regression/hdf5_reader.hpp"
#include "regression/unit/core/model_rig.hpp"
#include "sestina_test_paths.hpp"

namespace sestina {
namespace {

constexpr int batch = 4, sequence = 32, steps = 30;

class GoldenModel : public testing::TestWithParam<const char*> {
 protected:
  GoldenModel()
      : folder_(std::string(SESTINA_SOURCE_DIR) + "/regression/golden/models/" + GetParam()),
        reference_(folder_ + "/reference.h5"),
        tokens_(Hdf5Reader(folder_ + "/tokens.h5").integers("tokens")),
        rig_(ModelConfig::from_hf_folder(folder_), batch, sequence) {
    const SafeTensors file = SafeTensors::open(folder_);
    for (std::size_t i = 0; i < rig_.arena.size(); ++i) {
      const TensorSpec& spec = rig_.arena.specs()[i];
      std::vector<float> values(static_cast<std::size_t>(spec.elements()));
      file.read_f32(spec.name, spec.is_vector() ? std::vector{spec.rows} : std::vector{spec.rows, spec.cols},
                    values.data());
      rig_.set_master(i, values);
    }
    rig_.arena.round_weights(rig_.exec);
    load(0);
  }

  void load(int step) {
    std::vector<std::int32_t> in, out;
    for (int b = 0; b < batch; ++b) {
      const auto row = tokens_.begin() + (step * batch + b) * (sequence + 1);
      in.insert(in.end(), row, row + sequence);
      out.insert(out.end(), row + 1, row + 1 + sequence);
    }
    rig_.load(in, out);
  }

  template <class Values>
  void expect_close(const std::string& name, const Values& got) const {
    const std::vector<double> want = reference_.numbers(name);
    const double atol = reference_.attribute(name, "atol"), rtol = reference_.attribute(name, "rtol");
    ASSERT_EQ(got.size(), want.size()) << name;
    double worst = 0;  // as a share of the tolerance
    for (std::size_t i = 0; i < want.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) - want[i]) / (atol + rtol * std::abs(want[i])));
    EXPECT_LE(worst, 1) << name;
  }

  std::string folder_;
  Hdf5Reader reference_;
  std::vector<std::int32_t> tokens_;
  ModelRig<Device, float> rig_;
};

TEST_P(GoldenModel, LogitsLossAndGradients) {
  const double mean = rig_.loss_and_backward(1.0 / (batch * sequence)) / (batch * sequence);
  EXPECT_NEAR(mean, reference_.attribute("/", "loss"), reference_.attribute("/", "loss_atol"));
  expect_close("logits", rig_.logits(0, batch * sequence));
  for (std::size_t i = 0; i < rig_.arena.size(); ++i)
    expect_close("gradient/" + rig_.arena.specs()[i].name, rig_.gradient(i));
}

TEST_P(GoldenModel, ThirtyUpdates) {
  const auto hyper = [&](const char* name) { return reference_.attribute("hyper", name); };
  OptimizerOptions options;
  options.adamw = {hyper("lr"), hyper("beta1"), hyper("beta2"), hyper("eps"), hyper("weight_decay")};
  ScheduleOptions shape;
  shape.lr = hyper("lr");
  shape.steps = steps;
  shape.warmup_steps = static_cast<std::int64_t>(hyper("warmup_steps"));
  shape.min_lr_ratio = hyper("min_lr_ratio");
  const Schedule schedule(shape);

  std::vector<OwnedTensor<Device, float>> tensors;
  for (std::size_t i = 0; i < rig_.arena.size(); ++i)
    tensors.push_back({rig_.arena.specs()[i], rig_.arena.gradient(i), rig_.arena.master(i), rig_.arena.compute(i)});
  AdamW<Device, float> optimizer(rig_.exec, tensors, options);
  GradientNorm<Device, float> gradient_norm(rig_.arena);

  std::vector<double> loss, norm;
  for (int t = 1; t <= steps; ++t) {
    load(t - 1);
    loss.push_back(rig_.loss_and_backward(1.0 / (batch * sequence)) / (batch * sequence));
    gradient_norm.squares(rig_.exec);
    gradient_norm.by_tensor();
    norm.push_back(gradient_norm.norm());
    optimizer.step(rig_.exec, t, schedule.factor(t), clip_scale(norm.back(), hyper("clip_norm")));
  }
  rig_.exec.fence("training");
  expect_close("training/loss", loss);
  expect_close("training/grad_norm", norm);
  for (std::size_t i = 0; i < rig_.arena.size(); ++i)
    expect_close("final_weight/" + rig_.arena.specs()[i].name, rig_.master(i));
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenModel,
                         testing::Values("llama-gqa-untied", "olmo2-untied", "qwen3-tied", "qwen3-moe-untied",
                                         "mixtral-balanced"),
                         [](const auto& info) {
                           std::string text = info.param;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text;
                         });

}  // namespace
}  // namespace sestina
