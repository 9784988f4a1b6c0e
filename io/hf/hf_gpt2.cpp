#include "io/hf/hf_gpt2.hpp"

#include <algorithm>
#include <cstdio>

#include "core/layout/weight_form.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr const char* prefix = "transformer.";
constexpr const char* table = "wte.weight";

struct Place {
  std::string name;
  std::int64_t part = 0, parts = 1;
};

// The place of a tensor of TensorSpec in a file with the long names.
Place place_of(const std::string& ours) {
  static constexpr std::pair<const char*, const char*> outer[] = {
      {"model.embed_tokens.", "wte."}, {"model.embed_positions.", "wpe."}, {"model.norm.", "ln_f."}};
  static constexpr std::pair<const char*, const char*> inner[] = {
      {"input_layernorm.", "ln_1."},         {"post_attention_layernorm.", "ln_2."},
      {"self_attn.o_proj.", "attn.c_proj."}, {"mlp.up_proj.", "mlp.c_fc."},
      {"mlp.down_proj.", "mlp.c_proj."},     {"self_attn.q_proj.", "attn.c_attn."},
      {"self_attn.k_proj.", "attn.c_attn."}, {"self_attn.v_proj.", "attn.c_attn."}};
  for (const auto& [from, to] : outer)
    if (ours.starts_with(from)) return {std::string(prefix) + to + ours.substr(std::string(from).size())};
  int layer = 0, used = 0;
  if (std::sscanf(ours.c_str(), "model.layers.%d.%n", &layer, &used) == 1 && used > 0) {
    const std::string rest = ours.substr(static_cast<std::size_t>(used));
    for (const auto& [from, to] : inner) {
      if (!rest.starts_with(from)) continue;
      const char which = rest[std::string("self_attn.").size()];
      const bool fused = std::string(to) == "attn.c_attn.";
      return {fmt::format("{}h.{}.{}{}", prefix, layer, to, rest.substr(std::string(from).size())),
              fused ? (which == 'k'   ? 1
                       : which == 'v' ? 2
                                      : 0)
                    : 0,
              fused ? 3 : 1};
    }
  }
  return {ours};  // lm_head.weight
}

std::string in_file(const SafeTensors& file, const std::string& name) {
  if (file.tensors().contains(name) || !name.starts_with(prefix)) return name;
  return name.substr(std::string(prefix).size());
}

bool is_transposed(const TensorSpec& spec) { return spec.role == Role::matrix; }

}  // namespace

std::vector<Gpt2Tensor> gpt2_tensors(const ModelConfig& config) {
  std::vector<Gpt2Tensor> tensors;
  for (const TensorSpec& spec : tensor_specs(dense_model(config))) {
    const std::string name = place_of(spec.name).name;
    const auto known =
        std::find_if(tensors.begin(), tensors.end(), [&](const Gpt2Tensor& tensor) { return tensor.name == name; });
    if (known != tensors.end())
      known->parts.push_back(spec.name);  // q, k, v come in this order
    else
      tensors.push_back({name, {spec.name}, is_transposed(spec)});
  }
  return tensors;
}

bool is_gpt2_file(const SafeTensors& file) {
  return file.tensors().contains(table) || file.tensors().contains(std::string(prefix) + table);
}

std::string gpt2_table(const SafeTensors& file) { return in_file(file, std::string(prefix) + table); }

std::set<std::string> gpt2_names(const SafeTensors& file, const ModelConfig& config) {
  std::set<std::string> names;
  const bool with_prefix = file.tensors().contains(std::string(prefix) + table);
  for (const Gpt2Tensor& tensor : gpt2_tensors(config))
    names.insert(with_prefix || !tensor.name.starts_with(prefix) ? tensor.name
                                                                 : tensor.name.substr(std::string(prefix).size()));
  return names;
}

void read_gpt2_tensor(const SafeTensors& file, const TensorSpec& spec, float* out) {
  const Place place = place_of(spec.name);
  const std::string name = in_file(file, place.name);
  const std::int64_t all_rows = spec.rows * place.parts;  // rows of TensorSpec are the file's columns
  if (!is_transposed(spec)) {
    const std::vector<std::int64_t> shape = spec.is_vector() ? std::vector{all_rows} : std::vector{all_rows, spec.cols};
    std::vector<float> whole(static_cast<std::size_t>(all_rows * spec.cols));
    file.read_f32(name, shape, whole.data());
    std::copy_n(whole.begin() + place.part * spec.elements(), spec.elements(), out);
    return;
  }
  std::vector<float> whole(static_cast<std::size_t>(spec.cols * all_rows));
  file.read_f32(name, {spec.cols, all_rows}, whole.data());
  for (std::int64_t row = 0; row < spec.rows; ++row)
    for (std::int64_t col = 0; col < spec.cols; ++col)
      out[row * spec.cols + col] = whole[static_cast<std::size_t>(col * all_rows + place.part * spec.rows + row)];
}

}  // namespace sestina
