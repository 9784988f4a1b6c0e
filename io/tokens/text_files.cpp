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
constexpr std::size_t batch_bytes = std::size_t{1} << 26;

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
