#include "io/checkpoint/manifest.hpp"

#include <limits>
#include <set>
#include <vector>

#include "io/store/digest.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

using nlohmann::json;

constexpr std::string_view kSealBegin = ",\n\"digest\": \"", kSealEnd = "\"\n}\n";
constexpr std::size_t kDigestDigits = 32;
constexpr std::size_t kSealSize = kSealBegin.size() + kDigestDigits + kSealEnd.size();
constexpr int kMaxDepth = 8;  // depth of brackets; a manifest has five

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return text;
}

json parse_json(std::string_view text, const std::string& where) {
  // nlohmann keeps the last of two equal names; counting them as they arrive finds that.
  std::vector<std::set<std::string>> names;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) fail(ExitCode::bad_data, "{}: brackets are nested deeper than {}", where, kMaxDepth);
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key && !names.back().insert(parsed.get<std::string>()).second)
      fail(ExitCode::bad_data, "{}: member \"{}\" occurs twice", where, parsed.get<std::string>());
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& error) {
    fail(ExitCode::bad_data, "{}: is not valid JSON: {}", where, error.what());
  }
}

// Checks the seal, and returns the text without it.
std::string unsealed(std::string_view text, const std::string& where) {
  if (text.empty()) fail(ExitCode::bad_data, "{}: is empty", where);
  if (text.size() <= kSealSize)
    fail(ExitCode::bad_data, "{}: has {} bytes, too few for a manifest", where, text.size());
  const std::string_view seal = text.substr(text.size() - kSealSize), body = text.substr(0, text.size() - kSealSize);
  if (!seal.starts_with(kSealBegin) || !seal.ends_with(kSealEnd))
    fail(ExitCode::bad_data, "{}: does not end with its digest (truncated, or not written by this program)", where);
  const std::string_view stored = seal.substr(kSealBegin.size(), kDigestDigits);
  const std::string computed = digest128(body.data(), body.size());
  if (stored != computed)
    fail(ExitCode::bad_data, "{}: digest does not match: it says {}, its bytes give {}", where, stored, computed);
  return std::string(body) + "}";
}

}  // namespace

Members::Members(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) fail(ExitCode::bad_data, "{}: got {}; expected an object", where_, object.type_name());
}

const json& Members::get(const char* key) {
  ++read_;
  const auto found = object_.find(key);
  if (found == object_.end()) fail(ExitCode::bad_data, "{}: member \"{}\" is missing", where_, key);
  return *found;
}

std::int64_t Members::count(const char* key, std::int64_t max) {
  const json& value = get(key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(max))
    fail(ExitCode::bad_data, "{}: \"{}\" is {}; expected a whole number from 0 to {}", where_, key, shown(value), max);
  return value.get<std::int64_t>();
}

std::uint64_t Members::word(const char* key) {
  const json& value = get(key);
  if (!value.is_number_unsigned())
    fail(ExitCode::bad_data, "{}: \"{}\" is {}; expected a 64-bit whole number", where_, key, shown(value));
  return value.get<std::uint64_t>();
}

double Members::number_or_null(const char* key) {
  const json& value = get(key);
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value.is_number())
    fail(ExitCode::bad_data, "{}: \"{}\" is {}; expected a number or null", where_, key, shown(value));
  return value.get<double>();
}

std::string Members::text(const char* key) {
  const json& value = get(key);
  if (!value.is_string()) fail(ExitCode::bad_data, "{}: \"{}\" is {}; expected a string", where_, key, shown(value));
  return value.get<std::string>();
}

std::string Members::digest(const char* key, std::size_t digits) {
  std::string value = text(key);
  if (value.size() != digits || value.find_first_not_of("0123456789abcdef") != std::string::npos)
    fail(ExitCode::bad_data, "{}: \"{}\" is not a digest of {} hexadecimal digits", where_, key, digits);
  return value;
}

const json& Members::list(const char* key) {
  const json& value = get(key);
  if (!value.is_array()) fail(ExitCode::bad_data, "{}: \"{}\" is {}; expected a list", where_, key, shown(value));
  return value;
}

void Members::finish() const {
  if (read_ != object_.size()) fail(ExitCode::bad_data, "{}: {} members; expected {}", where_, object_.size(), read_);
}

json parse_sealed(std::string_view text, const std::string& where) { return parse_json(unsealed(text, where), where); }

std::string seal_manifest(std::string_view object) {
  const std::string_view open = object.substr(0, object.rfind('}'));
  std::string text(open.substr(0, open.find_last_not_of(" \n") + 1));
  const std::string digest = digest128(text.data(), text.size());
  text.append(kSealBegin).append(digest).append(kSealEnd);
  return text;
}

std::string sealed_text(const nlohmann::ordered_json& object) {
  try {
    return seal_manifest(object.dump(1));
  } catch (const json::exception& error) {
    fail(ExitCode::internal, "manifest: {}", error.what());
  }
}

}  // namespace sestina
