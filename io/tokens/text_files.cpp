#include "io/tokens/text_files.hpp"

#include <fnmatch.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <list>

#include "core/deck/options.hpp"
#include "io/store/folder_list.hpp"
#include "io/store/stored_bytes.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokens/file_kind.hpp"
#include "io/tokens/text_unpack.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> usual_suffixes = {".txt", ".md", ".rst", ".jsonl", ".ndjson", ".json"};
constexpr std::size_t batch_bytes = std::size_t{1} << 26;

bool matches(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), FNM_CASEFOLD) == 0;
  });
}

std::vector<std::string> list_texts(const std::string& folder, const std::vector<std::string>& patterns) {
  auto found = list_folder(folder, Depth::all_below, [&](const std::string& name) { return matches(name, patterns); });
  if (found.empty())
    fail(ExitCode::input_missing, "{}: no file below this folder matches {}", folder, fmt::join(patterns, " "));
  return found;
}

// A .json below a folder may as well be somebody's settings: one value is not taken for a document. A file that begins
// with a longer one than this is JSONL or is refused later.
bool is_one_value(const std::string& path) {
  constexpr std::uint64_t most = std::uint64_t{1} << 20;
  if (!matches(path, {"*.json"})) return false;
  const FileBytes file(path);
  const std::string head = file.text(0, static_cast<std::size_t>(std::min(most, file.size())));
  const bool one = json_values(head) != JsonValues::lines;
  if (one) spdlog::warn("{}: is one JSON value, not one object a line: left out", path);
  return one;
}

}  // namespace

std::vector<std::string> text_patterns(const std::vector<std::string>& suffixes) {
  std::vector<std::string> patterns;
  for (const std::string& suffix : suffixes)
    for (const char* packed : {"", ".gz", ".zst"}) patterns.push_back("*" + suffix + packed);
  return patterns;
}

std::vector<std::string> list_text_files(const std::vector<std::string>& inputs,
                                         const std::vector<std::string>& patterns) {
  std::vector<std::string> files;
  std::error_code ignored;  // a name that is too long is that of no file
  for (const std::string& input : inputs) {
    if (fs::is_directory(input, ignored)) {
      auto found = list_texts(input, patterns.empty() ? text_patterns(usual_suffixes) : patterns);
      std::erase_if(found, is_one_value);
      if (found.empty()) fail(ExitCode::input_missing, "{}: no file below this folder is text or JSONL", input);
      files.insert(files.end(), found.begin(), found.end());
    } else if (fs::exists(input, ignored)) {
      files.push_back(input);
    } else {
      fail(ExitCode::input_missing, "{}: no such file or folder", input);
    }
  }
  return files;
}

std::string unpack_text(std::string contents, const std::string& path) {
  if (is_gzip(contents)) return unpack_gzip(contents, path);
  if (is_zstd(contents)) return unpack_zstd(contents, path);
  return contents;
}

TextFile::TextFile(const std::string& path, TextForm form) : contents_(unpack_text(read_whole_file(path), path)) {
  if (form == TextForm::jsonl)
    refuse_non_text(ViewedBytes(contents_), path);
  else
    require_utf8(ViewedBytes(contents_), path);
  if (contents_.starts_with(utf8_mark)) begin_ = utf8_mark.size();
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

namespace {

TextForm form_of(const std::string& path, TextForm form) {
  return form != TextForm::by_name ? form : is_jsonl_name(path) ? TextForm::jsonl : TextForm::text;
}

}  // namespace

DocumentFile::DocumentFile(const std::string& path, const DocumentRule& rule) : file_(path, form_of(path, rule.form)) {
  if (form_of(path, rule.form) == TextForm::jsonl) {
    require_json_lines(file_.view(), path);
    texts_ = read_json_lines(file_.view(), rule.text_key, rule.threads, counts_);
    file_.drop();
    documents_.assign(texts_.begin(), texts_.end());
    return;
  }
  documents_ = split_documents(file_.view(), rule.separator);
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
  std::vector<std::int32_t> tokens;
  const auto end_document = [&] {
    if (end_id >= 0) tokens.push_back(static_cast<std::int32_t>(end_id));
    sink(tokens);
    tokens.clear();
  };
  if (tokenizer == nullptr) {
    for (const std::string_view document : documents) {
      if (poll) poll();
      for (const char c : document) tokens.push_back(static_cast<unsigned char>(c));
      end_document();
    }
    return;
  }
  const auto append = [&](const std::vector<std::int32_t>& ids, bool last) {
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    if (last) end_document();
  };
  Tokenizer::EncodeSizes sizes;  // a second or two of work between two polls
  sizes.poll = poll;
  tokenizer->encode(documents, threads, append, sizes);
}

}  // namespace sestina
