// `sestina init`: writes a commented deck for a model, a data path and this machine.
#include <errno.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "app/command/verbs.hpp"
#include "app/start/kokkos_session.hpp"
#include "app/start/memory_check.hpp"
#include "app/verbs/run_size.hpp"
#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"
#include "io/store/output_file.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/instruction_set.hpp"
#include "parallel/exchange/rank_memory.hpp"
#include "parallel/plan/make_plan.hpp"

namespace fs = std::filesystem;

namespace sestina {
namespace {

constexpr int tried_batch = 32;  // sequences

std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return out + "\"";
}

struct DataLines {
  std::string format, path;
  bool text = true;  // goes through a tokenizer
};

// Returns what the path holds, by its name; a Megatron pair is named by its prefix.
DataLines data_of(const InitArguments& arguments, const fs::path& deck_folder) {
  if (arguments.data.empty()) return {"text", "corpus.txt", true};
  std::string path = arguments.data;
  DataLines lines{"text", path, true};
  for (const char* end : {".bin", ".idx"})
    if (path.ends_with(end) && fs::exists(path.substr(0, path.size() - 4) + ".idx")) path.resize(path.size() - 4);
  if (fs::exists(path + ".idx"))
    lines = {"megatron", path, false};
  else if (!fs::exists(path))
    fail(ExitCode::input_missing, "--data {}: no such file, folder or Megatron prefix", arguments.data);
  else if (is_jsonl_name(path))
    lines.format = "jsonl";
  else if (path.ends_with(".npy") || path.ends_with(".bin"))
    lines = {path.ends_with(".npy") ? "npy" : "llmc", path, false};
  lines.path = fs::relative(fs::absolute(path), deck_folder).string();
  return lines;
}

// Returns the bytes of a file or of all files in a folder; packed text counts as four times as much.
double bytes_at(const fs::path& path) {
  double bytes = 0;
  const auto add = [&bytes](const fs::path& file) {
    const double packed = file.extension() == ".gz" || file.extension() == ".zst" ? 4 : 1;
    std::error_code ignored;
    if (fs::is_regular_file(file, ignored)) bytes += packed * static_cast<double>(fs::file_size(file, ignored));
  };
  add(path);
  if (fs::is_directory(path))
    for (const auto& entry : fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied))
      add(entry.path());
  return bytes;
}

// Returns some tokens of the data, 0 where they are to come: four bytes of text for one, two of packed tokens.
double tokens_of(const InitArguments& arguments, const DataLines& data) {
  if (arguments.data.empty()) return 0;
  if (data.text) return bytes_at(arguments.data) / 4;
  const std::string pair = arguments.data + ".bin";
  return bytes_at(data.format == "megatron" && fs::exists(pair) ? pair : arguments.data) / 2;
}

// Returns the preset's length, halved until the text holds two batches of it at some four bytes for a token.
int sequence_for(const InitArguments& arguments, const DataLines& data, int length) {
  constexpr int shortest = 32;
  if (!data.text || arguments.data.empty()) return length;
  const double tokens = bytes_at(arguments.data) / 4;
  while (length / 2 >= shortest && tokens < 2.0 * tried_batch * length) length /= 2;
  return length;
}

bool multiplies_bf16() { return !is_host<Device> || has_bf16_products(bf16_way()); }

Options model_options(const InitArguments& arguments, const std::string& precision, int batch, int micro_batch) {
  Deck deck;
  deck.add_text(
      fmt::format("[model]\npreset = \"{}\"\n[train]\nglobal_batch = {}\nmicro_batch = {}\nprecision = \"{}\"\n",
                  arguments.preset, batch, micro_batch, precision),
      "init", "");
  Options options = Options::read(deck);
  deck.finish();
  return options;
}

// Returns the weights whose number the length of a run follows: of matrices in blocks, of experts the chosen ones, and
// of the head.
double scaling_weights(const ModelConfig& model) {
  return static_cast<double>(sum_over_tensors(model,
                                              [](const TensorSpec& spec) {
                                                return spec.role == Role::matrix || spec.role == Role::head
                                                           ? spec.elements()
                                                           : 0;
                                              })) -
         static_cast<double>(parameter_count(model) - active_count(model));
}

// Returns the largest power of two, at most the batch, that leaves half of the memory free; 1 when none does.
int micro_batch_that_fits(const InitArguments& arguments, const std::string& precision, int batch) {
  for (int micro = batch;; micro /= 2) {
    const Options options = model_options(arguments, precision, batch, micro);
    const RankMemory memory = rank_memory(make_plan(options), planned_threads(options)).front();
    if (micro == 1 || memory.total() <= available_memory_bytes() / 2) return micro;
  }
}

}  // namespace

