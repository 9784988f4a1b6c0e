#include "io/checkpoint/checkpoint_companions.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/store/input_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

std::string companions_folder(const std::string& checkpoint) { return checkpoint + "/" + kCompanionFolder; }

std::string path_of(const std::string& checkpoint, const ManifestFile& file) {
  return companions_folder(checkpoint) + "/" + file.name;
}

// True for a plain name, which does not lead out of the folder.
bool is_companion_name(const std::string& name) {
  constexpr std::size_t longest = 200;
  return !name.empty() && name.size() <= longest && name[0] != '.' &&
         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

ManifestFile listed(const std::string& name, std::string_view bytes) {
  return {name, bytes.size(), digest128(bytes.data(), bytes.size())};
}

}  // namespace

void write_companions(const std::string& checkpoint, const std::vector<CompanionFile>& files) {
  if (files.empty()) return;
  const std::string folder = companions_folder(checkpoint);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ExitCode::io_error, "{}: cannot be created: {}", folder, error.message());
  for (const CompanionFile& file : files) write_durably(folder + "/" + file.name, file.bytes);
  sync_path(folder);
}

std::vector<ManifestFile> list_companions(const std::string& checkpoint) {
  std::vector<ManifestFile> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(companions_folder(checkpoint), error))
    files.push_back(listed(entry.path().filename().string(), MappedFile(entry.path().string()).view()));
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

std::vector<CompanionFile> read_companions(const std::string& checkpoint, const Manifest& manifest) {
  check_companion_sizes(checkpoint, manifest);
  std::vector<CompanionFile> files;
  for (const ManifestFile& file : manifest.companions) {
    files.push_back({file.name, std::string(MappedFile(path_of(checkpoint, file)).view())});
    if (const std::string got = listed(file.name, files.back().bytes).xxh3_128; got != file.xxh3_128)
      fail(ExitCode::bad_data, "{}: digest does not match: the manifest says {}, the file has {}",
           path_of(checkpoint, file), file.xxh3_128, got);
  }
  return files;
}

void check_companion_sizes(const std::string& checkpoint, const Manifest& manifest) {
  std::set<std::string> known;
  std::error_code error;
  for (const ManifestFile& file : manifest.companions) {
    const std::string path = path_of(checkpoint, file);
    if (!fs::is_regular_file(path, error)) fail(ExitCode::bad_data, "{}: is missing", path);
    if (const std::uintmax_t size = fs::file_size(path, error); size != file.size)
      fail(ExitCode::bad_data, "{}: has {} bytes, the manifest says {}", path, size, file.size);
    known.insert(file.name);
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(companions_folder(checkpoint), error))
    if (!known.contains(entry.path().filename().string()))
      fail(ExitCode::bad_data, "{}: is not listed in the manifest", entry.path().string());
}

void check_companions(const std::string& checkpoint, const Manifest& manifest, const Poll& poll) {
  if (poll) poll();
  read_companions(checkpoint, manifest);
}

nlohmann::ordered_json companions_json(const std::vector<ManifestFile>& files) {
  auto list = nlohmann::ordered_json::array();
  for (const ManifestFile& file : files)
    list.push_back({{"name", file.name}, {"size", file.size}, {"xxh3_128", file.xxh3_128}});
  return list;
}

std::vector<ManifestFile> read_companion_list(const nlohmann::json& list, const std::string& where) {
  std::vector<ManifestFile> files;
  std::set<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Members members(list[i], fmt::format("{}: companions[{}]", where, i));
    ManifestFile file{members.text("name"), static_cast<std::uint64_t>(members.count("size")),
                      members.digest("xxh3_128", 32)};
    members.finish();
    if (!is_companion_name(file.name) || !names.insert(file.name).second)
      fail(ExitCode::bad_data, "{}: companions[{}]: \"name\" is \"{}\"; expected a plain file name, each once", where,
           i, file.name);
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace sestina
