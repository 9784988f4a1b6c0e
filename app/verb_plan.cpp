// `sestina plan`: what a run will need, from the deck alone: sizes, bytes by kind, FLOPs, time where [machine] says how
// fast.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "app/deck_layers.hpp"
#include "app/memory_check.hpp"
#include "app/verbs.hpp"
#include "core/model_size.hpp"
#include "core/optimizer/routing.hpp"
#include "core/tensor_spec.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

struct Kind {
  const char* name;
  const char* what;
  std::size_t bytes;
};

struct RunPlan {
  Options options;
  std::vector<TensorSpec> tensors;
  std::vector<Kind> kinds;
  std::size_t total_bytes = 0, checkpoint_bytes = 0;
  std::uint64_t available_bytes = 0;  // 0 = not known
  double flops_per_token = 0, tokens_per_step = 0, flops_per_step = 0;
  std::optional<double> forward_backward_s, optimizer_s,
      checkpoint_s;  // estimates; empty when the machine is not known
  std::optional<double> step_s() const {
    return forward_backward_s && optimizer_s ? std::optional(*forward_backward_s + *optimizer_s) : std::nullopt;
  }
  double planning_s = 0;
};

// AdamW reads weight, gradient and both moments and writes all but the gradient; bf16 runs write the compute copy too.
double update_bytes(std::int64_t parameters, const StorageWidth& width) {
  constexpr double passes = 7;
  const double copy = width.shared() ? 0 : static_cast<double>(width.compute);
  return static_cast<double>(parameters) * (passes * static_cast<double>(width.accumulate) + copy);
}

RunPlan make_plan(const Options& options) {
  RunPlan plan;
  plan.options = options;
  plan.tensors = tensor_specs(options.model);
  const StorageWidth width = options.train.precision == TrainOptions::Precision::bf16 ? width_bf16 : width_fp32;
  const ModelSize size = model_size(options.model, all_layers(options.model), options.train.micro_batch,
                                    options.data.sequence_length, width, options.train.recompute,
                                    optimizer_state_bytes(plan.tensors, options.optimizer, width.accumulate));
  plan.checkpoint_bytes = size.master + size.optimizer;
  plan.kinds = {{"weights", width.shared() ? "weights" : "compute weights", size.weights},
                {"master_weights", "master weights", size.master},
                {"gradients", "gradients", size.gradients},
                {"optimizer", "optimizer state", size.optimizer},
                {"activations", "activations", size.activations},
                {"workspace", "workspace", size.workspace},
                {"checkpoint_copy", "checkpoint copy", plan.checkpoint_bytes}};
  for (const auto& kind : plan.kinds) plan.total_bytes += kind.bytes;
  plan.available_bytes = available_memory_bytes();
  plan.flops_per_token = flops_per_token(options.model, options.data.sequence_length);
  plan.tokens_per_step = static_cast<double>(options.train.global_batch) * options.data.sequence_length;
  plan.flops_per_step = plan.flops_per_token * plan.tokens_per_step;
  const MachineOptions& machine = options.machine;
  if (machine.peak_tflops) plan.forward_backward_s = plan.flops_per_step / (*machine.peak_tflops * 1e12);
  if (machine.memory_bandwidth)
    plan.optimizer_s = update_bytes(size.parameters, width) / (*machine.memory_bandwidth * 1e9);
  if (machine.disk_bandwidth)
    plan.checkpoint_s = static_cast<double>(plan.checkpoint_bytes) / (*machine.disk_bandwidth * 1e9);
  return plan;
}

std::int64_t elements_of(const RunPlan& plan, bool matrices_alone) {
  std::int64_t sum = 0;
  for (const auto& tensor : plan.tensors)
    if (!matrices_alone || !tensor.is_vector()) sum += tensor.elements();
  return sum;
}

Json json_of(std::optional<double> value) { return value ? Json(*value) : Json(nullptr); }

Json to_json(const RunPlan& plan) {
  Json bytes = Json::object(), owners = Json::object(), buckets = Json::array();
  for (const auto& kind : plan.kinds) bytes[kind.name] = kind.bytes;
  bytes["total"] = plan.total_bytes;
  int block = -1;
  for (auto tensor = plan.tensors.rbegin(); tensor != plan.tensors.rend(); ++tensor) {
    if (!tensor->is_vector()) owners[tensor->name] = 0;
    if (tensor->block != block) buckets.push_back(Json::array());
    block = tensor->block;
    buckets.back().insert(buckets.back().begin(), tensor->name);
  }
  const std::int64_t elements = elements_of(plan, true);
  return {{"model", {{"parameters", elements_of(plan, false)}, {"tensors", plan.tensors.size()}}},
          {"parallel", {{"dp", 1}, {"tp", 1}, {"pp", 1}}},
          {"ranks", Json::array({{{"cost", elements}, {"elements", elements}, {"bytes", bytes}}})},
          {"ratios",
           {{"dp", {{"cost", 1.0}, {"elements", 1.0}, {"bound", 1.0}}}, {"hosts", {{"cost", 1.0}, {"bound", 1.0}}}}},
          {"owners", owners},
          {"buckets", buckets},
          {"collectives", Json::array()},
          {"flops_per_token", plan.flops_per_token},
          {"flops_per_step", plan.flops_per_step},
          {"tokens_per_step", plan.tokens_per_step},
          {"steps", plan.options.run.steps},
          {"memory",
           {{"needed_bytes", plan.total_bytes},
            {"available_bytes", plan.available_bytes == 0 ? Json(nullptr) : Json(plan.available_bytes)},
            {"fits", plan.available_bytes == 0 ? Json(nullptr) : Json(plan.total_bytes <= plan.available_bytes)}}},
          {"estimate",
           {{"step_s", json_of(plan.step_s())},
            {"forward_backward_s", json_of(plan.forward_backward_s)},
            {"optimizer_s", json_of(plan.optimizer_s)},
            {"checkpoint_s", json_of(plan.checkpoint_s)}}},
          {"planning_s", plan.planning_s}};
}

