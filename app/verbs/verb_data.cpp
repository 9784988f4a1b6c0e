// `sestina data tokenize` and `sestina data train-tokenizer`: turn text into what training reads.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/command/verbs.hpp"
#include "app/start/stop.hpp"
#include "app/train/step_report.hpp"
#include "io/store/output_file.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokens/text_files.hpp"
#include "io/tokens/token_file.hpp"
#include "io/tokens/token_file_forms.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {
namespace {

// Shows one line on the terminal that is overwritten, at most ten times a second; nothing where the output is no
// terminal.
class ProgressLine {
 public:
  void show(double done, const std::string& text) {
    if (!terminal_ || (done < 1 && now_seconds() < next_)) return;
    next_ = now_seconds() + 0.1;
    fmt::print(stderr, "\r\033[K{:3.0f} %  {}", 100 * done, text);
    std::fflush(stderr);
  }
  ~ProgressLine() {
    if (terminal_ && next_ > 0) fmt::print(stderr, "\r\033[K");
  }

 private:
  const bool terminal_ = shows_progress("auto", STDERR_FILENO);
  double next_ = 0;
};

double megabytes(std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

struct Tokenized {
  TextCounts counts;
  std::uint64_t documents = 0;
  TextDefects defects;
};

DocumentRule rule_of(const std::string& separator, const std::string& text_key, double invalid_limit, int threads,
                     Poll poll = {}) {
  return {TextForm::by_name, separator, text_key, invalid_limit, threads, std::move(poll)};
}

// Returns the token after each document; -1 none, with a warning where there is a tokenizer.
std::int64_t end_token(const DataTokenizeArguments& arguments, const Tokenizer* tokenizer) {
  const TokenSources sources{
      .tokenizer = tokenizer, .tokenizer_path = arguments.tokenizer, .end_token = arguments.end_token};
  const SpecialTokens tokens = find_special_tokens(sources);
  if (tokenizer != nullptr && tokens.end < 0)
    spdlog::warn("{}; --end-token here, --no-end to leave it out on purpose", missing_end(tokens, sources));
  return tokens.end;
}

Tokenized tokenize_files(const DataTokenizeArguments& arguments, const std::vector<std::string>& files,
                         const Tokenizer* tokenizer, std::int64_t end, MegatronWriter& writer, const Poll& poll) {
  Tokenized result;
  ProgressLine progress;
  const double start = now_seconds();
  const auto write = [&](const std::vector<std::int32_t>& tokens) {
    writer.add_document(tokens.data(), tokens.size());
    result.counts.tokens += tokens.size();
    ++result.documents;
  };
  result.defects = read_documents(
      files, rule_of(arguments.separator, arguments.text_key, arguments.invalid_limit, arguments.threads, poll),
      [&](const std::vector<std::string_view>& documents, std::size_t read) {
        for (const auto document : documents) result.counts.bytes += document.size();
        tokenize_documents(documents, tokenizer, end, thread_count(arguments.threads), write, poll);
        progress.show(
            static_cast<double>(read) / static_cast<double>(files.size()),
            fmt::format("{} of {} files, {:.1f} MB, {:.1f} MB/s", read, files.size(), megabytes(result.counts.bytes),
                        megabytes(result.counts.bytes) / (now_seconds() - start)));
      });
  return result;
}

}  // namespace

int run_data_tokenize(const DataTokenizeArguments& arguments) {
  const double start = now_seconds();
  Stop stop(0);
  const Poll poll = [&stop] {
    if (stop.told_to_stop())
      fail(ExitCode::stopped_unsaved, "data tokenize: stopped by {}; nothing was written", stop.reason());
  };
  std::optional<Tokenizer> tokenizer;
  if (!arguments.tokenizer.empty()) tokenizer.emplace(Tokenizer::load(arguments.tokenizer));
  const Tokenizer* chosen = tokenizer ? &*tokenizer : nullptr;
  const auto files = list_text_files(arguments.inputs, {});
  MegatronWriter writer(arguments.output, chosen != nullptr ? chosen->vocab_size() : 256);
  const std::int64_t end = arguments.end_of_document ? end_token(arguments, chosen) : -1;
  const auto [counts, documents, defects] = tokenize_files(arguments, files, chosen, end, writer, poll);
  if (counts.tokens == 0) fail(ExitCode::bad_data, "data tokenize: the {} input files hold no text", files.size());
  writer.finish();
  write_text_counts(arguments.output, counts, arguments.tokenizer);

  const double ratio = static_cast<double>(counts.bytes) / static_cast<double>(counts.tokens),
               seconds = now_seconds() - start;
  if (arguments.json) {
    const nlohmann::ordered_json json = {{"output", arguments.output}, {"files", files.size()},
                                         {"documents", documents},     {"tokens", counts.tokens},
                                         {"bytes", counts.bytes},      {"bytes_per_token", ratio},
                                         {"seconds", seconds},         {"lines_skipped", defects.skipped()}};
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print(
        "{}.bin: {} tokens in {} documents from {} files, {:.1f} MB of text, {:.3f} bytes per token, {:.1f} s ({:.1f} "
        "MB/s)\n",
        arguments.output, counts.tokens, documents, files.size(), megabytes(counts.bytes), ratio, seconds,
        megabytes(counts.bytes) / seconds);
    if (const std::string text = to_text(defects); !text.empty()) fmt::print("{}\n", text);
  }
  return 0;
}

int run_data_train_tokenizer(const DataTrainTokenizerArguments& arguments) {
  const double start = now_seconds();
  const auto paths = list_text_files(arguments.inputs, {});
  std::list<DocumentFile> files;
  std::vector<std::string_view> documents;
  std::uint64_t bytes = 0;
  TextDefects defects;
  const DocumentRule rule = rule_of("", arguments.text_key, arguments.invalid_limit, arguments.threads);
  for (const auto& path : paths) {
    const DocumentFile& file = files.emplace_back(path, rule);
    documents.insert(documents.end(), file.documents().begin(), file.documents().end());
    defects.add(file.counts());
  }
  require_valid_lines(defects, rule.invalid_limit, paths.front());
  for (const auto document : documents) bytes += document.size();
  if (bytes == 0) fail(ExitCode::bad_data, "data train-tokenizer: the {} input files hold no text", files.size());
  ProgressLine progress;
  TokenizerTraining training{
      .vocab_size = arguments.vocab_size,
      .pattern = arguments.pattern,
      .special = arguments.special,
      .threads = thread_count(arguments.threads),
      .progress = [&](double done) { progress.show(done, fmt::format("{:.1f} MB of text", megabytes(bytes))); }};
  const std::string text = train_tokenizer(documents, training);
  const std::int64_t size = Tokenizer::parse(text, arguments.output).vocab_size();
  write_output_file(arguments.output, text);
  if (arguments.json) {
    const nlohmann::ordered_json json = {{"output", arguments.output},
                                         {"vocab_size", size},
                                         {"files", files.size()},
                                         {"bytes", bytes},
                                         {"seconds", now_seconds() - start}};
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("{}: {} tokens learnt from {:.1f} MB of text in {} files, {:.1f} s\n", arguments.output, size,
               megabytes(bytes), files.size(), now_seconds() - start);
    if (const std::string skipped = to_text(defects); !skipped.empty()) fmt::print("{}\n", skipped);
  }
  return 0;
}

}  // namespace sestina
