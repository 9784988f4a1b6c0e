#include "app/train/dense_reader.hpp"

#include <algorithm>
#include <utility>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"
#include "core/dense_weight.hpp"
#include "io/store/finite.hpp"

namespace sestina {
namespace {

StateField whole_field(const TensorSpec& spec, DType dtype) {
  StateField field;
  field.path = "/model/" + spec.name;
  field.dtype = dtype;
  field.shape = spec.is_vector() ? std::vector{spec.rows} : std::vector{spec.rows, spec.kept_cols()};
  field.row_end = spec.rows;
  return field;
}

ModelConfig model_of(const CheckpointReader& reader) {
  Deck deck;
  deck.add_text(reader.run().deck, "deck of the checkpoint", "");
  const Options options = Options::read(deck);
  deck.finish();
  return options.model;
}

}  // namespace

std::string field_of_weights(const CheckpointReader& reader, const std::string& asked) {
  const auto has = [&](const std::string& field) {
    const auto& entries = reader.entries();
    return std::any_of(entries.begin(), entries.end(),
                       [&](const auto& entry) { return entry.path.ends_with("/" + field); });
  };
  if (asked == "trained" || (asked.empty() && !has("average"))) return "";
  if (asked.empty() || has(asked)) return asked.empty() ? "average" : asked;
  fail(ExitCode::bad_data, "the checkpoint of step {} holds no weights \"{}\": {}", reader.run().step, asked,
       asked == "ema" ? "its run had train.ema_tau = 0" : "its run had another optimizer.kind than schedule-free");
}

std::string place_of_weights(const std::string& tensor, const std::string& field) {
  return field.empty() ? "/model/" + tensor : "/optimizer/" + tensor + "/" + field;
}

DenseReader::DenseReader(const CheckpointReader& reader, std::string field)
    : reader_(reader), field_(std::move(field)), model_(model_of(reader)) {}

void DenseReader::read(const TensorSpec& spec, float* out, ExitCode nonfinite) const {
  const WeightForm* form = find_weight_form(model_.linear);
  StateField field = whole_field(spec, DType::f32);
  field.path = place_of_weights(spec.name, field_);
  if (!spec.trainable && !reader_.has(field.path)) field.path = place_of_weights(spec.name, "");  // it has no average
  if (spec.may_be_absent && !reader_.has(field.path)) {
    std::fill_n(out, spec.elements(), 0.0f);
    return;
  }
  if (reader_.has(field.path) || form == nullptr || spec.role != Role::matrix) {
    reader_.read(field, out);
    require_finite(field, out, nonfinite, fmt::format("checkpoint of step {}", reader_.run().step));
    return;
  }
  const std::vector<TensorSpec> parts = form->parts(model_.linear, spec);
  const std::string base = "/model/" + parts.front().name;
  const auto& entries = reader_.entries();
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.path == base; });
  if (found == entries.end()) fail(ExitCode::bad_data, "{} is not in the checkpoint", base);
  merge(spec, parts, found->dtype == DType::bf16, out, nonfinite);
}

void DenseReader::merge(const TensorSpec& spec, const std::vector<TensorSpec>& parts, bool bf16, float* out,
                        ExitCode nonfinite) const {
  std::vector<std::vector<std::byte>> values(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TensorSpec& part = parts[i];
    const StateField field = whole_field(part, kept_as(part, size_of(bf16 ? DType::bf16 : DType::f32), sizeof(float)));
    if (part.may_be_absent && !reader_.has(field.path)) continue;
    values[i].resize(field.bytes());
    reader_.read(field, values[i].data());
    require_finite(field, values[i].data(), nonfinite, fmt::format("checkpoint of step {}", reader_.run().step));
  }
  make_dense(model_, spec, parts, std::move(values), bf16, out);
}

}  // namespace sestina
