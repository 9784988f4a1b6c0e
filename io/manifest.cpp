#include "io/manifest.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "io/digest.hpp"
#include "kernels/error.hpp"

namespace sestina {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kSealBegin = ",\n\"digest\": \"", kSealEnd = "\"\n}\n";
constexpr std::size_t kDigestDigits = 32;
constexpr std::size_t kSealSize = kSealBegin.size() + kDigestDigits + kSealEnd.size();
constexpr int kMaxDepth = 8;  // of brackets; ours has five
constexpr std::size_t kMaxDimensions = 8;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;  // whole numbers that every JSON reader keeps exact
constexpr std::int64_t kMaxRanks = 100000;

// Reads members of one JSON object, each once; every failure names the member.
class Members {
 public:
  Members(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail(ExitCode::bad_data, "{}: got {}, need an object", where_, object.type_name());
  }
  const json& get(const char* key) {
    ++read_;
    const auto found = object_.find(key);
    if (found == object_.end()) fail(ExitCode::bad_data, "{}: member \"{}\" is missing", where_, key);
    return *found;
  }
  std::int64_t count(const char* key, std::int64_t max = kMaxCount) {
    const json& value = get(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(max))
      fail(ExitCode::bad_data, "{}: \"{}\" is {}, need a whole number from 0 to {}", where_, key, shown(value), max);
    return value.get<std::int64_t>();
  }
  std::uint64_t word(const char* key) {  // any 64-bit value
    const json& value = get(key);
    if (!value.is_number_unsigned())
      fail(ExitCode::bad_data, "{}: \"{}\" is {}, need a 64-bit whole number", where_, key, shown(value));
    return value.get<std::uint64_t>();
  }
  double number_or_null(const char* key) {
    const json& value = get(key);
    if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
    if (!value.is_number())
      fail(ExitCode::bad_data, "{}: \"{}\" is {}, need a number or null", where_, key, shown(value));
    return value.get<double>();
  }
  std::string text(const char* key) {
    const json& value = get(key);
    if (!value.is_string()) fail(ExitCode::bad_data, "{}: \"{}\" is {}, need a string", where_, key, shown(value));
    return value.get<std::string>();
  }
  std::string digest(const char* key, std::size_t digits) {
    std::string value = text(key);
    if (value.size() != digits || value.find_first_not_of("0123456789abcdef") != std::string::npos)
      fail(ExitCode::bad_data, "{}: \"{}\" is no digest of {} hexadecimal digits", where_, key, digits);
    return value;
  }
  const json& list(const char* key) {
    const json& value = get(key);
    if (!value.is_array()) fail(ExitCode::bad_data, "{}: \"{}\" is {}, need a list", where_, key, shown(value));
    return value;
  }
  void finish() const {  // no members but those read
    if (read_ != object_.size())
      fail(ExitCode::bad_data, "{}: {} members, {} are known", where_, object_.size(), read_);
  }

 private:
  static std::string shown(const json& value) {
    std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 40) + "...";
    return text;
  }
  const json& object_;
  std::string where_;
  std::size_t read_ = 0;
};

std::optional<DType> dtype_named(const std::string& wanted) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8, DType::u16, DType::u32})
    if (wanted == name(dtype)) return dtype;
  return std::nullopt;
}

bool is_file_name(const std::string& name) {
  if (name == "global.h5") return true;
  return name.size() == 14 && name.starts_with("shard_") && name.ends_with(".h5") &&
         name.substr(6, 5).find_first_not_of("0123456789") == std::string::npos;
}