std::string with_unit(double value, const char* unit) {
  static constexpr const char* prefixes[] = {"", "k", "M", "G", "T", "P", "E", "Z"};
  std::size_t i = 0;
  while (value >= 1000 && i + 1 < std::size(prefixes)) {
    value /= 1000;
    ++i;
  }
  return fmt::format("{:.4g} {}{}", value, prefixes[i], unit);
}

std::string time_text(double seconds) {
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 120) return fmt::format("{:.3g} s", seconds);
  const auto minutes = static_cast<long long>(seconds / 60);
  return minutes < 120 ? fmt::format("{} min", minutes) : fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

void print_sizes(const RunPlan& plan) {
  const Options& o = plan.options;
  const ModelConfig& m = o.model;
  fmt::print("model       {}{}, {} layers, hidden {}, intermediate {}, heads {} ({} key/value) of {}, vocabulary {}\n",
             name(m.family), m.preset.empty() ? "" : " (" + m.preset + ")", m.num_hidden_layers, m.hidden_size,
             m.intermediate_size, m.num_attention_heads, m.num_key_value_heads, m.head_dim, m.vocab_size);
  fmt::print("parameters  {} in {} tensors\n", with_unit(static_cast<double>(elements_of(plan, false)), ""),
             plan.tensors.size());
  fmt::print("step        {} sequences of {} tokens, {} at a time, {}{}\n", o.train.global_batch,
             o.data.sequence_length, o.train.micro_batch,
             o.train.precision == TrainOptions::Precision::bf16 ? "bf16" : "fp32",
             o.train.recompute ? ", recomputed activations" : "");
  fmt::print("work        {} per token, {} per step\n\n", with_unit(plan.flops_per_token, "FLOP"),
             with_unit(plan.flops_per_step, "FLOP"));
}

void print_memory(const RunPlan& plan) {
  constexpr double bar_width = 40;
  std::size_t largest = 1;
  for (const auto& kind : plan.kinds) largest = std::max(largest, kind.bytes);
  fmt::print("memory\n");
  for (const auto& kind : plan.kinds) {
    const auto marks =
        static_cast<std::size_t>(bar_width * static_cast<double>(kind.bytes) / static_cast<double>(largest) + 0.5);
    fmt::print("  {:16}{:>12}  {}\n", kind.what, with_unit(static_cast<double>(kind.bytes), "B"),
               std::string(marks, '#'));
  }
  const std::string have = plan.available_bytes == 0 ? "" : with_unit(static_cast<double>(plan.available_bytes), "B");
  fmt::print("  {:16}{:>12}  {}\n\n", "total", with_unit(static_cast<double>(plan.total_bytes), "B"),
             have.empty()                               ? ""
             : plan.total_bytes <= plan.available_bytes ? "fits: this machine has " + have + " left"
                                                        : "DOES NOT FIT: this machine has " + have + " left");
}

void print_time(const RunPlan& plan) {
  const auto line = [](const char* what, std::optional<double> seconds, const char* key) {
    fmt::print("  {:16}{:>12}{}\n", what, seconds ? time_text(*seconds) : "unknown",
               seconds ? "" : fmt::format("  (set machine.{})", key));
  };
  fmt::print("time, at the machine's peak\n");
  line("model", plan.forward_backward_s, "peak_tflops");
  line("optimizer", plan.optimizer_s, "memory_bandwidth");
  line("checkpoint", plan.checkpoint_s, "disk_bandwidth");
  if (const auto step = plan.step_s(); step && plan.options.run.steps > 0)
    fmt::print("  {:16}{:>12}  {} steps, {} tokens\n", "run",
               time_text(*step * static_cast<double>(plan.options.run.steps)), plan.options.run.steps,
               with_unit(plan.tokens_per_step * static_cast<double>(plan.options.run.steps), ""));
}

}  // namespace

int run_plan(const PlanArguments& arguments) {
  Deck deck = layered_deck(arguments.deck);
  const Options options = Options::read(deck);
  deck.finish();
  const auto start = std::chrono::steady_clock::now();
  RunPlan plan = make_plan(options);
  plan.planning_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (arguments.json) {
    fmt::print("{}\n", to_json(plan).dump(2));
    return static_cast<int>(ExitCode::done);
  }
  print_sizes(plan);
  print_memory(plan);
  print_time(plan);
  return static_cast<int>(ExitCode::done);
}

}  // namespace sestina
