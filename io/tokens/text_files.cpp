#include "io/tokens/text_files.hpp"

#include <fnmatch.h>
#include <spdlog/spdlog.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>

#include "core/deck/options.hpp"
#include "io/store/input_file.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokenizer/tokenizer_text.hpp"
#include "io/tokens/token_file.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {

namespace {

// Zeros that fill a block may follow the last member or frame.
bool only_zeros(std::string_view rest) { return rest.find_first_not_of('\0') == rest.npos; }

// Windows of `zstd --long=31` take 2 GiB; the library's default limit is 128 MiB.
void allow_long_windows(ZSTD_DStream* stream) {
  constexpr int longest = sizeof(void*) == 8 ? 31 : 30;
  const std::size_t result = ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, longest);
  if (ZSTD_isError(result)) fail(ExitCode::internal, "libzstd: {}", ZSTD_getErrorName(result));
}

}  // namespace

// A gzip file may hold several members one after the other.
std::string unpack_gzip(std::string_view packed, const std::string& path) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) fail(ExitCode::internal, "zlib cannot be initialised");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  std::string text;
  for (;;) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream.avail_in = static_cast<uInt>(std::min<std::size_t>(packed.size(), std::size_t{1} << 28));
    const std::size_t offered = stream.avail_in, before = text.size(),
                      room = std::max<std::size_t>(1 << 16, 4 * offered);
    text.resize(before + room);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + before);
    stream.avail_out = static_cast<uInt>(room);
    const int status = inflate(&stream, Z_NO_FLUSH);
    text.resize(before + room - stream.avail_out);
    packed.remove_prefix(offered - stream.avail_in);
    if (status == Z_STREAM_END && only_zeros(packed)) return text;
    if (status == Z_STREAM_END) {
      inflateReset(&stream);
    } else if (status != Z_OK) {  // Z_BUF_ERROR: more input is needed and there is none
      fail(ExitCode::bad_data, "{}: is damaged or truncated gzip data", path);
    }
  }
}

std::string unpack_zstd(std::string_view packed, const std::string& path) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  if (!stream) fail(ExitCode::internal, "libzstd cannot be initialised");
  allow_long_windows(stream.get());
  std::string text;
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  for (std::size_t wanted = 1;;) {
    const std::size_t before = text.size(), room = ZSTD_DStreamOutSize();
    text.resize(before + room);
    ZSTD_outBuffer out{text.data() + before, room, 0};
    wanted = ZSTD_decompressStream(stream.get(), &out, &in);
    text.resize(before + out.pos);
    if (ZSTD_getErrorCode(wanted) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    if (ZSTD_isError(wanted)) fail(ExitCode::bad_data, "{}: is damaged zstd data: {}", path, ZSTD_getErrorName(wanted));
    // 0 means that a frame has ended, and all of its text is there.
    if (wanted == 0 && only_zeros(packed.substr(in.pos))) return text;
    if (in.pos == in.size && out.pos < room) fail(ExitCode::bad_data, "{}: is truncated zstd data", path);
  }
}

namespace {

std::vector<std::string_view> lines_of(std::string_view file) {
  std::vector<std::string_view> lines;
  while (!file.empty()) {
    const std::size_t end = std::min(file.find('\n'), file.size());
    const std::string_view line = file.substr(0, end);
    if (line.find_first_not_of(" \t\r") != line.npos) lines.push_back(line);
    file.remove_prefix(std::min(end + 1, file.size()));
  }
  return lines;
}

std::string text_of(std::string_view line, const std::string& key, TextDefects& counts) {
  if (!is_valid_utf8(line)) return ++counts.invalid_utf8, "";
  auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return ++counts.invalid_json, "";
  const auto member = json.find(key);
  if (member == json.end() || !member->is_string()) return ++counts.without_text, "";
  return std::move(member->get_ref<std::string&>());
}

}  // namespace

void TextDefects::add(const TextDefects& other) {
  lines += other.lines;
  invalid_utf8 += other.invalid_utf8;
  invalid_json += other.invalid_json;
  without_text += other.without_text;
}

std::vector<std::string> read_json_lines(std::string_view file, const std::string& text_key, int threads,
                                         TextDefects& counts) {
  constexpr std::uint64_t chunk = 256;
  const auto lines = lines_of(file);
  counts.lines += lines.size();
  std::vector<std::string> texts(lines.size());
  std::mutex mutex;
  parallel_chunks(lines.size(), chunk, threads, [&](std::uint64_t begin, std::uint64_t end) {
    TextDefects own;
    for (std::uint64_t i = begin; i < end; ++i) texts[i] = text_of(lines[i], text_key, own);
    const std::lock_guard lock(mutex);
    counts.add(own);
  });
  std::erase_if(texts, [](const std::string& text) { return text.empty(); });
  return texts;
}

void require_valid_lines(const TextDefects& counts, double limit, const std::string& where) {
  constexpr double always_allowed = 10;
  const double allowed = limit > 0 ? std::max(always_allowed, limit * static_cast<double>(counts.lines)) : 0;
  const bool all = counts.lines > 0 && counts.skipped() == counts.lines;
  if (static_cast<double>(counts.skipped()) > allowed || all)
    fail(2 * counts.invalid_utf8 > counts.skipped() ? ExitCode::input_missing : ExitCode::bad_data,
         "{}: {}; allowed: a fraction of {} (data.invalid_limit), and not all of them", where, to_text(counts), limit);
}

std::string to_text(const TextDefects& counts) {
  if (counts.skipped() == 0) return "";
  return fmt::format("{} of {} lines skipped ({} not UTF-8, {} not JSON objects, {} without the text key)",
                     counts.skipped(), counts.lines, counts.invalid_utf8, counts.invalid_json, counts.without_text);
}

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

// A .json below a folder may be a configuration: one value is not taken for a document. A file that begins with a
// longer one than this is JSONL or is refused later.
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
