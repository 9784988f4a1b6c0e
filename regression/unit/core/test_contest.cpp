// The model of modded-nanogpt's contest in steps with every switch of its own: twenty updates against the numbers of a
// plain program in PyTorch (regression/oracle/track3_training.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/deck/options.hpp"
#include "core/optimizer/learning_rate_schedule.hpp"
#include "regression/unit/core/stage_rig.hpp"
#include "sestina_test_paths.hpp"

namespace sestina {
namespace {

std::string contest_text(const std::string& path) {
  std::ifstream file(SESTINA_SOURCE_DIR + "/regression/" + path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Contest, TwentyUpdatesAreThoseOfPyTorch) {
  Deck deck;
  deck.add_text(contest_text("cases/track3/deck.toml"), "deck.toml", "");
  const Options options = Options::read(deck);
  deck.finish();
  const std::string text = contest_text("data/harbour.txt");
  const auto reference = nlohmann::json::parse(contest_text("cases/track3/reference.json"));
  const auto& losses = reference["metrics"]["{work}/run"]["loss"];
  const auto length = static_cast<std::size_t>(options.data.sequence_length);
  const auto batch = static_cast<std::size_t>(options.train.global_batch);
  StageRig<Host, float> rig(options.model, {static_cast<int>(batch), static_cast<int>(length)}, &options.optimizer);
  rig.stage.initialise(options.run.seed);
  const Schedule schedule(options.schedule);
  const double scale = 1.0 / static_cast<double>(batch * length);
  for (std::int64_t t = 1; t <= options.run.steps; ++t) {
    std::vector<std::int32_t> windows;
    for (std::size_t i = 0; i < batch; ++i)
      for (std::size_t j = 0; j <= length; ++j)
        windows.push_back(
            static_cast<unsigned char>(text[((static_cast<std::size_t>(t) - 1) * batch + i) * length + j]));
    rig.load(windows.data());
    rig.forward_backward(scale, 0);
    const double loss = rig.stage.model().loss_sum(rig.slot[0]) * scale;
    // Single precision against double: AdamW divides small gradients by their own size, so that roundings grow.
    EXPECT_NEAR(loss, losses[std::to_string(t)].get<double>(), 1e-4) << t;
    rig.update(t, schedule.factor(t), 1);
  }
}

}  // namespace
}  // namespace sestina
