// `sestina data inspect` and `sestina data verify`: show what data files hold, and whether all of it is sound.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/command/verbs.hpp"
#include "app/start/run_deck.hpp"
#include "app/train/run_data.hpp"
#include "core/deck/options.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokens/data_loader.hpp"
#include "io/tokens/token_file.hpp"

namespace sestina {

namespace fs = std::filesystem;

namespace {

using Format = DataSource::Format;
constexpr std::pair<const char*, Format> formats[] = {{"megatron", Format::megatron},
                                                      {"llmc", Format::llmc},
                                                      {"npy", Format::npy},
                                                      {"text", Format::text},
                                                      {"jsonl", Format::jsonl}};

const char* format_name(Format format) {
  for (const auto& [name, value] : formats)
    if (value == format) return name;
  return "";
}

DataSource source_of(Format format, const std::string& path) {
  DataSource source;
  source.format = format;
  source.path = path;
  return source;
}

// Returns the format that was given, else that of what lies at the path; a Megatron pair may be named by its prefix or
// by one of its two files.
DataSource find_data_source(std::string path, const std::string& format) {
  const std::string extension = fs::path(path).extension().string();
  const std::string prefix = extension == ".bin" || extension == ".idx" ? path.substr(0, path.size() - 4) : path;
  const bool pair = fs::exists(prefix + ".idx") && fs::exists(prefix + ".bin");
  for (const auto& [name, value] : formats)
    if (format == name) return source_of(value, value == Format::megatron ? prefix : path);
  if (!format.empty()) fail(ExitCode::usage, "format '{}', allowed: megatron, llmc, npy, text, jsonl", format);
  if (pair || extension == ".idx") return source_of(Format::megatron, prefix);
  if (extension == ".bin") return source_of(Format::llmc, path);
  if (extension == ".npy") return source_of(Format::npy, path);
  return source_of(is_jsonl_name(path) ? Format::jsonl : Format::text, path);
}

std::optional<Tokenizer> load_tokenizer(const std::string& path) {
  if (path.empty()) return std::nullopt;
  return Tokenizer::load(path);
}

struct SourceSummary {
  std::uint64_t documents = 0;
  std::int32_t largest = 0;
};

SourceSummary summarise(const TokenSource& source) {
  constexpr std::uint64_t chunk = std::uint64_t{1} << 20;
  SourceSummary summary;
  std::vector<std::uint64_t> starts;
  std::vector<std::int32_t> tokens;
  for (std::uint64_t begin = 0; begin < source.size(); begin += chunk) {
    const std::uint64_t end = std::min(begin + chunk, source.size());
    source.document_starts(begin, end, starts);
    summary.documents += starts.size();
    tokens.resize(end - begin);
    source.read(begin, tokens.size(), tokens.data());
    summary.largest = std::max(summary.largest, *std::max_element(tokens.begin(), tokens.end()));
  }
  return summary;
}

// Writes bytes as text: what is no visible ASCII becomes \xNN, so that a terminal shows any file.
std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (static_cast<unsigned char>(c) < 32 || c == 127)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out;
}

nlohmann::ordered_json verify_deck(const DataVerifyArguments& arguments) {
  nlohmann::ordered_json checked = nlohmann::ordered_json::array();
  Deck deck = layered_deck(arguments.deck);
  const Options options = Options::read(deck);
  deck.finish();
  const auto tokenizer = load_tokenizer(options.data.tokenizer);
  const Tokenizer* chosen = tokenizer ? &*tokenizer : nullptr;
  const SampleSet train = open_samples(options, Split::train, chosen);
  const SampleSet validation = train.validation(chosen);
  checked.push_back({{"what", "training data"}, {"windows", train.windows()}, {"description", train.description()}});
  if (validation.windows() > 0)
    checked.push_back(
        {{"what", "validation data"}, {"windows", validation.windows()}, {"description", validation.description()}});
  return checked;
}

}  // namespace

int run_data_inspect(const DataInspectArguments& arguments) {
  const DataSource found = find_data_source(arguments.path, arguments.format);
  const auto tokenizer = load_tokenizer(arguments.tokenizer);
  const Tokenizer* chosen = tokenizer ? &*tokenizer : nullptr;
  const SpecialTokens tokens = find_special_tokens({.tokenizer = chosen, .tokenizer_path = arguments.tokenizer});
  const auto source = open_source(found, chosen, 0, tokens.end);
  const SourceSummary summary = summarise(*source);
  std::vector<std::int32_t> first(
      std::min<std::uint64_t>(source->size(), static_cast<std::uint64_t>(std::max(0, arguments.tokens))));
  source->read(0, first.size(), first.data());
  const std::string text = tokenizer ? tokenizer->decode(first.data(), first.size(), false) : "";
  if (arguments.json) {
    nlohmann::ordered_json json = {{"path", found.path},
                                   {"format", format_name(found.format)},
                                   {"type", source->token_type()},
                                   {"tokens", source->size()},
                                   {"documents", summary.documents},
                                   {"largest_id", summary.largest},
                                   {"bytes_per_token", nullptr},
                                   {"first", first}};
    if (source->bytes_per_token() > 0) json["bytes_per_token"] = source->bytes_per_token();
    if (tokenizer) json["text"] = text;
    fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  fmt::print(
      "format           {}\npath             {}\ntype             {}\ntokens           {}\ndocuments        "
      "{}\nlargest id       {}\n",
      format_name(found.format), found.path, source->token_type(), source->size(), summary.documents, summary.largest);
  if (source->bytes_per_token() > 0) fmt::print("bytes per token  {:.3f}\n", source->bytes_per_token());
  fmt::print("first {} tokens  {}\n", first.size(), fmt::join(first, " "));
  if (tokenizer) fmt::print("as text          {}\n", shown(text));
  return 0;
}

int run_data_verify(const DataVerifyArguments& arguments) {
  nlohmann::ordered_json checked = nlohmann::ordered_json::array();
  if (!arguments.deck.empty()) checked = verify_deck(arguments);
  for (const std::string& path : arguments.paths) {
    const auto source = open_source(find_data_source(path, arguments.format), nullptr, arguments.vocab_size);
    checked.push_back({{"what", path}, {"tokens", source->size()}, {"description", source->description()}});
  }
  if (arguments.json) {
    const nlohmann::ordered_json json = {{"ok", true}, {"checked", checked}};
    fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  for (const auto& entry : checked) {
    std::string description = entry["description"];
    while (description.ends_with('\n')) description.pop_back();
    fmt::print("{}: ok\n{}\n", entry["what"].get<std::string>(), description);
  }
  return 0;
}

}  // namespace sestina
