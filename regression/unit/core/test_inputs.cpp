// The decks in inputs/ are valid, and inputs/README.md lists every key there is, and no other, with the right word on
// whether a resume may change it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"
#include "sestina_test_paths.hpp"

namespace sestina {
namespace {

const std::string folder = std::string(SESTINA_SOURCE_DIR) + "/inputs";

std::vector<std::string> decks() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".toml") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// "data.source.0.path" -> "data.source.path"
std::string without_index(const std::string& key) {
  std::string out, word;
  std::istringstream words(key);
  while (std::getline(words, word, '.'))
    if (word.find_first_not_of("0123456789") != word.npos) out += (out.empty() ? "" : ".") + word;
  return out;
}

// A deck as a run reads it, without the section of `sestina sweep`, which is about many runs.
void add_deck(Deck& deck, const std::string& path) {
  deck.add_file(path);
  deck.forget("sweep");
}

// Keys of the README's tables: first column `key`, last column yes or no. Those of [sweep] are read by the verb
// (regression/unit/app/test_sweep.cpp).
std::map<std::string, bool> documented_keys() {
  std::map<std::string, bool> keys;
  std::ifstream file(folder + "/README.md");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    const std::string key = line.substr(3, line.find('`', 3) - 3);
    if (key.starts_with("sweep.")) continue;
    const bool yes = line.ends_with("| yes |"), no = line.ends_with("| no |");
    EXPECT_TRUE(yes || no) << line;
    EXPECT_TRUE(keys.emplace(key, yes).second) << key << " is listed twice";
  }
  return keys;
}

std::set<std::string> keys_of(Deck& deck) {
  Options::read(deck);
  deck.finish();
  std::set<std::string> keys;
  constexpr std::string_view tier = "optimizer.refresh.tier";  // a table by field is one key
  for (const auto& key : deck.resolved_keys())
    keys.insert(key.starts_with(tier) ? std::string(tier) : without_index(key));
  return keys;
}

TEST(Inputs, EveryDeckIsValidAndTrainable) {
  ASSERT_FALSE(decks().empty());
  for (const auto& path : decks()) {
    Deck deck;
    add_deck(deck, path);
    const Options options = Options::read(deck);
    if (path.find("llama_134m") == path.npos && path.find("plan_") == path.npos)
      require_training_keys(deck);  // those come without text
    EXPECT_NO_THROW(deck.finish()) << path;
    EXPECT_EQ(options.run.name, std::filesystem::path(path).stem().string());
    for (const auto& source : options.data.source)
      if (path.find("/tiny_") != path.npos)
        EXPECT_TRUE(std::filesystem::exists(source.path)) << path << ": " << source.path;
  }
}

// However it is written, a table is no value of a key: it would set nothing and let the default pass for what was said.
TEST(Inputs, NoKeyTakesAnEmptyTable) {
  std::vector<std::string> names = {"model", "run", "data.source", "optimizer", "model.rope_scaling"};
  for (const auto& [key, may_change] : documented_keys()) names.push_back(key);
  ASSERT_GT(names.size(), 100U);
  const auto message = [](const std::function<void(Deck&)>& add) -> std::string {
    Deck deck;
    deck.add_file(folder + "/tiny_llama.toml");
    add(deck);
    try {
      Options::read(deck);
      deck.finish();
    } catch (const Error& error) {
      return error.code() == ExitCode::bad_deck ? error.what() : "another error";
    }
    return "no error";
  };
  for (const std::string& name : names) {
    const auto said = [&](const std::function<void(Deck&)>& add) {
      return message(add).find(name) != std::string::npos;
    };
    EXPECT_TRUE(said([&](Deck& deck) { deck.add_override(name + "={}"); })) << name << "={}";
    EXPECT_TRUE(said([&](Deck& deck) { deck.add_override(name + " = { }"); })) << name << " = { }";
    EXPECT_TRUE(said([&](Deck& deck) { deck.add_text(name + " = {}", "second.toml", "."); })) << name;
    if (name.find('.') == name.npos) continue;  // the header of a section without keys is no error
    if (name == "model.rope_scaling" || name.starts_with("data.validation") || name.starts_with("optimizer.group") ||
        name.starts_with("machine.update"))
      continue;
    const std::string header = message([&](Deck& deck) { deck.add_text("[" + name + "]", "second.toml", "."); });
    EXPECT_TRUE(header != "no error" && header != "another error") << "[" << name << "]: " << header;
  }
}

