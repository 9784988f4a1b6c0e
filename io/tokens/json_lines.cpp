#include "io/tokens/json_lines.hpp"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "io/tokenizer/tokenizer_text.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/quiet_threads.hpp"

namespace sestina {
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

}  // namespace sestina
