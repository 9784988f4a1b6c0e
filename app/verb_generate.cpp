// `sestina generate`: samples text from a checkpoint or an HF folder.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/dispatch.hpp"
#include "app/generation.hpp"
#include "app/kokkos_session.hpp"
#include "app/restore.hpp"
#include "app/run_data.hpp"
#include "app/verbs.hpp"
#include "io/tokenizer.hpp"

namespace sestina {
namespace {

// Ids both ways: a tokenizer, or bytes when there is none.
struct Codec {
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::int32_t> encode(const std::string& text) const {
    if (tokenizer) return tokenizer->encode(text);
    std::vector<std::int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(const std::vector<std::int32_t>& ids) const {
    if (tokenizer) return tokenizer->decode(ids.data(), ids.size(), true);
    std::string text;
    for (const std::int32_t id : ids) text.push_back(static_cast<char>(id));
    return text;
  }
};

}  // namespace

int run_generate(const GenerateArguments& arguments) {
  const Source source = find_source(arguments.checkpoint, arguments.hf);
  const Options options = options_of(source, arguments.deck);

  if (arguments.tokenizer.empty()) require_byte_vocabulary(options, true);
  const std::string path = arguments.tokenizer.empty() ? options.data.tokenizer : arguments.tokenizer;
  Codec codec;
  if (!path.empty()) codec.tokenizer = std::make_unique<Tokenizer>(Tokenizer::load(path));
  std::vector<std::int32_t> ids = codec.encode(arguments.prompt);
  const std::int64_t end = codec.tokenizer ? codec.tokenizer->end_of_document() : -1;
  if (ids.empty() && end >= 0) ids.push_back(static_cast<std::int32_t>(end));
  if (ids.empty())
    fail(ExitCode::usage, "generate: --prompt is empty; without a tokenizer there is no document mark to start from");
  for (const std::int32_t id : ids)
    if (id >= options.model.vocab_size)
      fail(ExitCode::bad_data,
           "the prompt holds token {}, the model knows 0 to {}: the tokenizer {} does not belong to it", id,
           options.model.vocab_size - 1, path);

  const KokkosSession kokkos(options.run.threads, arguments.kokkos);
  const std::size_t prompt_size = ids.size();
  if (!arguments.json) fmt::print("{}", arguments.prompt);
  dispatch(options.run.space, options.train.precision, [&](const auto& exec, auto tag) {
    using Exec = std::decay_t<decltype(exec)>;
    SessionSetting setting;
    setting.sequence = std::min<int>(options.data.sequence_length, static_cast<int>(prompt_size) + arguments.tokens);
    Session<Exec, typename decltype(tag)::type> session(exec, options.model, setting, nullptr);
    restore_weights(session, source);
    std::size_t shown = codec.decode(ids).size();
    generate(session, {arguments.tokens, arguments.temperature, arguments.top_k, arguments.seed, end}, ids,
             [&](std::int32_t) {
               if (arguments.json) return;
               const std::string text =
                   codec.decode(ids);  // a character may span tokens: print what is new once it is whole
               if (text.size() <= shown || text.ends_with("\xef\xbf\xbd")) return;
               fmt::print("{}", text.substr(shown));
               std::fflush(stdout);
               shown = text.size();
             });
    return 0;
  });
  if (arguments.json) {
    const std::string text = codec.decode(ids);
    fmt::print("{}\n", nlohmann::ordered_json{{"prompt_tokens", prompt_size}, {"ids", ids}, {"text", text}}.dump(
                           -1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("\n");
  }
  return 0;
}

}  // namespace sestina
