#include "io/hf_model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "io/finite.hpp"
#include "io/mapped_file.hpp"
#include "io/output_file.hpp"
#include "kernels/error.hpp"

namespace sestina {

namespace fs = std::filesystem;

namespace {

std::set<std::string> needed_names(const ModelConfig& config) {
  std::set<std::string> names;
  for (const TensorSpec& spec : tensor_specs(config)) names.insert(spec.name);
  return names;
}

// Buffers that older files carry although they follow from the config, and the tied head written a second time.
bool may_be_left(const std::string& name, const ModelConfig& config) {
  return name.ends_with("rotary_emb.inv_freq") || (config.tie_word_embeddings && name == "lm_head.weight");
}

// At most ten names and how many more there are.
std::string listed(const std::vector<std::string>& names) {
  const std::size_t shown = std::min<std::size_t>(names.size(), 10);
  const std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() > shown ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

std::vector<std::int64_t> file_shape(const TensorSpec& spec) {
  return spec.is_vector() ? std::vector{spec.rows} : std::vector{spec.rows, spec.cols};
}

// Round to nearest, ties to even; a NaN stays one.
std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void write_text(const fs::path& path, std::string_view text) {
  OutputFile file(path.string());
  file.write(text);
  file.commit();
}

std::string config_json(const ModelConfig& config, bool bf16) {
  auto json = nlohmann::ordered_json::parse(config.to_hf_json());
  json["dtype"] = json["torch_dtype"] = bf16 ? "bfloat16" : "float32";
  return json.dump(2) + "\n";
}

}  // namespace

ModelConfig read_hf_config(const std::string& folder) {
  const std::string path = (fs::path(folder) / "config.json").string();
  return ModelConfig::from_hf_json(std::string(MappedFile(path).view()), path);
}

SafeTensors open_hf_weights(const std::string& folder, const ModelConfig& config) {
  SafeTensors file = SafeTensors::open(folder);
  const auto needed = needed_names(config);
  std::vector<std::string> missing, unknown;
  for (const std::string& name : needed)
    if (!file.tensors().contains(name)) missing.push_back(name);
  for (const auto& [name, tensor] : file.tensors())
    if (!needed.contains(name) && !may_be_left(name, config)) unknown.push_back(name);
  if (!missing.empty() || !unknown.empty())
    fail(ExitCode::bad_data,
         "{}: does not hold the {} model of its config.json: {} tensors missing ({}), {} unknown ({})", folder,
         name(config.family), missing.size(), listed(missing), unknown.size(), listed(unknown));
  return file;
}

void read_hf_tensor(const SafeTensors& file, const TensorSpec& spec, float* out, const std::string& where) {
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
  std::vector<std::vector<std::uint16_t>> rounded(bf16 ? tensors.size() : 0);
  std::vector<SafeTensorSource> sources;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [spec, data] = tensors[i];
    SESTINA_REQUIRE(needed.erase(spec.name) == 1, "tensor {} is not one of the model's", spec.name);
    const auto elements = static_cast<std::size_t>(spec.elements());
    if (bf16) {
      rounded[i].resize(elements);
      std::transform(data, data + elements, rounded[i].begin(), to_bf16);
      sources.push_back({spec.name, "BF16", file_shape(spec), rounded[i].data(), 2 * elements});
    } else {
      sources.push_back({spec.name, "F32", file_shape(spec), data, 4 * elements});
    }
  }
  SESTINA_REQUIRE(needed.empty(), "tensor {} is not written", *needed.begin());
  if (!tokenizer.empty()) write_text(fs::path(folder) / "tokenizer.json", MappedFile(tokenizer).view());
  write_safetensors(folder, sources);
  write_text(fs::path(folder) / "config.json", config_json(config, bf16));
}

}  // namespace sestina
