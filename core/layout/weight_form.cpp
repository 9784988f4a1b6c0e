#include "core/layout/weight_form.hpp"

#include <utility>

namespace sestina {

namespace {

// Returns runs of adjacent matrices, as [begin, end) of the specs; everything else is a run by itself.
std::vector<std::pair<std::size_t, std::size_t>> runs_of(const std::vector<TensorSpec>& specs) {
  std::vector<std::pair<std::size_t, std::size_t>> runs;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].follows && specs[i].role == Role::matrix && !runs.empty())
      runs.back().second = i + 1;
    else
      runs.emplace_back(i, i + 1);
  }
  return runs;
}

bool takes_form(const WeightForm& form, const LinearOptions& options, const std::vector<TensorSpec>& specs,
                std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i)
    if (specs[i].role != Role::matrix || !form.fits(options, specs[i])) return false;
  return true;
}

}  // namespace

const WeightForm* find_weight_form(const LinearOptions& options) {
  static const std::vector<WeightForm> forms = {poet_x_form(), lora_form(), int8_form()};
  for (const WeightForm& form : forms)
    if (form.name == options.form) return &form;
  return nullptr;
}

std::int64_t updates_between_merges(const LinearOptions& options) {
  const WeightForm* form = find_weight_form(options);
  return form == nullptr ? 0 : form->merge_every(options);
}

std::int64_t merge_after(const LinearOptions& options, int layer, std::int64_t t) {
  const std::int64_t every = updates_between_merges(options);
  if (every == 0 || t == 0) return 0;
  const WeightForm& form = *find_weight_form(options);
  const std::int64_t at = t + (form.merge_phase ? form.merge_phase(options, layer) : 0);
  return at % every == 0 ? at / every : 0;
}

std::size_t size_of_sums(const LinearOptions& options, std::int64_t out, std::int64_t in) {
  const WeightForm* form = find_weight_form(options);
  if (form == nullptr || form->sums == nullptr) return 0;
  return aligned_elements(static_cast<std::size_t>(form->sums(options, out, in)));
}

std::size_t size_of_sums(const LinearOptions& options, const std::vector<TensorSpec>& specs) {
  std::size_t sum = 0;
  for (const TensorSpec& spec : specs)
    if (spec.part == 0) sum += size_of_sums(options, spec.rows, spec.cols);
  return sum;
}

TensorSpec weight_part(const TensorSpec& dense, int part, const char* name, std::int64_t rows, std::int64_t cols,
                       Role role) {
  TensorSpec spec;
  spec.name = dense.name + "/" + name;
  spec.weight = dense.name;
  spec.part = part;
  spec.rows = rows;
  spec.cols = cols;
  spec.role = role;
  spec.layer = dense.layer;
  spec.block = dense.block;
  return spec;
}

std::vector<TensorSpec> formed_specs(const LinearOptions& options, const std::vector<TensorSpec>& dense) {
  const WeightForm* form = find_weight_form(options);
  if (form == nullptr) return dense;
  std::vector<TensorSpec> specs;
  for (const auto& [begin, end] : runs_of(dense)) {
    const bool formed = takes_form(*form, options, dense, begin, end);
    for (std::size_t i = begin; i < end; ++i) {
      if (!formed) {
        specs.push_back(dense[i]);
        continue;
      }
      for (TensorSpec& part : form->parts(options, dense[i])) specs.push_back(std::move(part));
    }
  }
  return specs;
}

ModelConfig dense_model(ModelConfig config) {
  config.linear = {};
  return config;
}

}  // namespace sestina
