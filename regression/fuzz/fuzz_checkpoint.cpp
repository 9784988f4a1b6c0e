// Input: a letter, then the files of a checkpoint folder: u8 size of a name, the name, u32 size of the file, the file;
// and so on. A checkpoint is refused with Error(bad_data), or every tensor of it is read whole. The letter is g where
// it must be read, r where something that a digest covers was changed, so that it must be refused; with s the manifest
// is given a right digest first; with o only the digests of files that are opened are checked.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/manifest.hpp"
#include "kernels/base/error.hpp"
#include "regression/fuzz/scratch.hpp"

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 26;  // of a tensor that is read

void read_all(const std::string& path, sestina::Verify verify) {
  const sestina::CheckpointReader reader(path, verify);
  for (const auto& entry : reader.entries()) {
    sestina::StateField field;
    field.path = entry.path;
    field.dtype = entry.dtype;
    field.shape = entry.shape;
    field.row_end = entry.shape.empty() ? 1 : entry.shape[0];
    if (field.bytes() > kMostBytes) continue;
    std::vector<std::byte> host(field.bytes());
    reader.read(field, host.data());
  }
}

// Whether the checkpoint was refused.
bool refused(const std::string& path, sestina::Verify verify) {
  try {
    read_all(path, verify);
    return false;
  } catch (const sestina::Error& error) {
    if (error.code() != sestina::ExitCode::bad_data) std::abort();
    return true;
  }
}

bool plain(std::string_view name) {
  return !name.empty() && name.find('/') == name.npos && name.find('\0') == name.npos && name.front() != '.';
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const sestina::fuzz::Scratch folder;
  const char letter = sestina::fuzz::take(input, 1).front();
  while (!input.empty()) {
    const std::string_view name = sestina::fuzz::take(input, sestina::fuzz::take_number(input, 1));
    const std::string_view file = sestina::fuzz::take(input, sestina::fuzz::take_number(input, 4));
    if (!plain(name)) return 0;
    if (letter == 's' && name == "manifest.json")
      folder.write(name, sestina::seal_manifest(file));
    else
      folder.write(name, file);
  }
  const bool was_refused = refused(folder.path(), letter == 'o' ? sestina::Verify::opened : sestina::Verify::full);
  if (was_refused ? letter == 'g' : letter == 'r') std::abort();
  if (letter == 'r' && !refused(folder.path(), sestina::Verify::all)) std::abort();
  return 0;
}
