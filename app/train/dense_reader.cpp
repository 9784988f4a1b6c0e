#include "app/train/dense_reader.hpp"

#include <algorithm>
#include <array>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"
#include "core/model/linear_form.hpp"
#include "io/store/finite.hpp"

namespace sestina {
namespace {

StateField whole_field(const TensorSpec& spec, DType dtype) {
  StateField field;
  field.path = "/model/" + spec.name;
  field.dtype = dtype;
  field.shape = spec.is_vector() ? std::vector{spec.rows}
                                 : std::vector{spec.rows, spec.is_coded() ? spec.row_codes() : spec.cols};
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

DenseReader::DenseReader(const CheckpointReader& reader) : reader_(reader), model_(model_of(reader)) {}

void DenseReader::read(const TensorSpec& spec, float* out, ExitCode nonfinite) const {
  const WeightForm* form = find_weight_form(model_.linear);
  const StateField field = whole_field(spec, DType::f32);
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
  if (found->dtype == DType::bf16)
    merge<bf16>(spec, parts, out, nonfinite);
  else
    merge<float>(spec, parts, out, nonfinite);
}

template <class T>
void DenseReader::merge(const TensorSpec& spec, const std::vector<TensorSpec>& parts, float* out,
                        ExitCode nonfinite) const {
  FormedWeight weight{spec.name, spec.rows, spec.cols, {}, spec.cut};
  std::vector<std::vector<std::byte>> host(parts.size());
  std::array<std::vector<T>, most_parts> rounded;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TensorSpec& part = parts[i];
    const StateField field = whole_field(part, kept_as(part, sizeof(T), sizeof(float)));
    if (part.may_be_absent && !reader_.has(field.path)) continue;
    host[i].resize(field.bytes());
    reader_.read(field, host[i].data());
    require_finite(field, host[i].data(), nonfinite, fmt::format("checkpoint of step {}", reader_.run().step));
    weight.part.at(i) = host[i].data();
    if (!part.has_master() || part.is_vector()) continue;
    const auto* masters = reinterpret_cast<const float*>(host[i].data());  // the model computes with rounded ones
    for (std::int64_t e = 0; e < part.elements(); ++e) rounded.at(i).push_back(T(masters[e]));
    weight.part.at(i) = rounded.at(i).data();
  }
  const Host exec;
  Gemm<Host> gemm(exec);
  Workspace<Host> workspace(
      find_weight_form(model_.linear)
          ->scratch(model_.linear, {0, static_cast<std::size_t>(spec.rows), static_cast<std::size_t>(spec.cols),
                                    sizeof(T), sizeof(float)})
          .merge);
  GroupOps<Host> alone;
  Context<Host> context{exec, model_part(model_, 1, 0), 1, 1, gemm, workspace, alone, {}, {}};
  linear_form<Host, T>(model_.linear)
      .effective(context, weight,
                 Matrix<Acc<T>, Host>(out, static_cast<std::size_t>(spec.rows), static_cast<std::size_t>(spec.cols)));
  exec.fence("dense");
}

}  // namespace sestina
