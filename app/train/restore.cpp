#include "app/train/restore.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>

#include "app/start/run_deck.hpp"
#include "app/train/dense_reader.hpp"
#include "app/train/run_data.hpp"
#include "core/memory/pager.hpp"
#include "core/memory/state_field.hpp"
#include "io/store/finite.hpp"

namespace fs = std::filesystem;

namespace sestina {

Source find_source(const std::string& checkpoint_or_run, const std::string& hf) {
  Source source;
  if (!hf.empty()) {
    source.hf = fs::absolute(hf).string();
    return source;
  }
  if (!fs::is_directory(checkpoint_or_run))
    fail(ExitCode::input_missing, "-r {}: no such checkpoint folder", checkpoint_or_run);
  source.checkpoint = find_checkpoint(checkpoint_or_run, [](const std::string& line) { spdlog::warn("{}", line); });
  source.deck = CheckpointReader(source.checkpoint, false).run().deck;
  return source;
}

SourceDeck read_source_deck(const Source& source, DeckArguments layers, int ranks) {
  layers.hf = source.hf;
  layers.model_is_stored = holds_hf_model(source.checkpoint);
  take_forward_ranks(layers, source.deck, source.checkpoint, ranks);
  Deck deck = layered_deck(layers, source.deck, source.checkpoint);
  deck.replace_section("model.linear", "form", "dense");  // the evaluator is dense, whatever form was trained
  for (const char* of_a_form : {"metrics.rotations_every", "metrics.rotation_bound"}) deck.forget(of_a_form);
  if (deck.has("optimizer.weight_bits")) deck.add_override("optimizer.weight_bits=32");
  Options options = Options::read(deck);
  require_ranks(deck, options.parallel, ranks);
  deck.finish();
  take_companions(options, layers, source.checkpoint);
  return {std::move(deck), std::move(options)};
}

Options options_of(const Source& source, const DeckArguments& layers) {
  return read_source_deck(source, layers, 1).options;
}

namespace {

// Reads a piece at a time, however large the field is. Its block stays in memory until then, the first one where it has
// several.
void restore_field(const Evaluator& evaluator, const CheckpointReader& reader, const StateField& field,
                   ExitCode nonfinite, std::vector<std::byte>& host) {
  const Pin block(field.pager, field.data, Pager::Need::room);
  for_each_rows(field, [&](const StateField& rows) {
    host.resize(rows.bytes());
    reader.read(rows, host.data());
    require_finite(rows, host.data(), nonfinite, fmt::format("checkpoint of step {}", reader.run().step));
    if (!places_from_whole(rows, host.data()))
      fail(ExitCode::bad_data,
           "{} in the checkpoint of step {} leaves the part of this rank: set model.linear.shards as it was there, a "
           "multiple of parallel.tp",
           field.path, reader.run().step);
    evaluator.copy_from_host(rows, host.data());
  });
}

void zero_field(const Evaluator& evaluator, const StateField& field, std::vector<std::byte>& host) {
  const Pin block(field.pager, field.data, Pager::Need::room);
  for_each_rows(field, [&](const StateField& rows) {
    host.assign(rows.bytes(), std::byte{0});
    evaluator.copy_from_host(rows, host.data());
  });
}

// A copy of a factor for workers: it may be absent, and is left out where the checkpoint has it in another form (whole
// squares, as older ones have; another width).
bool is_copy(const StateField& field) {
  return field.optional && field.path.starts_with("/optimizer/") &&
         field_of_block(field.path.substr(field.path.rfind('/') + 1)).starts_with("snapshot");
}

using Entries = std::map<std::string, const CheckpointReader::Entry*>;

// Returns the copies that the checkpoint has, by path.
Entries copies_in(const CheckpointReader& reader, const std::vector<StateField>& fields) {
  Entries copies;
  for (const StateField& field : fields)
    if (is_copy(field)) copies[field.path] = nullptr;
  for (const CheckpointReader::Entry& entry : reader.entries())
    if (const auto found = copies.find(entry.path); found != copies.end()) found->second = &entry;
  return copies;
}

bool is_in_form(const StateField& field, const CheckpointReader::Entry& entry) {
  return entry.shape == field.shape && entry.dtype == field.dtype;
}

}  // namespace

void restore(const Evaluator& evaluator, const CheckpointReader& reader, const std::vector<StateField>& fields,
             bool reset_missing, ExitCode nonfinite) {
  std::vector<std::byte> host;
  std::size_t missing = 0, left_out = 0;
  const Entries copies = copies_in(reader, fields);
  for (const StateField& field : fields) {
    const auto copy = copies.find(field.path);
    if (copy != copies.end() && copy->second != nullptr && !is_in_form(field, *copy->second)) {
      zero_field(evaluator, field, host);
      ++left_out;
      continue;
    }
    if (!reader.has(field.path)) {
      if (field.optional) {  // refreshes were inline, with nothing in flight; or there were no residuals of merges yet
        zero_field(evaluator, field, host);
        continue;
      }
      if (!reset_missing)
        fail(ExitCode::bad_data,
             "{} is not in the checkpoint (another optimizer, or weights only?): optimizer.on_missing = \"reset\" "
             "reinitialises it, "
             "--weights-only ignores all optimizer state",
             field.path);
      ++missing;
      continue;
    }
    restore_field(evaluator, reader, field, nonfinite, host);
  }
  if (left_out > 0)
    spdlog::warn(
        "{} copies of factors are in another form in the checkpoint: refreshes that were in flight are left out",
        left_out);
  if (missing > 0)
    spdlog::warn("{} of {} state fields were not in the checkpoint and are reinitialised", missing, fields.size());
}

namespace {

// Sets fields, and weights in another form, from the tensors of a dense model, which read(spec, out) gives whole.
void restore_dense(Evaluator& evaluator, const std::vector<StateField>& fields, const ModelConfig& whole,
                   const std::function<void(const TensorSpec&, float* out)>& read) {
  std::map<std::string, TensorSpec> specs;
  for (const TensorSpec& spec : tensor_specs(dense_model(whole))) specs["/model/" + spec.name] = spec;
  std::vector<float> host, slab;
  for (std::size_t i = 0; i < evaluator.stage_count(); ++i)
    for (const std::string& weight : evaluator.stage(i).formed_weights()) {
      const TensorSpec& spec = specs.at("/model/" + weight);
      host.resize(static_cast<std::size_t>(spec.elements()));
      read(spec, host.data());
      evaluator.stage(i).set_dense(weight, host.data());
    }
  for (const StateField& field : fields) {
    const auto found = specs.find(field.path);
    if (found == specs.end()) continue;  // a part of a weight that was set
    const TensorSpec& spec = found->second;
    host.resize(static_cast<std::size_t>(spec.elements()));
    read(spec, host.data());
    slab.clear();
    const std::int64_t first = field.has_all_columns() ? 0 : field.col_begin;
    for (std::int64_t row = field.row_begin; row < field.row_end; ++row) {
      const float* from = host.data() + row * spec.cols + first;
      slab.insert(slab.end(), from, from + field.row_elements());
    }
    evaluator.copy_from_host(field, slab.data());
  }
}

}  // namespace

void restore_hf_weights(Evaluator& evaluator, const std::vector<StateField>& fields, const ModelConfig& whole,
                        const std::string& folder) {
  const SafeTensors file = open_hf_weights(folder, whole);
  restore_dense(evaluator, fields, whole,
                [&](const TensorSpec& spec, float* out) { read_hf_tensor(file, spec, out, folder); });
}

void restore_model(Evaluator& evaluator, const CheckpointReader& reader, const std::vector<StateField>& fields,
                   const ModelConfig& whole, ExitCode nonfinite, const std::string& weights) {
  const std::string held = field_of_weights(reader, weights);
  std::vector<StateField> there = fields;  // with their places in this checkpoint
  for (StateField& field : there)
    field.path = place_of_weights(field.path.substr(std::string_view("/model/").size()), held);
  if (std::all_of(there.begin(), there.end(), [&](const StateField& field) { return reader.has(field.path); }))
    return restore(evaluator, reader, there, false, nonfinite);
  const DenseReader dense(reader, held);
  restore_dense(evaluator, fields, whole,
                [&](const TensorSpec& spec, float* out) { dense.read(spec, out, nonfinite); });
}

void require_router_biases(const CheckpointReader& reader, const ModelConfig& model) {
  if (!model.has_experts()) return;
  ModelConfig biased = model;
  biased.router_bias_rate = 1;
  const std::vector<TensorSpec> specs = tensor_specs(dense_model(biased));
  const auto bias = std::find_if(specs.begin(), specs.end(), [](const TensorSpec& spec) { return !spec.trainable; });
  const bool there = bias != specs.end() && reader.has("/model/" + bias->name);
  if (there && model.router_bias_rate == 0)
    fail(ExitCode::bad_data,
         "{} is in the checkpoint of step {}, and model.router_bias_rate = 0 has no biases: routers would choose "
         "otherwise; allowed: a rate > 0, with model.router_bias_until to leave biases as they are",
         bias->name, reader.run().step);
  if (!there && model.router_bias_rate > 0)
    spdlog::info("the checkpoint has no biases of routers' choices (model.router_bias_rate): they start at 0");
}

void restore_weights(Evaluator& evaluator, const Source& source, const std::string& weights) {
  if (!source.hf.empty()) {
    restore_hf_weights(evaluator, evaluator.model_fields(), evaluator.config(), source.hf);
  } else {
    const CheckpointReader reader(source.checkpoint, false);
    restore_model(evaluator, reader, evaluator.model_fields(), evaluator.config(), ExitCode::diverged, weights);
  }
  evaluator.weights_changed();
}

}  // namespace sestina
