#include "io/tokenizer/tokenizer_json.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "kernels/base/error.hpp"

namespace sestina {

namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

class PostProcessorReader {
 public:
  explicit PostProcessorReader(const std::string& where) : where_(where) {}

  Ids prefix(const json& object) const {
    if (object.is_null()) return {};
    const std::string type = text(object, "type");
    if (type == "ByteLevel") return {};
    if (type == "TemplateProcessing") return of_template(object);
    if (type == "RobertaProcessing" || type == "BertProcessing") return {of_pair(object, "cls")};
    if (type != "Sequence")
      refuse(fmt::format(
          "of type \"{}\" is not supported; TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel and "
          "Sequence are",
          type));
    Ids all;
    for (const json& part : list(object, "processors")) {
      const Ids ahead = prefix(part);
      all.insert(all.begin(), ahead.begin(), ahead.end());
    }
    return all;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ExitCode::bad_data, "{}: post_processor {}", where_, what);
  }
  const json& member(const json& object, const char* name) const {
    if (!object.is_object() || !object.contains(name)) refuse(fmt::format("lacks \"{}\"", name));
    return object[name];
  }
  const json& list(const json& object, const char* name) const {
    const json& value = member(object, name);
    if (!value.is_array()) refuse(fmt::format("has a \"{}\" that is no list", name));
    return value;
  }
  std::string text(const json& object, const char* name) const {
    const json& value = member(object, name);
    if (!value.is_string()) refuse(fmt::format("has a \"{}\" that is no string", name));
    return value.get<std::string>();
  }
  std::int32_t id(const json& value) const {
    constexpr double largest = 1 << 24;  // the largest id, as in the vocabulary
    if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() > largest)
      refuse(fmt::format("has the id {}", value.dump(-1, ' ', true).substr(0, 40)));
    return value.get<std::int32_t>();
  }
  std::int32_t of_pair(const json& object, const char* name) const {  // ["[CLS]", 101]
    const json& pair = list(object, name);
    if (pair.size() != 2) refuse(fmt::format("has a \"{}\" that is not a token with its id", name));
    return id(pair[1]);
  }

  // "single" is a list of {"SpecialToken": {"id": name}} and {"Sequence": ...}, the ids stand in "special_tokens".
  Ids of_template(const json& object) const {
    Ids ids;
    for (const json& piece : list(object, "single")) {
      if (!piece.is_object() || !piece.contains("SpecialToken")) return ids;
      const std::string name = text(piece["SpecialToken"], "id");
      for (const json& one : list(member(member(object, "special_tokens"), name.c_str()), "ids"))
        ids.push_back(id(one));
    }
    refuse("has a template without a text");
  }

  const std::string& where_;
};

}  // namespace

std::vector<std::int32_t> post_processor_prefix(const json& post_processor, const std::string& where) {
  return PostProcessorReader(where).prefix(post_processor);
}

namespace {

using nlohmann::json;

constexpr int kDeepest = 16;                  // real files nest six deep
constexpr std::int64_t kLargestId = 1 << 24;  // ids become table sizes

class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  TokenizerDescription read(std::string_view text) const {
    const json root = parse(text);
    if (!root.is_object()) refuse("the file", "is not a JSON object");
    TokenizerDescription d{
        normalizer(member(root, "normalizer")), pre_tokenizer(member(root, "pre_tokenizer")), {}, {}, {}};
    d.model = model(member(root, "model"));
    decoder(member(root, "decoder"));
    d.added = added_tokens(member(root, "added_tokens"), d.model);
    d.prefix = post_processor_prefix(member(root, "post_processor"), where_);
    return d;
  }

 private:
  [[noreturn]] void refuse(std::string_view part, std::string_view what) const {
    fail(ExitCode::bad_data, "{}: {} {}", where_, part, what);
  }
  [[noreturn]] void unsupported(std::string_view part, const std::string& type, std::string_view allowed) const {
    fail(ExitCode::bad_data, "{}: {} of type \"{}\" is not supported; {} is", where_, part, type, allowed);
  }

  json parse(std::string_view text) const {
    const auto limit_depth = [&](int depth, json::parse_event_t, json&) {
      if (depth > kDeepest) refuse("JSON", fmt::format("nested more than {} deep", kDeepest));
      return true;
    };
    try {
      return json::parse(text, limit_depth);
    } catch (const json::exception& e) {
      refuse("JSON:", e.what());
    }
  }

