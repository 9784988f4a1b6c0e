// Whole steps of a small Llama, one for each optimizer whose work differs in kind, on one rank and with the same
// tokens.
#include <fmt/format.h>

#include <memory>

#include "core/deck/deck.hpp"
#include "kernels/base/random.hpp"
#include "parallel/stage/make_stages.hpp"
#include "parallel/step/executor.hpp"
#include "regression/bench/speed_guard/speed_cases.hpp"

namespace sestina {
namespace {

// Two layers, so that each thing of a block is there, and what one block gives the next. As narrow as makes sense:
// valgrind takes 100 ns for each multiplication that is fused with an addition.
constexpr const char* small_llama = R"(
[run]
steps = 100
threads = 1
[model]
family = "llama"
hidden_size = 32
intermediate_size = 80
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
vocab_size = 128
[data]
sequence_length = 32
[train]
global_batch = 2
)";

Options read_options(const std::string& more) {
  Deck deck;
  deck.add_text(small_llama + more, "deck of the speed guard", ".");
  const Options options = Options::read(deck);
  deck.finish();
  return options;
}

// Tokens that depend on their number alone.
class CountedTokens final : public Batches {
 public:
  CountedTokens(const Options& options, const PassOptions& passes)
      : vocabulary_(static_cast<std::uint64_t>(options.model.vocab_size)),
        tokens_(static_cast<std::size_t>(passes.micro_batch) * static_cast<std::size_t>(passes.sequence + 1)) {}

  BatchView next() override {
    for (std::int32_t& token : tokens_) token = static_cast<std::int32_t>(philox(1, 2, number_++)[0] % vocabulary_);
    return {tokens_.data(), nullptr};
  }

 private:
  std::uint64_t vocabulary_, number_ = 0;
  std::vector<std::int32_t> tokens_;
};

class SmallRun {
 public:
  explicit SmallRun(const std::string& more)
      : options_(read_options(more)),
        plan_(make_plan({options_, 1})),
        stages_(make_stages(options_.run.space, options_.train.precision)),
        world_(make_lone_communicator()),
        executor_(*stages_, plan_, *world_),
        tokens_(options_, executor_.options()) {
    executor_.initialise(1);
    executor_.weights_changed();
  }

  void step() {
    executor_.clock().start();
    if (executor_.backward(++t_, 1, tokens_).sums) executor_.update();
    executor_.exchange();
    executor_.finish_steps();
  }

 private:
  Options options_;
  Plan plan_;
  std::unique_ptr<StageMaker> stages_;
  std::unique_ptr<Communicator> world_;
  Executor executor_;
  CountedTokens tokens_;
  std::int64_t t_ = 0;
};

// `unlike`: steps before those that are the same again and again, which make bases.
SpeedCase step_case(const std::string& name, const std::string& more, int unlike = 0) {
  return {name, 2, [=] {
            const auto run = std::make_shared<SmallRun>(more);
            for (int i = 0; i < unlike; ++i) run->step();
            return [=] { run->step(); };
          }};
}

}  // namespace

std::vector<SpeedCase> step_cases() {
  const auto optimizer = [](const char* kind) { return fmt::format("[optimizer]\nkind = \"{}\"\n", kind); };
  const std::string each = "[optimizer.refresh]\nevery = 1\n";  // a refresh in each step that is counted
  return {step_case("step, AdamW", optimizer("adamw")),
          step_case("step, AdamW, bf16", "precision = \"bf16\"\n" + optimizer("adamw")),
          step_case("step, Muon", optimizer("muon")), step_case("step, SOAP", optimizer("soap") + each, 1)};
}

}  // namespace sestina
