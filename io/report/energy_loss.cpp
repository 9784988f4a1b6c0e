#include "io/report/energy_loss.hpp"

#include <charconv>
#include <cmath>

#include "io/report/deck_facts.hpp"

namespace sestina {

void rate_energy(const std::vector<ReportRun>& runs, std::vector<Summary>& summaries) {
  std::vector<double> vocabulary(runs.size());
  std::optional<double> adamw;  // joules
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const FlatDeck deck = flat_deck(runs[r].deck);
    const std::string text = value_of(deck, "model.vocab_size");
    std::from_chars(text.data(), text.data() + text.size(), vocabulary[r]);
    if (!adamw && value_of(deck, "optimizer.kind") == "adamw") adamw = summaries[r].energy_j;
  }
  if (adamw.value_or(0) <= 0) return;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    Summary& s = summaries[r];
    if (!s.loss || s.energy_j.value_or(0) <= 0 || vocabulary[r] <= 0) continue;
    s.energy_efficiency = (std::log(vocabulary[r]) - *s.loss) / (*s.energy_j / *adamw);
  }
}

}  // namespace sestina