  // A null stands for a member that is not there, as in the files themselves.
  static const json& member(const json& object, const char* name) {
    static const json none;
    const auto found = object.find(name);
    return found == object.end() ? none : *found;
  }
  bool flag(const json& object, const char* name, bool fallback) const {
    const json& value = member(object, name);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) refuse(name, "is not true or false");
    return value.get<bool>();
  }
  std::string text(const json& object, const char* name) const {
    const json& value = member(object, name);
    if (value.is_null()) return "";
    if (!value.is_string()) refuse(name, "is not a string");
    return value.get<std::string>();
  }
  const json& list(const json& object, const char* name) const {
    const json& value = member(object, name);
    if (!value.is_array()) refuse(name, "is not a list");
    return value;
  }
  std::string type(const json& object, std::string_view part) const {
    if (!object.is_object()) refuse(part, "is not an object");
    return text(object, "type");
  }
  std::int32_t id(const json& value, std::string_view part) const {
    if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() > kLargestId) {
      refuse(part, fmt::format("has the id {}; 0 to {} are allowed", value.dump().substr(0, 40), kLargestId));
    }
    return value.get<std::int32_t>();
  }

  bool normalizer(const json& object) const {
    if (object.is_null()) return false;
    const std::string kind = type(object, "normalizer");
    if (kind == "NFC") return true;
    if (kind != "Sequence") unsupported("a normalizer", kind, "NFC");
    bool nfc = false;
    for (const json& part : list(object, "normalizers")) {
      if (!part.is_object() || text(part, "type") != "NFC")
        unsupported("a normalizer", type(part, "normalizer"), "NFC");
      nfc = true;
    }
    return nfc;
  }

  // The steps up to and including ByteLevel, which must be there and last.
  PreTokenizer pre_tokenizer(const json& object) const {
    if (object.is_null()) refuse("pre_tokenizer", "is missing: only byte-level tokenizers are supported");
    std::vector<const json*> parts{&object};
    if (type(object, "pre_tokenizer") == "Sequence") {
      parts.clear();
      for (const json& part : list(object, "pretokenizers")) parts.push_back(&part);
    }
    std::vector<PreStep> steps;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::string kind = type(*parts[i], "pre_tokenizer");
      if ((kind == "ByteLevel") != (i + 1 == parts.size())) {
        unsupported("a pre_tokenizer at this place", kind, "ByteLevel at the end, Split or Digits before it");
      }
      step(*parts[i], kind, steps);
    }
    if (parts.empty()) refuse("pre_tokenizer", "has no ByteLevel: only byte-level tokenizers are supported");
    return PreTokenizer(std::move(steps));
  }

  // Adds the steps of one part.
  void step(const json& part, const std::string& kind, std::vector<PreStep>& steps) const {
    if (kind == "ByteLevel") {
      if (flag(part, "add_prefix_space", true)) steps.push_back(prefix_space_step());
      if (flag(part, "use_regex", true)) steps.push_back(regex_step(kGpt2Pattern));
    } else if (kind == "Digits") {
      // Rust's char::is_numeric, by Unicode 17: what it added stands after the N of the patterns.
      const char* digit = R"([\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}])";
      const bool each = flag(part, "individual_digits", false);
      steps.push_back(split_step(Pattern::regex(std::string(digit) + (each ? "" : "+"), where_), false, false,
                                 PreStep::AtCut::passes_over));
    } else if (kind == "Split") {
      const std::string behavior = text(part, "behavior");
      if (behavior != "Isolated" && behavior != "Removed")
        unsupported("a Split behavior", behavior, "Isolated or Removed");
      const bool removed = behavior == "Removed", invert = flag(part, "invert", false);
      const json& pattern = member(part, "pattern");
      if (!pattern.is_object() || pattern.size() != 1) refuse("pattern of a Split", "is neither Regex nor String");
      const bool regex = pattern.contains("Regex");
      const std::string expression = text(pattern, regex ? "Regex" : "String");
      if (expression.empty()) refuse("pattern of a Split", "is empty");
      steps.push_back(regex ? regex_step(expression, removed, invert)
                            : split_step(Pattern::literal(expression, where_), removed, invert));
    } else {
      unsupported("a pre_tokenizer", kind, "ByteLevel, Split or Digits");
    }
  }

  PreStep regex_step(std::string_view expression, bool removed = false, bool invert = false) const {
    return split_step(Pattern::regex(expression, where_), removed, invert, at_cut(expression));
  }

  BpeDescription model(const json& object) const {
    const std::string kind = type(object, "model");
    if (kind != "BPE" && !(kind.empty() && object.contains("merges"))) unsupported("a model", kind, "BPE (byte-level)");
    const json& dropout = member(object, "dropout");
    if (!dropout.is_null() && !(dropout.is_number() && dropout.get<double>() == 0))
      refuse("dropout", "is not supported");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!text(object, name).empty()) refuse(name, "is not supported: only byte-level tokenizers are");
    }
    if (flag(object, "byte_fallback", false))
      refuse("byte_fallback", "is not supported: only byte-level tokenizers are");
    BpeDescription d;
    d.ignore_merges = flag(object, "ignore_merges", false);
    d.unknown = text(object, "unk_token");
    d.fuse_unknown = flag(object, "fuse_unk", false);
    const json& vocab = member(object, "vocab");
    if (!vocab.is_object()) refuse("vocab", "is not an object");
    d.vocab.reserve(vocab.size());
    std::unordered_set<std::int32_t> taken;
    for (const auto& [token, value] : vocab.items()) {
      const std::int32_t number = id(value, "a token of the vocab");
      if (!taken.insert(number).second) refuse("vocab", fmt::format("has the id {} twice", number));
      d.vocab.emplace(token, number);
    }
    for (const json& entry : list(object, "merges")) d.merges.push_back(merge(entry));
    return d;
  }

  // Reads "a b" or ["a", "b"].
  std::pair<std::string, std::string> merge(const json& entry) const {
    if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      return {entry[0].get<std::string>(), entry[1].get<std::string>()};
    }
    if (entry.is_string()) {
      const auto& both = entry.get_ref<const std::string&>();
      const std::size_t space = both.find(' ');
      if (space != std::string::npos && both.find(' ', space + 1) == std::string::npos) {
        return {both.substr(0, space), both.substr(space + 1)};
      }
    }
    refuse("merges",
           fmt::format("has the entry {}; \"a b\" or [\"a\", \"b\"] are allowed", entry.dump().substr(0, 60)));
  }

  void decoder(const json& object) const {
    if (object.is_null()) return;  // read as ByteLevel, which the pre_tokenizer calls for
    std::vector<const json*> parts{&object};
    if (type(object, "decoder") == "Sequence") {
      parts.clear();
      for (const json& part : list(object, "decoders")) parts.push_back(&part);
    }
    for (const json* part : parts) {
      if (type(*part, "decoder") != "ByteLevel") unsupported("a decoder", type(*part, "decoder"), "ByteLevel");
    }
  }

  // A token that the vocabulary has keeps the vocabulary's id.
  std::vector<AddedToken> added_tokens(const json& array, const BpeDescription& model) const {
    std::vector<AddedToken> tokens;
    if (array.is_null()) return tokens;
    if (!array.is_array()) refuse("added_tokens", "is not a list");
    std::unordered_set<std::int64_t> taken;
    for (const auto& [token, number] : model.vocab) taken.insert(number);
    std::unordered_set<std::string> seen;
    std::int64_t next = static_cast<std::int64_t>(model.vocab.size());  // the number that the package gives a new token
    for (const json& entry : array) {
      if (!entry.is_object()) refuse("added_tokens", "has an entry that is not an object");
      AddedToken t;
      t.content = text(entry, "content");
      if (t.content.empty() || !seen.insert(t.content).second)
        refuse("added_tokens", "has an entry that is empty or there twice");
      t.id = id(member(entry, "id"), "added token \"" + t.content + "\"");
      const auto known = model.vocab.find(t.content);
      if (known != model.vocab.end() ? known->second != t.id : !taken.insert(t.id).second) {
        refuse("added token \"" + t.content + "\"", fmt::format("has the id {}, which conflicts with the vocab", t.id));
      }
      if (known == model.vocab.end() && t.id != next) {
        refuse("added token \"" + t.content + "\"",
               fmt::format("has the id {}; the `tokenizers` package reads no other than {} there", t.id, next));
      }
      next = std::max(next, t.id + 1);
      t.special = flag(entry, "special", false);
      t.single_word = flag(entry, "single_word", false);
      t.lstrip = flag(entry, "lstrip", false);
      t.rstrip = flag(entry, "rstrip", false);
      t.normalized = flag(entry, "normalized", !t.special);
      tokens.push_back(std::move(t));
    }
    return tokens;
  }

  const std::string& where_;
};

}  // namespace

TokenizerDescription parse_tokenizer_json(std::string_view text, const std::string& where) {
  return Reader(where).read(text);
}

}  // namespace sestina