TEST(Inputs, TinyDecksAreTiny) {
  for (const auto& path : decks()) {
    if (path.find("/tiny_") == path.npos) continue;
    Deck deck;
    deck.add_file(path);
    const auto parameters = parameter_count(Options::read(deck).model);
    EXPECT_GT(parameters, 200'000) << path;
    EXPECT_LT(parameters, 1'000'000) << path;
  }
}

TEST(Inputs, ReadmeListsEveryKeyAndNoOther) {
  std::set<std::string> known;
  for (const auto& path : decks()) {
    Deck deck;
    add_deck(deck, path);
    known.merge(keys_of(deck));
  }
  for (const MatrixKind& kind : matrix_kinds()) {
    Deck deck;
    deck.add_text("[model]\npreset = \"llama-8m\"\n[optimizer]\nkind = \"" + kind.name + "\"\n", "kind", "");
    known.merge(keys_of(deck));
  }
  Deck rare;  // keys that exist only when they are used
  rare.add_text(
      "[model]\npreset = \"llama-8m\"\nrope_scaling = {factor = 8.0}\n[[data.validation]]\npath = "
      "\"x.jsonl\"\n[[data.source]]\npath = \"x.jsonl\"\n[[optimizer.group]]\nmatch = \"*\"\nkind = \"adamw\"\n"
      "[[machine.update]]\nkind = \"muon\"\nprecision = \"fp32\"\nrows = 1\ncols = 1\ngflop = 1\nseconds = 1\n",
      "rare", "");
  rare.add_text("[model.linear]\nform = \"poet-x\"\nvariant = \"xq\"\nblock_size = 16\nmerge_bound = 0.5\n",
                "rare form", "");
  known.merge(keys_of(rare));
  Deck left;  // keys of another rule for what a matrix optimizer leaves
  left.add_text("[model]\npreset = \"llama-8m\"\n[optimizer]\nkind = \"muon\"\nscalar = {kind = \"ademamix\"}\n",
                "left", "");
  known.merge(keys_of(left));
  Deck shared;
  shared.add_text("[model]\npreset = \"llama-8m\"\n[optimizer]\nkind = \"soap\"\nrefresh = {budget = \"reversed\"}\n",
                  "shared out", "");
  known.merge(keys_of(shared));
  for (const std::string correction : {"nesterov", "pipemare", "dc-asgd"}) {
    Deck deck;
    deck.add_text("[model]\npreset = \"llama-8m\"\n[parallel]\npp = 2\nschedule = \"async-1f1b\"\n" +
                      ("delay_correction = \"" + correction + "\"\n") +
                      (correction == "pipemare" ? "stash = \"saved\"\n" : "") +
                      (correction == "dc-asgd" ? "dc_lambda = 1\n" : ""),
                  "correction", "");
    known.merge(keys_of(deck));
  }
  known.insert("model.from_hf");  // needs a folder with a model
  std::set<std::string> documented;
  for (const auto& [key, unused] : documented_keys()) documented.insert(key);
  EXPECT_EQ(documented, known);
}

// Third column of the README's tables, where it is one value: "0.9", "\"text\"", "true"; keys whose default depends on
// something have more words there.
std::map<std::string, std::string> documented_defaults() {
  std::map<std::string, std::string> defaults;
  std::ifstream file(folder + "/README.md");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    std::istringstream cells(line);
    std::string cell;
    for (int i = 0; i < 4; ++i) std::getline(cells, cell, '|');
    std::erase(cell, ' ');
    if (cell.size() > 2 && cell.front() == '`' && cell.find('`', 1) == cell.size() - 1)
      cell = cell.substr(1, cell.size() - 2);
    const bool value = cell == "true" || cell == "false" || cell == "[]" ||
                       (cell.front() == '"' && cell.back() == '"') ||
                       cell.find_first_not_of("0123456789.e-") == cell.npos;
    if (value) defaults.emplace(line.substr(3, line.find('`', 3) - 3), cell);
  }
  return defaults;
}

bool same_value(const std::string& a, const std::string& b) {
  char *end_a = nullptr, *end_b = nullptr;
  const double number_a = std::strtod(a.c_str(), &end_a), number_b = std::strtod(b.c_str(), &end_b);
  const bool numbers = end_a != a.c_str() && *end_a == 0 && end_b != b.c_str() && *end_b == 0;
  return numbers ? number_a == number_b : a == b;
}

TEST(Inputs, ReadmeSaysTheDefaults) {
  const std::map<std::string, std::string> documented = documented_defaults();
  std::set<std::string> seen;
  const auto compare = [&](const std::string& text) {
    Deck deck;
    deck.add_text("[model]\npreset = \"llama-8m\"\n" + text, "defaults", "");
    Options::read(deck);
    deck.finish();
    for (const auto& key : deck.resolved_keys()) {
      const auto found = documented.find(without_index(key));
      if (found == documented.end() || deck.has(key)) continue;
      seen.insert(found->first);
      EXPECT_TRUE(same_value(deck.resolved(key), found->second))
          << key << " is " << deck.resolved(key) << ", inputs/README.md says " << found->second << "\n"
          << text;
    }
  };
  compare("[[data.source]]\npath = \"x.txt\"\n[[data.validation]]\npath = \"x.txt\"\n");
  compare("rope_scaling = {rope_type = \"llama3\"}\n");
  for (const MatrixKind& kind : matrix_kinds()) compare("[optimizer]\nkind = \"" + kind.name + "\"\n");
  compare("[optimizer]\nkind = \"soap\"\nrefresh = {mode = \"async\"}\n");
  for (const std::string form : {"form = \"lora\"\n", "form = \"poet-x\"\nblock_size = 16\n",
                                 "form = \"poet-x\"\nvariant = \"xq\"\nblock_size = 16\n"})
    compare("[model.linear]\n" + form);
  compare("[parallel]\npp = 2\nschedule = \"async-1f1b\"\ndelay_correction = \"pipemare\"\nstash = \"saved\"\n");
  EXPECT_GT(seen.size(), 120u);
}

TEST(Inputs, ReadmeSaysWhatAResumeMayChange) {
  for (const auto& [documented, may_change] : documented_keys()) {
    std::string key = documented;
    for (const std::string list : {"data.source", "data.validation", "optimizer.group", "machine.update"})
      if (key.rfind(list + ".", 0) == 0) key = list + ".0" + key.substr(list.size());
    Deck stored, now;
    stored.text(key, "a");
    now.text(key, "b");
    EXPECT_EQ(forbidden_changes(stored, now).empty(), may_change) << documented;
  }
}

}  // namespace
}  // namespace sestina
