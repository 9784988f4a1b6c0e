#include "io/checkpoint/checkpoint_part.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <thread>

#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/hdf5_file.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/store/output_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kPartSchema = "sestina-checkpoint-part";

std::string part_path(const std::string& folder, int rank) { return fmt::format("{}/part_{:05}.json", folder, rank); }

ShardPart load_part(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ExitCode::io_error, "{}: cannot be opened", path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return parse_part(text, path);
}

// Returns the missing ranks whose parts are there. It reads the folder once for all of them, since a look at each file
// would be very many on a shared file system.
std::vector<int> arrivals(const std::string& folder, const std::set<int>& missing) {
  std::vector<int> ranks;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    int rank = 0;
    if (std::sscanf(name.c_str(), "part_%d.json", &rank) == 1 && missing.count(rank) > 0 &&
        entry->path() == part_path(folder, rank))
      ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

ShardPart take_part(const std::string& folder, int rank) {
  const std::string path = part_path(folder, rank);
  ShardPart part = load_part(path);
  if (!part.error.empty()) fail(ExitCode::io_error, "rank {}: {}", rank, part.error);
  if (part.file.name != shard_name(rank))
    fail(ExitCode::io_error, "rank {}: wrote {}; expected {}", rank, part.file.name, shard_name(rank));
  std::error_code ignored;
  fs::remove(path, ignored);
  return part;
}

void add_pieces(const ManifestTensor& from, std::size_t file, std::map<std::string, std::size_t>& places,
                std::vector<ManifestTensor>& tensors) {
  const auto [place, is_new] = places.emplace(from.path, tensors.size());
  if (is_new) {
    tensors.push_back(from);
    tensors.back().pieces.clear();
  }
  ManifestTensor& to = tensors[place->second];
  SESTINA_REQUIRE(from.dtype == to.dtype && from.shape == to.shape, "{}: rank {} has it as {} ({}), another as {} ({})",
                  from.path, file, name(from.dtype), fmt::join(from.shape, ", "), name(to.dtype),
                  fmt::join(to.shape, ", "));
  to.version = std::max(to.version, from.version);
  if (is_empty(to.shape) && !to.pieces.empty()) return;  // one rank's piece is enough
  for (const ManifestPiece& piece : from.pieces) {
    to.pieces.push_back(piece);
    to.pieces.back().file = file;
  }
}

}  // namespace

std::string part_text(const ShardPart& part) {
  const std::vector<ManifestFile> files = {part.file};
  return sealed_text({{"schema", kPartSchema},
                      {"version", kManifestVersion},
                      {"error", part.error},
                      {"files", files_json(part.error.empty() ? files : std::vector<ManifestFile>{})},
                      {"tensors", tensors_json(part.tensors, files)}});
}

ShardPart parse_part(std::string_view text, const std::string& where) {
  const nlohmann::json object = parse_sealed(text, where);
  Members members(object, where);
  if (members.text("schema") != kPartSchema || members.count("version") != kManifestVersion)
    fail(ExitCode::bad_data, "{}: is not a part of a checkpoint of version {}", where, kManifestVersion);
  ShardPart part;
  part.error = members.text("error");
  const std::vector<ManifestFile> files = read_files(members.list("files"), where);
  part.tensors = read_tensors(members.list("tensors"), files, where);
  members.finish();
  if (files.size() != (part.error.empty() ? 1 : 0))
    fail(ExitCode::bad_data, "{}: lists {} files; expected one, or an error", where, files.size());
  if (!files.empty()) part.file = files[0];
  return part;
}

void publish_part(const std::string& folder, int rank, const ShardPart& part) {
  const std::string path = part_path(folder, rank), fresh = path + ".new";
  write_durably(fresh, part_text(part));
  const std::error_code error = retried_code(path, [&] {
    std::error_code code;
    fs::rename(fresh, path, code);
    return code;
  });
  if (error) fail(ExitCode::io_error, "{}: rename: {}", path, error.message());
  sync_path(folder);
}

std::vector<ShardPart> collect_parts(const std::string& folder, int ranks, double timeout) {
  const Clock::time_point begin = Clock::now();
  std::vector<ShardPart> parts(static_cast<std::size_t>(ranks - 1));
  std::set<int> missing;
  for (int rank = 1; rank < ranks; ++rank) missing.insert(rank);
  std::chrono::milliseconds pause(5);
  while (!missing.empty()) {
    const bool late = std::chrono::duration<double>(Clock::now() - begin).count() > timeout;  // but look once more
    const std::vector<int> arrived = arrivals(folder, missing);
    for (const int rank : arrived) {
      parts[static_cast<std::size_t>(rank - 1)] = take_part(folder, rank);
      missing.erase(rank);
    }
    if (!arrived.empty()) continue;
    if (late)
      fail(ExitCode::io_error, "rank {} did not write its part within {} s", fmt::join(missing, ", rank "), timeout);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause + std::chrono::milliseconds(5), std::chrono::milliseconds(50));
  }
  return parts;
}

void merge_parts(const std::vector<ShardPart>& parts, Manifest& manifest) {
  std::map<std::string, std::size_t> places;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    manifest.files.push_back(parts[rank].file);
    for (const ManifestTensor& tensor : parts[rank].tensors) add_pieces(tensor, rank, places, manifest.tensors);
  }
  for (ManifestTensor& tensor : manifest.tensors) {
    std::sort(tensor.pieces.begin(), tensor.pieces.end(), [](const ManifestPiece& a, const ManifestPiece& b) {
      return std::pair(a.row_begin, a.col_begin) < std::pair(b.row_begin, b.col_begin);
    });
    check_tiling(tensor, "shards of all ranks");
  }
}

}  // namespace sestina
