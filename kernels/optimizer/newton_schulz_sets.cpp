#include "kernels/optimizer/newton_schulz_sets.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"

namespace sestina {

namespace {

enum class Beyond { cycle, repeat_last, none };  // what follows the last entry

struct Set {
  std::string_view name;
  std::int64_t usual;  // number of steps
  Beyond beyond;
  std::vector<NewtonSchulzStep> entries;
};

// These are tuned for the steepest slope at 0; singular values end in [.68, 1.14] (K. Jordan et al., Muon, 2024).
constexpr NewtonSchulzStep simple = {3.4445, -4.7750, 2.0315};

// `aol`, which other programs list among these, is left out on purpose: it was made for another normalisation. After a
// Frobenius norm its first polynomial is negative above .884, so a matrix with one dominant direction comes out with
// that direction reversed.
const std::vector<Set>& sets() {
  static const std::vector<Set> all = {
      {"simple", 5, Beyond::cycle, {simple}},
      {"quintic",
       5,
       Beyond::cycle,
       {{4.0848, -6.8946, 2.9270},
        {3.9505, -6.3029, 2.6377},
        {3.7418, -5.5913, 2.3037},
        {2.8769, -3.1427, 1.2046},
        {2.8366, -3.0525, 1.2012}}},
      // Polar Express (Amsel et al., arXiv 2505.16932): each entry is the best one for the result of the last; divided
      // by a safety factor of 1.01,
      {"polar_express",
       8,
       Beyond::repeat_last,
       {{8.2051, -22.9019, 16.4607},
        {4.0664, -2.8612, 0.5184},
        {3.9096, -2.8234, 0.5250},
        {3.2856, -2.4153, 0.4853},
        {2.2779, -1.6198, 0.3985},
        {1.8726, -1.2307, 0.3585},
        {1.8564, -1.2132, 0.3568},
        {1.875, -1.25, 0.375}}},
      // or of 1.02, for five steps.
      {"polar_express_dion",
       5,
       Beyond::repeat_last,
       {{8.156554524902461, -22.48329292557795, 15.878769915207462},
        {4.042929935166739, -2.808917465908714, 0.5000178451051316},
        {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
        {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
        {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}}},
      // Chebyshev-accelerated (CANS, Grishina et al., arXiv 2506.10935).
      {"cans",
       5,
       Beyond::repeat_last,
       {{8.4703, -25.1081, 18.6293},
        {4.1828, -3.1087, 0.5806},
        {3.9619, -2.9541, 0.5630},
        {3.2866, -2.4647, 0.5074},
        {2.2737, -1.6447, 0.4162}}},
      {"deepseekv4",
       10,
       Beyond::repeat_last,
       {simple, simple, simple, simple, simple, simple, simple, simple, {2, -1.5, 0.5}, {2, -1.5, 0.5}}},
      {"cubic5",
       5,
       Beyond::none,
       {{3.3656576, -3.3420992, 0},
        {2.5744352, -1.4957376, 0},
        {2.5368962, -1.4312570, 0},
        {2.4418906, -1.2764040, 0},
        {2.2230472, -0.9630650, 0}}},
      {"qwen_express",
       8,
       Beyond::repeat_last,
       {{8.3865, -24.3696, 17.7251},
        {4.1414, -3.0173, 0.5524},
        {3.9226, -2.8672, 0.5357},
        {3.2540, -2.3922, 0.4827},
        {2.2512, -1.5963, 0.3960},
        {1.87, -1.2279, 0.3582},
        {1.8564, -1.2132, 0.3568},
        {1.875, -1.25, 0.375}}},
  };
  return all;
}

const Set& set_of(std::string_view name) {
  for (const Set& set : sets())
    if (set.name == name) return set;
  fail(ExitCode::internal, "no Newton-Schulz set \"{}\"", name);
}

}  // namespace

const std::vector<std::string>& newton_schulz_set_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Set& set : sets()) list.emplace_back(set.name);
    return list;
  }();
  return names;
}

std::optional<std::int64_t> only_newton_schulz_steps(std::string_view name) {
  const Set& set = set_of(name);
  if (set.beyond != Beyond::none) return std::nullopt;
  return static_cast<std::int64_t>(set.entries.size());
}

std::vector<NewtonSchulzStep> newton_schulz_steps(std::string_view name, std::int64_t steps) {
  const Set& set = set_of(name);
  const std::size_t count = static_cast<std::size_t>(steps == 0 ? set.usual : steps), entries = set.entries.size();
  if (const auto only = only_newton_schulz_steps(name); only && static_cast<std::int64_t>(count) != *only)
    fail(ExitCode::bad_deck, "Newton-Schulz set \"{}\" has {} steps, got {}", name, *only, steps);
  std::vector<NewtonSchulzStep> result;
  for (std::size_t i = 0; i < count; ++i)
    result.push_back(set.entries[set.beyond == Beyond::repeat_last ? std::min(i, entries - 1) : i % entries]);
  return result;
}

}  // namespace sestina
