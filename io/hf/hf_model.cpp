#include "io/hf/hf_model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/layout/weight_form.hpp"
#include "io/hf/hf_companions.hpp"
#include "io/hf/hf_gpt2.hpp"
#include "io/store/finite.hpp"
#include "io/store/input_file.hpp"
#include "io/store/output_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace fs = std::filesystem;

namespace {

std::set<std::string> needed_names(const ModelConfig& config) {
  std::set<std::string> names;
  for (const TensorSpec& spec : tensor_specs(dense_model(config))) names.insert(spec.name);
  return names;
}

// True for buffers that older files carry although they follow from the config, and for the tied head written a second
// time.
bool may_be_left(const std::string& name, const ModelConfig& config) {
  // GPT-2: the causal mask of its first releases, next to the bias "attn.c_attn.bias" that is one.
  if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) return config.family == Family::gpt;
  return name.ends_with("rotary_emb.inv_freq") || (config.tie_word_embeddings && name == "lm_head.weight");
}

// Fails where the config ties the head and the weights have another one: transformers unties such a model; here nothing
// is guessed.
void require_tied_head(const SafeTensors& file, const ModelConfig& config, const std::string& table,
                       const std::string& folder) {
  constexpr const char* head = "lm_head.weight";
  if (!config.tie_word_embeddings || !file.tensors().contains(head)) return;
  const SafeTensor &a = file.tensors().at(head), &b = file.tensors().at(table);
  bool same = a.dtype == b.dtype && a.bytes == b.bytes && std::memcmp(a.data, b.data, a.bytes) == 0;
  if (!same && a.dtype != b.dtype) {  // the same values may be written in two ways
    const std::vector<std::int64_t> shape{config.vocab_size, config.hidden_size};
    std::vector<float> values[2];
    for (auto& one : values) one.resize(static_cast<std::size_t>(config.vocab_size * config.hidden_size));
    file.read_f32(head, shape, values[0].data());
    file.read_f32(table, shape, values[1].data());
    same = values[0] == values[1];
  }
  if (!same)
    fail(ExitCode::bad_data,
         "{}: lm_head.weight: got other values than {}, allowed the same ones next to tie_word_embeddings true in "
         "config.json (write false there to keep the head, or remove the tensor)",
         folder, table);
}

// Lists at most ten names and how many more there are.
std::string listed(const std::vector<std::string>& names) {
  const std::size_t shown = std::min<std::size_t>(names.size(), 10);
  const std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() > shown ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

std::vector<std::int64_t> file_shape(const TensorSpec& spec) {
  return spec.is_vector() ? std::vector{spec.rows} : std::vector{spec.rows, spec.cols};
}

// Rounds to nearest, ties to even; a NaN stays a NaN.
std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

std::string config_json(const ModelConfig& config, bool bf16) {
  auto json = nlohmann::ordered_json::parse(config.to_hf_json());
  json["dtype"] = json["torch_dtype"] = bf16 ? "bfloat16" : "float32";
  return json.dump(2) + "\n";
}

// A tensor as the file has it.
struct FileTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  const float* data;
  std::size_t elements;
  std::vector<float> own;  // holds what data points to, where it was put together
  bool in_f32 = false;     // in folders of bf16 too
};

std::vector<FileTensor> plain_files(const std::vector<HfTensor>& tensors) {
  std::vector<FileTensor> files;
  for (const auto& [spec, data] : tensors)
    files.push_back(
        {spec.name, file_shape(spec), data, static_cast<std::size_t>(spec.elements()), {}, spec.stored == Stored::sum});
  return files;
}