// "/model/<name>...": absolute, of known root, no empty, "." or ".." part.
bool is_tensor_path(const std::string& path) {
  if (!path.starts_with("/model/") && !path.starts_with("/optimizer/") && !path.starts_with("/run/")) return false;
  if (path.size() > 1000 || path.find('\0') != std::string::npos) return false;
  for (std::size_t begin = 1; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

RunState read_run(const json& object, std::int64_t step, const std::string& where) {
  Members members(object, where);
  RunState run;
  run.step = step;
  run.sample = members.word("sample");
  run.tokens = members.word("tokens");
  run.seed = members.word("seed");
  run.loss = members.number_or_null("loss");
  run.instruction_set = members.text("instruction_set");
  run.tokenizer_digest = members.text("tokenizer_digest");
  run.deck = members.text("deck");
  run.extra = members.text("extra");
  members.finish();
  return run;
}

ManifestFile read_file(const json& object, const std::string& where) {
  Members members(object, where);
  ManifestFile file{members.text("name"), static_cast<std::uint64_t>(members.count("size")),
                    members.digest("xxh3_128", 32)};
  members.finish();
  if (!is_file_name(file.name))
    fail(ExitCode::bad_data, "{}: \"name\" is \"{}\", need shard_NNNNN.h5 or global.h5", where, file.name);
  return file;
}

// Bytes of one row; -1 when the shape is not believable.
std::int64_t row_bytes(const std::vector<std::int64_t>& shape, DType dtype) {
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  for (std::size_t i = 1; i < shape.size(); ++i) {
    if (__builtin_mul_overflow(bytes, shape[i], &bytes) || bytes > kMaxCount) return -1;
  }
  std::int64_t whole = 0;
  return __builtin_mul_overflow(bytes, shape[0], &whole) || whole > kMaxCount ? -1 : bytes;
}

ManifestPiece read_piece(const json& object, const std::vector<ManifestFile>& files, const std::string& where) {
  Members members(object, where);
  ManifestPiece piece;
  const std::string name = members.text("file");
  piece.row_begin = members.count("row_begin");
  piece.row_end = members.count("row_end");
  piece.offset = static_cast<std::uint64_t>(members.count("offset"));
  piece.bytes = static_cast<std::uint64_t>(members.count("bytes"));
  piece.xxh3_64 = members.digest("xxh3_64", 16);
  members.finish();
  const auto found =
      std::find_if(files.begin(), files.end(), [&](const ManifestFile& file) { return file.name == name; });
  if (found == files.end() || name == "global.h5")
    fail(ExitCode::bad_data, "{}: file \"{}\" is not among the shards", where, name);
  piece.file = static_cast<std::size_t>(found - files.begin());
  if (piece.offset + piece.bytes > found->size)
    fail(ExitCode::bad_data, "{}: bytes [{}, {}) lie beyond the end of {} ({})", where, piece.offset,
         piece.offset + piece.bytes, name, found->size);
  return piece;
}

void read_pieces(const json& list, const std::vector<ManifestFile>& files, ManifestTensor& tensor,
                 const std::string& where) {
  const std::int64_t bytes = row_bytes(tensor.shape, tensor.dtype);
  if (bytes < 0) fail(ExitCode::bad_data, "{}: shape is too large", where);
  std::int64_t next = 0;
  for (const json& entry : list) {
    const ManifestPiece piece = read_piece(entry, files, where);
    if (piece.row_begin != next || piece.row_end < piece.row_begin || piece.row_end > tensor.shape[0])
      fail(ExitCode::bad_data, "{}: rows [{}, {}) do not follow row {} of {}", where, piece.row_begin, piece.row_end,
           next, tensor.shape[0]);
    const auto expected = static_cast<std::uint64_t>((piece.row_end - piece.row_begin) * bytes);
    if (piece.bytes != expected) fail(ExitCode::bad_data, "{}: \"bytes\" is {}, need {}", where, piece.bytes, expected);
    next = piece.row_end;
    tensor.pieces.push_back(piece);
  }
  if (next != tensor.shape[0] || tensor.pieces.empty())
    fail(ExitCode::bad_data, "{}: pieces hold {} of {} rows", where, next, tensor.shape[0]);
}

ManifestTensor read_tensor(const json& object, const std::vector<ManifestFile>& files, const std::string& where) {
  Members members(object, where);
  ManifestTensor tensor;
  tensor.path = members.text("path");
  if (!is_tensor_path(tensor.path))
    fail(ExitCode::bad_data, "{}: \"path\" \"{}\" is not below /model, /optimizer or /run", where, tensor.path);
  const std::string at = where + " " + tensor.path;
  const std::string type = members.text("dtype");
  const std::optional<DType> dtype = dtype_named(type);
  if (!dtype)
    fail(ExitCode::bad_data, "{}: \"dtype\" is \"{}\", need f32, f64, bf16, i32, i64, u8, u16 or u32", at, type);
  tensor.dtype = *dtype;
  tensor.version = members.word("version");
  const json& shape = members.list("shape");
  if (shape.empty() || shape.size() > kMaxDimensions)
    fail(ExitCode::bad_data, "{}: {} dimensions, need 1 to {}", at, shape.size(), kMaxDimensions);
  for (const json& n : shape) {
    if (!n.is_number_unsigned() || n.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxCount))
      fail(ExitCode::bad_data, "{}: \"shape\" holds something other than whole numbers from 0 to {}", at, kMaxCount);
    tensor.shape.push_back(n.get<std::int64_t>());
  }
  read_pieces(members.list("pieces"), files, tensor, at);
  members.finish();
  return tensor;
}

json parse_json(std::string_view text, const std::string& where) {
  // nlohmann keeps the last of two equal names; counting them as they arrive finds that.
  std::vector<std::set<std::string>> names;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) fail(ExitCode::bad_data, "{}: brackets are nested deeper than {}", where, kMaxDepth);
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key && !names.back().insert(parsed.get<std::string>()).second)
      fail(ExitCode::bad_data, "{}: member \"{}\" is there twice", where, parsed.get<std::string>());
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& error) {
    fail(ExitCode::bad_data, "{}: is no JSON: {}", where, error.what());
  }
}