int run_init(const InitArguments& arguments) {
  const fs::path path = arguments.output.empty() ? fs::path(arguments.name + ".toml") : fs::path(arguments.output);
  if (arguments.name.empty() || arguments.name.find('/') != arguments.name.npos || arguments.name.front() == '.')
    fail(ExitCode::usage, "init: NAME: not a valid run name, got {}, expected a name without \"/\"", arguments.name);
  if (fs::exists(path)) fail(ExitCode::cannot_create, "{}: already exists; choose another with -o", path.string());
  const fs::path folder = fs::absolute(path).parent_path();
  const DataLines data = data_of(arguments, folder);
  const std::string precision = multiplies_bf16() ? "bf16" : "fp32";
  const Options options = model_options(arguments, precision, tried_batch, 0);
  const int sequence = sequence_for(arguments, data, options.data.sequence_length);
  const RunSize size =
      size_of_run(scaling_weights(options.model), tokens_of(arguments, data), sequence, options.model.hidden_size);
  const int micro = micro_batch_that_fits(arguments, precision, size.batch);
  const std::string tokenizer = arguments.name + ".tokenizer.json";
  const std::string text = fmt::format(
      R"(# {0}: made by `sestina init` for this machine ({1} cores, {2}). Every key: inputs/README.md;
# `sestina train -i {3} -n` shows them all with their defaults and checks them.
[run]
name = {4}                 # the run lies in runs/<name>
steps = {16:<18} # updates: {17:.3g} tokens, {18}; going on later: -r auto run.steps=N schedule.steps={16}
threads = 0                # 0: all {1} cores, or OMP_NUM_THREADS

[model]
preset = "{5}"             # {6:.1f} million parameters; keys next to it override

[data]
{7}tokenizer = "{8}"
sequence_length = {9}      # tokens of a sample
validation_fraction = 0.02 # held out from the end of each source

[[data.source]]
format = "{10}"            # text, jsonl, megatron, llmc, npy
path = {11}                # relative to this file

[train]
global_batch = {12:<11} # sequences of an update, tokens of the run to the power of 0.383 (nanochat), for 1000 updates at least
micro_batch = {13}         # sequences at a time: what fits into half of this machine's memory
precision = "{14}"         # {15}

[schedule]
kind = "cosine"
lr = {19:<21} # for this batch and width: (batch / width)^1/2 (nanochat), 1e-3 with 8192 tokens and 256
warmup_steps = {20:<11} # a tenth of the run, 100 updates at most

[optimizer]
kind = "adamw"             # or a matrix optimizer: see inputs/tiny_*.toml
weight_decay = {21:<11} # batch^1/2 / tokens of the run (nanochat), 0.1 with 8192 tokens and 8.2e6; 0.01 to 1

[checkpoint]
every = 200
keep = 3

[metrics]
every = 10
eval_every = 100
)",
      arguments.name, available_cores(), instruction_set(), path.string(), toml_string(arguments.name),
      arguments.preset, static_cast<double>(parameter_count(options.model)) * 1e-6, data.text ? "" : "# ", tokenizer,
      sequence, data.format, toml_string(data.path), size.batch, micro, precision,
      precision == "bf16" ? "products in bf16, weights kept in fp32"
                          : "faster here: this processor multiplies bf16 no faster",
      size.steps, static_cast<double>(size.steps) * size.batch * sequence, size.limit, size.lr,
      std::min<std::int64_t>(100, size.steps / 10), size.weight_decay);
  OutputFile file(path.string());
  file.write(text);
  file.commit();
  fmt::print("{}: a deck for {} on {} cores\n", path.string(), arguments.preset, available_cores());
  if (data.text && arguments.data.empty()) fmt::print("put your text at {}, or change data.source in it\n", data.path);
  fmt::print("next:\n");
  if (data.text)
    fmt::print("  {} data train-tokenizer {} --vocab-size {} -o {}\n", program_invocation_name,
               arguments.data.empty() ? (folder / data.path).string() : arguments.data, options.model.vocab_size,
               (path.parent_path() / tokenizer).string());
  fmt::print("  {} train -i {}\n", program_invocation_name, path.string());  // as the user called it
  return static_cast<int>(ExitCode::done);
}

}  // namespace sestina
