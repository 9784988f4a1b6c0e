#include "io/report/page.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>

namespace sestina {

namespace {

void flatten(const std::string& key, const toml::node& node, FlatDeck& out) {
  const auto below = [&](std::string_view name) {
    return key.empty() ? std::string(name) : fmt::format("{}.{}", key, name);
  };
  if (const auto* table = node.as_table()) {
    std::vector<std::pair<toml::source_region, std::string>>
        order;  // toml++ sorts by name; the reader knows the deck's order
    for (const auto& [name, value] : *table) order.emplace_back(value.source(), std::string(name.str()));
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
    for (const auto& [place, name] : order) flatten(below(name), *table->get(name), out);
  } else if (node.is_array_of_tables()) {
    for (std::size_t i = 0; i < node.as_array()->size(); ++i)
      flatten(below(std::to_string(i)), *node.as_array()->get(i), out);
  } else {
    std::ostringstream text;
    node.visit([&](const auto& value) {
      if constexpr (toml::is_string<decltype(value)>)
        text << value.get();
      else if constexpr (toml::is_floating_point<decltype(value)>)
        text << fmt::format("{}", value.get());  // the shortest form that reads back equal
      else
        text << value;
    });
    out.emplace_back(key, text.str());
  }
}

long long integer_of(const FlatDeck& deck, std::string_view key, long long fallback) {
  const std::string text = value_of(deck, key);
  long long value = fallback;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string batch(const FlatDeck& deck) {
  const long long sequences = integer_of(deck, "train.global_batch", 0),
                  length = integer_of(deck, "data.sequence_length", 0);
  if (sequences == 0 || length == 0) return "";
  return fmt::format("{} × {} tokens", sequences, length);
}

std::string ranks(const ReportRun& run, const FlatDeck& deck) {
  const std::string started = value_of(run.history.start, "ranks");
  const long long dp = integer_of(deck, "parallel.dp", 1), tp = integer_of(deck, "parallel.tp", 1),
                  pp = integer_of(deck, "parallel.pp", 1);
  std::string text = !started.empty() ? started : deck.empty() ? "" : std::to_string(dp * tp * pp);
  if (dp * tp * pp > 1) text += fmt::format(" (dp {}, tp {}, pp {})", dp, tp, pp);
  return text;
}

// Writes 2026-01-01T03:00:00Z as 2026-01-01 03:00:00 UTC: a narrow column breaks it between the words.
std::string plain_time(std::string iso) {
  if (iso.size() != 20 || iso[10] != 'T' || iso.back() != 'Z') return iso;
  iso[10] = ' ';
  iso.pop_back();
  return iso + " UTC";
}

std::string words(std::string key) {
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

}  // namespace

bool FactRow::differs() const {
  std::vector<std::string> known;  // an old run says nothing of some facts: that is no difference
  std::copy_if(values.begin(), values.end(), std::back_inserter(known),
               [](const auto& value) { return !value.empty(); });
  return std::adjacent_find(known.begin(), known.end(), std::not_equal_to<>()) != known.end();
}

FlatDeck flat_deck(const std::string& toml) {
  FlatDeck deck;
  try {
    flatten("", toml::parse(toml), deck);
  } catch (const toml::parse_error&) {
    deck.clear();
  }
  return deck;
}

std::string value_of(const FlatDeck& deck, std::string_view key) {
  const auto found = std::find_if(deck.begin(), deck.end(), [&](const auto& entry) { return entry.first == key; });
  return found == deck.end() ? "" : found->second;
}

std::vector<FactRow> run_facts(const std::vector<ReportRun>& runs) {
  std::vector<FactRow> rows = {{"parameters", {}}, {"optimizer", {}}, {"learning rate", {}},
                               {"batch", {}},      {"precision", {}}, {"ranks", {}}};
  for (const ReportRun& run : runs) {
    const FlatDeck deck = flat_deck(run.deck);
    const std::string lr = value_of(deck, "optimizer.lr");
    std::size_t row = 0;
    rows[row++].values.push_back(run.parameters ? short_number(static_cast<double>(*run.parameters)) : "");
    rows[row++].values.push_back(value_of(deck, "optimizer.kind"));
    rows[row++].values.push_back(lr.empty() ? value_of(deck, "schedule.lr") : lr);
    rows[row++].values.push_back(batch(deck));
    rows[row++].values.push_back(value_of(deck, "train.precision"));
    rows[row++].values.push_back(ranks(run, deck));
  }
  for (std::size_t r = 0; r < runs.size(); ++r) {
    for (const auto& [key, value] : runs[r].history.start) {
      if (key == "ranks") continue;
      auto row = std::find_if(rows.begin(), rows.end(),
                              [&key = key](const FactRow& known) { return known.name == words(key); });
      if (row == rows.end()) row = rows.insert(rows.end(), {words(key), std::vector<std::string>(runs.size())});
      row->values[r] = key == "started" ? plain_time(value) : value;
    }
  }
  std::erase_if(rows, [](const FactRow& row) {
    return std::all_of(row.values.begin(), row.values.end(), [](const std::string& value) { return value.empty(); });
  });
  return rows;
}

std::vector<FactRow> deck_differences(const std::vector<ReportRun>& runs) {
  std::vector<FactRow> rows;
  std::vector<std::size_t> with_deck;  // a run without one differs in nothing
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const FlatDeck deck = flat_deck(runs[r].deck);
    if (!deck.empty()) with_deck.push_back(r);
    for (const auto& [key, value] : deck) {
      if (key == "run.name" || key == "run.dir") continue;
      auto row =
          std::find_if(rows.begin(), rows.end(), [&key = key](const FactRow& known) { return known.name == key; });
      if (row == rows.end()) row = rows.insert(rows.end(), {key, std::vector<std::string>(runs.size())});
      row->values[r] = value;
    }
  }
  std::erase_if(rows, [&](const FactRow& row) {
    return std::all_of(with_deck.begin(), with_deck.end(),
                       [&](std::size_t r) { return row.values[r] == row.values[with_deck[0]]; });
  });
  return rows;
}

}  // namespace sestina
