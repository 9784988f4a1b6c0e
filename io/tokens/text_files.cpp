#include "io/tokens/text_files.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <list>

#include "core/deck/options.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokenizer/tokenizer_text.hpp"
#include "io/tokens/text_unpack.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> usual_patterns = {"*.txt",     "*.txt.gz", "*.txt.zst",  "*.md",
                                                 "*.md.gz",   "*.md.zst", "*.rst",      "*.rst.gz",
                                                 "*.rst.zst", "*.jsonl",  "*.jsonl.gz", "*.jsonl.zst"};
constexpr std::size_t piece_bytes = std::size_t{1} << 17, batch_bytes = std::size_t{1} << 26,
                      encode_bytes = std::size_t{1} << 24;  // a second or two of work between two polls

bool matches(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

std::vector<std::string> list_folder(const std::string& folder, const std::vector<std::string>& patterns) {
  std::vector<std::string> found;
  std::error_code error;
  const auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator entry(folder, options, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored) && matches(entry->path().filename().string(), patterns))
      found.push_back(entry->path().string());
  }
  if (error) fail(ExitCode::io_error, "{}: cannot be listed: {}", folder, error.message());
  if (found.empty())
    fail(ExitCode::input_missing, "{}: no file below this folder matches {}", folder, fmt::join(patterns, " "));
  std::sort(found.begin(), found.end());
  return found;
}

bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool visible(char c) { return c > ' ' && c < 127; }

// The first place at or after `from` where a single line break stands between a visible ASCII character and an ASCII
// letter. The GPT-2, Llama-3 and Qwen patterns all end a piece behind such a line break, and no normalisation reaches
// over it.
std::size_t safe_cut(std::string_view text, std::size_t from) {
  for (std::size_t at = text.find('\n', from); at != std::string_view::npos; at = text.find('\n', at + 1))
    if (at > 0 && at + 1 < text.size() && visible(text[at - 1]) && letter(text[at + 1])) return at + 1;
  return text.size();
}

struct Piece {
  std::string_view text;
  bool last;  // of its document
};

std::vector<Piece> cut_documents(const std::vector<std::string_view>& documents) {
  std::vector<Piece> pieces;
  for (std::string_view rest : documents) {
    while (rest.size() > 2 * piece_bytes) {
      const std::size_t cut = safe_cut(rest, piece_bytes);
      if (cut == rest.size()) break;
      pieces.push_back({rest.substr(0, cut), false});
      rest.remove_prefix(cut);
    }
    pieces.push_back({rest, true});
  }
  return pieces;
}

}  // namespace

std::vector<std::string> list_text_files(const std::vector<std::string>& inputs,
                                         const std::vector<std::string>& patterns) {
  std::vector<std::string> files;
  std::error_code ignored;  // a name that is too long is that of no file
  for (const std::string& input : inputs) {
    if (fs::is_directory(input, ignored)) {
      const auto found = list_folder(input, patterns.empty() ? usual_patterns : patterns);
      files.insert(files.end(), found.begin(), found.end());
    } else if (fs::exists(input, ignored)) {
      files.push_back(input);
    } else {
      fail(ExitCode::input_missing, "{}: no such file or folder", input);
    }
  }
  return files;
}

TextFile::TextFile(const std::string& path) : contents_(MappedFile(path)) {
  const std::string_view raw = view();  // ends with the mapping, which the unpacked text replaces
  if (raw.starts_with("\x1f\x8b"))
    contents_ = unpack_gzip(raw, path);
  else if (raw.starts_with("\x28\xb5\x2f\xfd"))
    contents_ = unpack_zstd(raw, path);
}

std::string_view TextFile::view() const {
  if (const auto* mapped = std::get_if<MappedFile>(&contents_)) return mapped->view();
  return std::get<std::string>(contents_);
}

std::vector<std::string_view> split_documents(std::string_view text, const std::string& separator) {
  std::vector<std::string_view> documents;
  const auto add = [&](std::string_view document) {
    if (!document.empty()) documents.push_back(document);
  };
  std::size_t begin = 0;
  for (std::size_t line = 0; !separator.empty() && line < text.size();) {
    const std::size_t end = std::min(text.find('\n', line), text.size()), next = std::min(end + 1, text.size());
    if (text.substr(line, end - line) == separator) {
      add(text.substr(begin, line - begin));
      begin = next;
    }
    line = next;
  }
  add(text.substr(begin));
  return documents;
}

DocumentFile::DocumentFile(const std::string& path, const DocumentRule& rule) : file_(path) {
  const bool lines = rule.form == TextForm::by_name ? is_jsonl_name(path) : rule.form == TextForm::jsonl;
  if (lines) {
    texts_ = read_json_lines(file_.view(), rule.text_key, rule.threads, counts_);
    documents_.assign(texts_.begin(), texts_.end());
    return;
  }
  documents_ = split_documents(file_.view(), rule.separator);
  for (const std::string_view document : documents_) counts_.repaired += is_valid_utf8(document) ? 0 : 1;
}

TextDefects read_documents(const std::vector<std::string>& files, const DocumentRule& rule,
                           const DocumentVisitor& visit) {
  TextDefects counts;
  for (std::size_t begin = 0, end = 0; begin < files.size(); begin = end) {
    std::list<DocumentFile> batch;  // a list: documents point into their file, which must not move
    std::vector<std::string_view> documents;
    for (std::size_t read = 0; end < files.size() && read < batch_bytes; ++end) {
      if (rule.poll) rule.poll();
      const DocumentFile& file = batch.emplace_back(files[end], rule);
      for (const std::string_view document : file.documents()) read += document.size();
      documents.insert(documents.end(), file.documents().begin(), file.documents().end());
      counts.add(file.counts());
    }
    visit(documents, end);
  }
  require_valid_lines(counts, rule.invalid_limit, files.front());
  return counts;
}

void tokenize_documents(const std::vector<std::string_view>& documents, const Tokenizer* tokenizer,
                        std::int64_t end_of_document, int threads,
                        const std::function<void(const std::vector<std::int32_t>&)>& sink, const Poll& poll) {
  const std::int64_t end_id = tokenizer != nullptr ? end_of_document : -1;
  const auto pieces = cut_documents(documents);
  std::vector<std::int32_t> tokens;
  std::vector<std::string_view> batch;
  for (std::size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
    if (poll) poll();
    batch.clear();
    for (std::size_t bytes = 0; end < pieces.size() && bytes < encode_bytes; bytes += pieces[end++].text.size())
      batch.push_back(pieces[end].text);
    const auto encoded =
        tokenizer != nullptr ? tokenizer->encode(batch, threads) : std::vector<std::vector<std::int32_t>>();
    for (std::size_t i = begin; i < end; ++i) {
      if (tokenizer != nullptr) {
        tokens.insert(tokens.end(), encoded[i - begin].begin(), encoded[i - begin].end());
      } else {
        for (const char c : pieces[i].text) tokens.push_back(static_cast<unsigned char>(c));
      }
      if (!pieces[i].last) continue;
      if (end_id >= 0) tokens.push_back(static_cast<std::int32_t>(end_id));
      sink(tokens);
      tokens.clear();
    }
  }
}

}  // namespace sestina
