// `sestina generate`: continues texts with a checkpoint or an HF folder.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "app/command/verbs.hpp"
#include "app/start/rank_run.hpp"
#include "app/start/run_deck.hpp"
#include "app/train/rank_source.hpp"
#include "app/train/run_data.hpp"
#include "app/verbs/generation.hpp"
#include "app/verbs/sampling.hpp"
#include "io/hf/hf_companions.hpp"
#include "parallel/stage/make_stages.hpp"
#include "parallel/step/decode_together.hpp"

namespace sestina {
namespace {

constexpr std::size_t most_at_once = 64;  // sequences at a time

struct Prompt {
  std::string text;
  std::vector<std::int32_t> ids;
};

std::string read_text(std::istream& from) {
  std::string text{std::istreambuf_iterator<char>(from), {}};
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string text_of(const GenerateArguments::Prompt& prompt) {
  if (!prompt.file) return prompt.text;
  if (prompt.text == "-") return read_text(std::cin);
  std::ifstream file(prompt.text, std::ios::binary);
  if (!file) fail(ExitCode::input_missing, "--prompt-file {}: cannot be read", prompt.text);
  return read_text(file);
}

std::vector<Prompt> read_prompts(const GenerateArguments& arguments, const Codec& codec, const SpecialTokens& tokens,
                                 std::int64_t vocabulary) {
  std::vector<Prompt> prompts;
  for (const auto& given : arguments.prompts) {
    Prompt prompt{text_of(given), {}};
    const std::vector<std::int32_t> ids = codec.encode(prompt.text);
    prompt.ids = ids.empty() ? tokens.start() : tokens.prefix;
    prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    if (prompt.ids.empty())
      fail(ExitCode::usage, "generate: the prompt is empty, and no token is known that a text begins or ends with");
    for (const std::int32_t id : prompt.ids)
      if (id >= vocabulary)
        fail(ExitCode::bad_data,
             "the prompt holds token {}, the model's vocabulary is 0 to {}: the tokenizer does not belong to it", id,
             vocabulary - 1);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// The sequences and their text so far, which is shown as it comes where there is one sequence, else at the end.
class Output {
 public:
  Output(const GenerateArguments& arguments, const Codec& codec, std::vector<Prompt> prompts)
      : arguments_(arguments), codec_(codec), prompts_(std::move(prompts)) {
    for (const Prompt& prompt : prompts_)
      for (int sample = 0; sample < arguments.samples; ++sample) {
        sequences.push_back({prompt.ids, sample, Finish::length});
        streams_.emplace_back(codec_, arguments.stops);
      }
    texts_.resize(sequences.size());
    flows_ = sequences.size() == 1 && !arguments.json;
    if (flows_) show(prompts_[0].text);
  }
  bool add(std::size_t i, std::int32_t token) {
    append(i, streams_[i].push(token));
    return !streams_[i].stopped();
  }
  void finish(const GenerationTimes& times, std::int64_t positions) {
    for (std::size_t i = 0; i < sequences.size(); ++i) append(i, streams_[i].finish());
    if (arguments_.json)
      fmt::print("{}\n", json(times).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    else if (flows_)
      show("\n");
    else
      show_all();
    for (std::size_t i = 0; i < sequences.size(); ++i)
      if (sequences[i].finish == Finish::context)
        spdlog::warn("{}ended at the last of the model's {} positions (max_position_embeddings)",
                     flows_ ? "" : heading(i) + ": ", positions);
    if (times.new_tokens > 0)
      fmt::print(stderr, "prompt: {} tokens in {:.3f} s; {} new tokens in {:.3f} s, {:.1f} tokens/s\n",
                 times.prompt_tokens, times.prompt_s, times.new_tokens, times.tokens_s, rate(times));
  }

  std::vector<Sequence> sequences;

 private:
  static double rate(const GenerationTimes& times) {
    return times.tokens_s > 0 ? static_cast<double>(times.new_tokens) / times.tokens_s : 0;
  }
  std::size_t prompt_of(std::size_t i) const { return i / static_cast<std::size_t>(arguments_.samples); }
  std::string heading(std::size_t i) const {
    return fmt::format("prompt {}, sample {}", prompt_of(i) + 1, sequences[i].sample + 1);
  }
  static void show(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  void append(std::size_t i, const std::string& text) {
    if (flows_)
      show(text);
    else
      texts_[i] += text;
  }
  void show_all() const {
    for (std::size_t i = 0; i < sequences.size(); ++i)
      show(fmt::format("== {}\n{}{}\n", heading(i), prompts_[prompt_of(i)].text, texts_[i]));
  }
  nlohmann::ordered_json json(const GenerationTimes& times) const {
    auto list = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Prompt& prompt = prompts_[prompt_of(i)];
      list.push_back({{"prompt", prompt_of(i)},
                      {"sample", sequences[i].sample},
                      {"prompt_tokens", prompt.ids.size()},
                      {"ids", sequences[i].ids},
                      {"text", codec_.decode(prompt.ids) + texts_[i]},
                      {"finish", name(sequences[i].finish)}});
    }
    nlohmann::ordered_json all{{"prompt_tokens", list[0]["prompt_tokens"]},
                               {"ids", list[0]["ids"]},
                               {"text", list[0]["text"]},
                               {"new_tokens", times.new_tokens},
                               {"prompt_s", times.prompt_s},
                               {"tokens_s", times.tokens_s},
                               {"tokens_per_s", rate(times)}};
    all["sequences"] = std::move(list);
    return all;
  }

  const GenerateArguments& arguments_;
  const Codec& codec_;
  std::vector<Prompt> prompts_;
  std::vector<TextStream> streams_;
  std::vector<std::string> texts_;  // the text after each prompt
  bool flows_ = false;
};

// What the first rank alone has: tokenizer and prompts, and with them the draws and the output.
struct Texts {
  Texts(const GenerateArguments&, const Source&, const Options&);
  DecoderOptions decoder_options(const Options&) const;

  Codec codec;
  Generation generation;
  std::unique_ptr<Output> output;
};

Texts::Texts(const GenerateArguments& arguments, const Source& source, const Options& options) {
  if (arguments.tokenizer.empty()) require_byte_vocabulary(options, true);
  const std::string path = arguments.tokenizer.empty() ? options.data.tokenizer : arguments.tokenizer;
  if (!path.empty()) codec.tokenizer = std::make_unique<Tokenizer>(Tokenizer::load(path));
  const SpecialTokens tokens = special_tokens(options, codec.tokenizer.get(), path,
                                              hf_companion_folder(source.checkpoint, options.model.from_hf));
  generation.sampling = {arguments.temperature, arguments.top_k, arguments.top_p, arguments.repetition_penalty};
  generation.tokens = arguments.tokens;
  generation.seed = arguments.seed;
  generation.ends = tokens.ends;
  generation.hidden = codec.unknown_ids(options.model.vocab_size);
  std::erase_if(generation.hidden, [&](std::int32_t id) { return tokens.stops_at(id); });
  output = std::make_unique<Output>(arguments, codec, read_prompts(arguments, codec, tokens, options.model.vocab_size));
}

DecoderOptions Texts::decoder_options(const Options& options) const {
  const int side_by_side = static_cast<int>(std::min(most_at_once, output->sequences.size()));
  return {side_by_side, decoder_capacity(options.model, output->sequences, generation.tokens),
          options.run.deterministic};
}

// The deck that all ranks have agreed on; of the data they need the model alone.
Options read_options(const GenerateArguments& arguments, Runtime& runtime, const Source& source) {
  DeckArguments layers = arguments.deck;
  runtime.together([&] { take_decoding_ranks(layers, runtime.size()); });
  const Options options = read_rank_options(runtime, source, layers, {{"--weights", arguments.weights, "", true}});
  Options model = options;
  model.data.source = model.data.validation = {};
  model.data.tokenizer.clear();
  compare_rank_data(runtime, source, model, {});
  return options;
}

int generate_on_ranks(const GenerateArguments& arguments, Runtime& runtime) {
  warn_on_stderr(runtime);
  const Source source = find_rank_source(runtime, arguments.checkpoint, arguments.hf);
  const Options options = read_options(arguments, runtime, source);
  std::unique_ptr<Texts> texts;
  DecoderOptions shape;
  runtime.phase("reading the prompts", [&] {
    if (!runtime.is_first()) return;
    texts = std::make_unique<Texts>(arguments, source, options);
    shape = texts->decoder_options(options);
  });
  runtime.world().broadcast(&shape, sizeof shape, 0);

  const auto session = start_kokkos(runtime, options.run.threads, arguments.kokkos, 0);
  runtime.begin_phase("building the model");
  // The evaluator holds the weights.
  Evaluator evaluator(*make_stages(options.run.space, options.train.precision), options, PassOptions{},
                      runtime.world());
  runtime.phase("reading the weights", [&] { restore_weights(evaluator, source, arguments.weights); });
  const auto decoder = evaluator.stage().make_decoder(shape);
  const auto calls = runtime.world().split(0, runtime.rank());
  runtime.set_timeout(options.run.abort_timeout);
  GenerationTimes times;
  runtime.together([&] {
    decode_together(*decoder, *calls, [&](TokenDecoder& together) {
      Output& output = *texts->output;
      times = generate(together, texts->generation, output.sequences,
                       [&](std::size_t i, std::int32_t token) { return output.add(i, token); });
    });
  });
  if (runtime.is_first()) texts->output->finish(times, options.model.max_position_embeddings);
  return 0;
}

}  // namespace

int run_generate(const GenerateArguments& arguments, const RankSource& ranks) {
  Runtime runtime(ranks, find_start_timeout(arguments.deck));
  return run_on_ranks(runtime, [&] { return generate_on_ranks(arguments, runtime); });
}

}  // namespace sestina
