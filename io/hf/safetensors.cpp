#include "io/hf/safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "io/store/input_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace fs = std::filesystem;

struct SafeTensors::State {
  std::vector<MappedFile> files;
  std::map<std::string, SafeTensor> tensors;
  std::string where;
};

namespace {

// IEEE half: subnormals are multiples of 2^-24, the exponent of normal numbers moves from bias 15 to bias 127.
float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16, exponent = (half >> 10) & 31u,
                      fraction = half & 1023u;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t biased = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (biased << 23) | (fraction << 13));
}

template <class T, class Convert>
void convert(const std::byte* data, std::size_t count, float* out, Convert to_float) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;  // tensors need not be aligned in the file
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    out[i] = to_float(value);
  }
}

void add_file(const std::string& path, std::vector<MappedFile>& files, std::map<std::string, SafeTensor>& tensors) {
  files.emplace_back(path);
  for (auto& [name, tensor] : SafeTensors::parse(files.back().view(), path))
    if (!tensors.emplace(name, tensor).second)
      fail(ExitCode::bad_data, "{}: tensor '{}' is also in another file of the set", path, name);
}

// Reads weight_map of model.safetensors.index.json: {tensor: file}. File names are plain, so that nothing outside is
// opened.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const MappedFile file(path);
  if (file.size() > safetensors_header_limit)
    fail(ExitCode::bad_data, "{}: {} bytes, an index has at most {}", path, file.size(), safetensors_header_limit);
  const auto json = nlohmann::json::parse(file.view(), nullptr, false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    fail(ExitCode::bad_data, "{}: is not a JSON object with an object 'weight_map'", path);
  std::map<std::string, std::string> map;
  for (const auto& [name, value] : json["weight_map"].items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : "";
    if (shard.empty() || shard.find('/') != std::string::npos || shard == "." || shard == "..")
      fail(ExitCode::bad_data, "{}: tensor '{}' has file {}, allowed is the name of a file in the same folder", path,
           name, value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    map[name] = shard;
  }
  return map;
}

void add_index(const std::string& path, std::vector<MappedFile>& files, std::map<std::string, SafeTensor>& tensors) {
  const auto map = read_weight_map(path);
  std::set<std::string> shards;
  for (const auto& [name, shard] : map) shards.insert(shard);
  for (const auto& shard : shards) {
    std::map<std::string, SafeTensor> found;
    add_file((fs::path(path).parent_path() / shard).string(), files, found);
    for (const auto& [name, tensor] : found) {
      const auto entry = map.find(name);
      if (entry == map.end() || entry->second != shard)
        fail(ExitCode::bad_data, "{}: tensor '{}' lies in {}, the index says {}", path, name, shard,
             entry == map.end() ? "nothing about it" : entry->second);
      tensors.emplace(name, tensor);
    }
  }
  for (const auto& [name, shard] : map)
    if (!tensors.contains(name)) fail(ExitCode::bad_data, "{}: tensor '{}' is not in {}", path, name, shard);
}

// Prefers model.safetensors to the index, as other readers do; else takes the only .safetensors file there is.
std::string file_in_folder(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
    if (fs::exists(fs::path(folder) / name)) return (fs::path(folder) / name).string();
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path().string());
  if (found.size() != 1)
    fail(ExitCode::input_missing,
         "{}: holds {} .safetensors files and neither model.safetensors nor model.safetensors.index.json", folder,
         found.size());
  return found.front();
}

}  // namespace

SafeTensors::SafeTensors(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafeTensors::~SafeTensors() = default;
SafeTensors::SafeTensors(SafeTensors&&) noexcept = default;
const std::map<std::string, SafeTensor>& SafeTensors::tensors() const { return state_->tensors; }

SafeTensors SafeTensors::open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->where = fs::is_directory(path) ? file_in_folder(path) : path;
  if (fs::path(state->where).extension() == ".json") {
    add_index(state->where, state->files, state->tensors);
  } else {
    add_file(state->where, state->files, state->tensors);
  }
  return SafeTensors(std::move(state));
}

std::map<std::string, SafeTensor> SafeTensors::parse(std::string_view image, const std::string& where) {
  return parse_safetensors(image, where);
}

void SafeTensors::read_f32(const std::string& name, const std::vector<std::int64_t>& shape, float* out) const {
  const auto found = state_->tensors.find(name);
  if (found == state_->tensors.end()) fail(ExitCode::bad_data, "{}: tensor '{}' is missing", state_->where, name);
  const SafeTensor& tensor = found->second;
  if (tensor.shape != shape)
    fail(ExitCode::bad_data, "{}: tensor '{}' has shape [{}], the model needs [{}]", state_->where, name,
         fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
  if (tensor.dtype == "F32") {
    if (tensor.bytes > 0) std::memcpy(out, tensor.data, tensor.bytes);
  } else if (tensor.dtype == "BF16") {
    convert<std::uint16_t>(tensor.data, tensor.bytes / 2, out,
                           [](std::uint16_t v) { return std::bit_cast<float>(std::uint32_t{v} << 16); });
  } else if (tensor.dtype == "F16") {
    convert<std::uint16_t>(tensor.data, tensor.bytes / 2, out, half_to_float);
  } else if (tensor.dtype == "F64") {
    convert<double>(tensor.data, tensor.bytes / 8, out, [](double v) { return static_cast<float>(v); });
  } else {
    fail(ExitCode::bad_data, "{}: tensor '{}' has dtype {}, allowed: F32, BF16, F16, F64", state_->where, name,
         tensor.dtype);
  }
}

}  // namespace sestina
