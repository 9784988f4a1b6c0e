#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/hf/safetensors.hpp"
#include "io/store/output_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

using Tensors = std::vector<const SafeTensorSource*>;

std::size_t checked_bytes(const SafeTensorSource& tensor) {
  std::size_t bytes = safetensors_element_bytes(tensor.dtype);
  SESTINA_REQUIRE(bytes > 0, "tensor {} has dtype {}", tensor.name, tensor.dtype);
  for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::size_t>(extent);
  SESTINA_REQUIRE(bytes == tensor.bytes, "tensor {} has {} bytes, its shape needs {}", tensor.name, tensor.bytes,
                  bytes);
  return bytes;
}

// Wider elements first: every tensor then lies aligned to its element, since the header is padded to 8 bytes.
Tensors by_alignment(Tensors tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const SafeTensorSource* a, const SafeTensorSource* b) {
    return safetensors_element_bytes(a->dtype) > safetensors_element_bytes(b->dtype);
  });
  return tensors;
}

void write_file(const std::string& path, const Tensors& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::size_t end = 0;
  for (const auto* tensor : tensors) {
    const std::size_t begin = end;
    end += tensor->bytes;
    header[tensor->name] = {{"dtype", tensor->dtype}, {"shape", tensor->shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  OutputFile file(path);
  file.write(&length, sizeof length);
  file.write(text);
  for (const auto* tensor : tensors) file.write(tensor->data, tensor->bytes);
  file.commit();
}

std::vector<Tensors> split(const Tensors& tensors, std::size_t max_shard_bytes) {
  std::vector<Tensors> shards(1);
  std::size_t bytes = 0;
  for (const auto* tensor : tensors) {
    if (!shards.back().empty() && bytes + tensor->bytes > max_shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(tensor);
    bytes += tensor->bytes;
  }
  return shards;
}

// A file of the other form would be taken for the model by a reader that looks for it first.
void remove_other_form(const std::filesystem::path& folder, const char* name) {
  std::error_code ignored;
  std::filesystem::remove(folder / name, ignored);
}

}  // namespace

void write_safetensors(const std::string& folder, const std::vector<SafeTensorSource>& sources,
                       std::size_t max_shard_bytes) {
  Tensors tensors;
  std::size_t total = 0;
  for (const SafeTensorSource& source : sources) {
    total += checked_bytes(source);
    tensors.push_back(&source);
  }
  const std::filesystem::path base(folder);
  const auto shards = split(by_alignment(tensors), max_shard_bytes);
  if (shards.size() == 1) {
    write_file((base / "model.safetensors").string(), shards.front());
    remove_other_form(base, "model.safetensors.index.json");
    return;
  }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_file((base / name).string(), shards[i]);
    for (const auto* tensor : shards[i]) index["weight_map"][tensor->name] = name;
  }
  write_output_file((base / "model.safetensors.index.json").string(), index.dump(2) + "\n");
  remove_other_form(base, "model.safetensors");
}

}  // namespace sestina
