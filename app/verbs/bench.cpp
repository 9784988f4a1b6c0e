#include "app/verbs/bench.hpp"

#include <algorithm>

#include "app/start/deck_layers.hpp"
#include "app/start/memory_check.hpp"

namespace sestina {

Options bench_options(const BenchArguments& arguments) {
  Deck deck = layered_deck(arguments.deck);
  const Options options = Options::read(deck);
  require_one_rank(deck, options.parallel);
  deck.finish();
  require_memory(options);
  return options;
}

double median(std::vector<double> values) {
  SESTINA_REQUIRE(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace sestina
