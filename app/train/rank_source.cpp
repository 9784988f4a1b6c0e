#include "app/train/rank_source.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "app/start/run_deck.hpp"
#include "io/store/digest.hpp"

namespace sestina {

Source find_rank_source(Runtime& runtime, const std::string& checkpoint_or_run, const std::string& hf) {
  Source source;
  runtime.begin_phase("comparing the programs");
  require_agreement(runtime.world(), program_statements(), ExitCode::bad_deck);
  runtime.phase("finding the checkpoint", [&] {
    if (runtime.is_first()) source = find_source(checkpoint_or_run, hf);
    if (runtime.size() > 1 && !source.checkpoint.empty())
      source.checkpoint = std::filesystem::absolute(source.checkpoint).string();
  });
  for (std::string* text : {&source.checkpoint, &source.hf, &source.deck}) runtime.world().broadcast(*text, 0);
  return source;
}

Options read_rank_options(Runtime& runtime, const Source& source, const DeckArguments& layers,
                          std::vector<Statement> more, bool whole) {
  Options options;
  std::vector<Statement> said;
  runtime.phase("reading the deck", [&] {
    SourceDeck found = read_source_deck(source, layers, whole ? 1 : runtime.size());
    said = deck_statements(found.deck, given_deck(layers));
    options = std::move(found.options);
    for (Statement& statement : more) said.push_back(std::move(statement));
  });
  require_agreement(runtime.world(), said, ExitCode::bad_deck);
  runtime.set_start_timeout(options.run.start_timeout);
  return options;
}

void compare_rank_data(Runtime& runtime, const Source& source, const Options& options,
                       const std::vector<std::pair<std::string, std::string>>& files) {
  if (runtime.size() == 1) return;
  std::vector<Statement> read;
  runtime.phase("comparing the data", [&] {
    read = data_statements(options, {});
    for (const auto& file : files) read.push_back({file.first, digest_file(file.second).xxh3_128, "", true});
    if (source.checkpoint.empty()) return;
    const FileDigest manifest = digest_files({source.checkpoint + "/manifest.json"});
    read.push_back({"checkpoint", manifest.xxh3_128, fmt::format("{} ({})", source.checkpoint, manifest.xxh3_128)});
  });
  require_agreement(runtime.world(), read, ExitCode::bad_data);
}

}  // namespace sestina