std::vector<FileTensor> gpt2_files(const ModelConfig& config, const std::vector<HfTensor>& tensors) {
  std::map<std::string, HfTensor> ours;
  for (const HfTensor& tensor : tensors) ours[tensor.spec.name] = tensor;
  std::vector<FileTensor> files;
  for (const Gpt2Tensor& tensor : gpt2_tensors(config)) {
    const TensorSpec& spec = ours.at(tensor.parts.front()).spec;
    const std::int64_t rows = spec.rows * static_cast<std::int64_t>(tensor.parts.size());
    std::vector<std::int64_t> shape = spec.is_vector() ? std::vector{rows} : std::vector{rows, spec.cols};
    std::vector<float> values;
    for (const std::string& part : tensor.parts)
      values.insert(values.end(), ours.at(part).data, ours.at(part).data + spec.elements());
    if (tensor.transposed) {
      std::vector<float> transposed(values.size());
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t col = 0; col < spec.cols; ++col)
          transposed[static_cast<std::size_t>(col * rows + row)] =
              values[static_cast<std::size_t>(row * spec.cols + col)];
      values.swap(transposed);
      shape = {spec.cols, rows};
    }
    files.push_back({tensor.name, shape, nullptr, values.size(), std::move(values)});
    files.back().data = files.back().own.data();
  }
  return files;  // moving a vector leaves its memory where it is
}

}  // namespace

ModelConfig read_hf_config(const std::string& folder) {
  const std::string path = (fs::path(folder) / "config.json").string();
  return ModelConfig::from_hf_json(std::string(MappedFile(path).view()), path);
}

SafeTensors open_hf_weights(const std::string& folder, const ModelConfig& config) {
  SafeTensors file = SafeTensors::open(folder);
  const bool gpt2 = config.family == Family::gpt && is_gpt2_file(file);
  const auto needed = gpt2 ? gpt2_names(file, config) : needed_names(config);
  std::vector<std::string> missing, unknown;
  for (const std::string& name : needed)
    if (!file.tensors().contains(name)) missing.push_back(name);
  for (const auto& [name, tensor] : file.tensors())
    if (!needed.contains(name) && !may_be_left(name, config)) unknown.push_back(name);
  if (!missing.empty() || !unknown.empty())
    fail(ExitCode::bad_data,
         "{}: does not hold the {} model of its config.json: {} tensors missing ({}), {} unknown ({})", folder,
         name(config.family), missing.size(), listed(missing), unknown.size(), listed(unknown));
  const std::string table = gpt2 ? gpt2_table(file) : "model.embed_tokens.weight";
  require_tied_head(file, config, table, folder);
  return file;
}

void read_hf_tensor(const SafeTensors& file, const TensorSpec& spec, float* out, const std::string& where) {
  if (is_gpt2_file(file))
    read_gpt2_tensor(file, spec, out);
  else
    file.read_f32(spec.name, file_shape(spec), out);
  StateField field;
  field.path = spec.name;
  field.shape = file_shape(spec);
  field.row_end = spec.rows;
  require_finite(field, out, ExitCode::bad_data, where);
}

void write_hf_model(const std::string& folder, const ModelConfig& config, const std::vector<HfTensor>& tensors,
                    bool bf16, const std::string& tokenizer) {
  auto needed = needed_names(config);
  for (const HfTensor& tensor : tensors)
    SESTINA_REQUIRE(needed.erase(tensor.spec.name) == 1, "tensor {} is not one of the model's", tensor.spec.name);
  SESTINA_REQUIRE(needed.empty(), "tensor {} is not written", *needed.begin());
  std::vector<FileTensor> files = gpt2_difference(config).empty() ? gpt2_files(config, tensors) : plain_files(tensors);
  std::vector<std::vector<std::uint16_t>> rounded(bf16 ? files.size() : 0);
  std::vector<SafeTensorSource> sources;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto& [name, shape, data, elements, own, in_f32] = files[i];
    if (bf16 && !in_f32) {
      rounded[i].resize(elements);
      std::transform(data, data + elements, rounded[i].begin(), to_bf16);
      sources.push_back({name, "BF16", shape, rounded[i].data(), 2 * elements});
    } else {
      sources.push_back({name, "F32", shape, data, 4 * elements});
    }
  }
  ModelConfig written = config;
  if (!tokenizer.empty()) write_hf_tokenizer(folder, tokenizer, written);
  write_safetensors(folder, sources);
  write_output_file(fs::path(folder) / "generation_config.json", generation_json(written));
  write_output_file(fs::path(folder) / "config.json", config_json(written, bf16));
}

}  // namespace sestina