// The text without its seal; checks the seal.
std::string unsealed(std::string_view text, const std::string& where) {
  if (text.empty()) fail(ExitCode::bad_data, "{}: is empty", where);
  if (text.size() <= kSealSize)
    fail(ExitCode::bad_data, "{}: has {} bytes, too few for a manifest", where, text.size());
  const std::string_view seal = text.substr(text.size() - kSealSize), body = text.substr(0, text.size() - kSealSize);
  if (!seal.starts_with(kSealBegin) || !seal.ends_with(kSealEnd))
    fail(ExitCode::bad_data, "{}: does not end with its digest (cut, or not written by this program)", where);
  const std::string_view stored = seal.substr(kSealBegin.size(), kDigestDigits);
  const std::string computed = digest128(body.data(), body.size());
  if (stored != computed)
    fail(ExitCode::bad_data, "{}: digest does not match: it says {}, its bytes give {}", where, stored, computed);
  return std::string(body) + "}";
}

ordered_json run_json(const RunState& run) {
  return {{"sample", run.sample},
          {"tokens", run.tokens},
          {"seed", run.seed},
          {"loss", run.loss},
          {"instruction_set", run.instruction_set},
          {"tokenizer_digest", run.tokenizer_digest},
          {"deck", run.deck},
          {"extra", run.extra}};
}

ordered_json tensor_json(const ManifestTensor& tensor, const std::vector<ManifestFile>& files) {
  ordered_json pieces = ordered_json::array();
  for (const ManifestPiece& piece : tensor.pieces)
    pieces.push_back({{"file", files[piece.file].name},
                      {"row_begin", piece.row_begin},
                      {"row_end", piece.row_end},
                      {"offset", piece.offset},
                      {"bytes", piece.bytes},
                      {"xxh3_64", piece.xxh3_64}});
  return {{"path", tensor.path},
          {"dtype", name(tensor.dtype)},
          {"shape", tensor.shape},
          {"version", tensor.version},
          {"pieces", pieces}};
}

}  // namespace

std::string seal_manifest(std::string_view object) {
  const std::string_view open = object.substr(0, object.rfind('}'));
  std::string text(open.substr(0, open.find_last_not_of(" \n") + 1));
  const std::string digest = digest128(text.data(), text.size());
  text.append(kSealBegin).append(digest).append(kSealEnd);
  return text;
}

std::string manifest_text(const Manifest& manifest) {
  ordered_json object = {
      {"schema", "sestina-checkpoint"}, {"version", kManifestVersion},           {"step", manifest.run.step},
      {"serial", manifest.serial},      {"layout", {{"ranks", manifest.ranks}}}, {"run", run_json(manifest.run)}};
  for (const ManifestFile& file : manifest.files)
    object["files"].push_back({{"name", file.name}, {"size", file.size}, {"xxh3_128", file.xxh3_128}});
  object["tensors"] = ordered_json::array();
  for (const ManifestTensor& tensor : manifest.tensors)
    object["tensors"].push_back(tensor_json(tensor, manifest.files));
  try {
    return seal_manifest(object.dump(1));
  } catch (const json::exception& error) {
    fail(ExitCode::internal, "manifest: {}", error.what());
  }
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const json object = parse_json(unsealed(text, where), where);
  Members members(object, where);
  const std::string schema = members.text("schema");
  if (schema != "sestina-checkpoint")
    fail(ExitCode::bad_data, "{}: schema is \"{}\", need \"sestina-checkpoint\"", where, schema);
  const std::int64_t version = members.count("version");
  if (version != kManifestVersion)
    fail(ExitCode::bad_data, "{}: schema version {}, this program reads version {}", where, version, kManifestVersion);
  Manifest manifest;
  const std::int64_t step = members.count("step");
  manifest.serial = static_cast<std::uint64_t>(members.count("serial"));
  Members layout(members.get("layout"), where + ": layout");
  manifest.ranks = layout.count("ranks", kMaxRanks);
  layout.finish();
  manifest.run = read_run(members.get("run"), step, where + ": run");
  std::set<std::string> names;
  for (const json& entry : members.list("files")) {
    manifest.files.push_back(read_file(entry, fmt::format("{}: files[{}]", where, manifest.files.size())));
    if (!names.insert(manifest.files.back().name).second)
      fail(ExitCode::bad_data, "{}: file {} is listed twice", where, manifest.files.back().name);
  }
  if (!names.contains("global.h5") || static_cast<std::int64_t>(names.size()) != manifest.ranks + 1)
    fail(ExitCode::bad_data, "{}: lists {} files, need global.h5 and one shard for each of {} ranks", where,
         names.size(), manifest.ranks);
  std::set<std::string> paths;
  for (const json& entry : members.list("tensors")) {
    manifest.tensors.push_back(
        read_tensor(entry, manifest.files, fmt::format("{}: tensors[{}]", where, manifest.tensors.size())));
    if (!paths.insert(manifest.tensors.back().path).second)
      fail(ExitCode::bad_data, "{}: tensor {} is listed twice", where, manifest.tensors.back().path);
  }
  members.finish();
  return manifest;
}

}  // namespace sestina
