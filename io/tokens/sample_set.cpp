#include "io/tokens/data_loader.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "io/tokenizer/tokenizer.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace sestina {

namespace {

constexpr std::uint64_t period_length = 55440;  // divisible by 1 to 12: usual ratios are met exactly

// Gives whole slots that add up to the period, by largest remainders (Hamilton's apportionment).
std::vector<std::uint64_t> apportion(const std::vector<double>& weights, std::uint64_t period) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::uint64_t> slots;
  std::vector<std::pair<double, std::size_t>> remainders;
  for (std::size_t s = 0; s < weights.size(); ++s) {
    const double exact = weights[s] / sum * static_cast<double>(period);
    slots.push_back(static_cast<std::uint64_t>(exact));
    remainders.emplace_back(std::floor(exact) - exact, s);
  }
  std::sort(remainders.begin(), remainders.end());
  const std::uint64_t given = std::accumulate(slots.begin(), slots.end(), std::uint64_t{0});
  for (std::uint64_t i = 0; i < period - given; ++i) ++slots[remainders[i].second];
  return slots;
}

}  // namespace

SourceBlend::SourceBlend(const std::vector<double>& weights) {
  const std::uint64_t period = weights.size() == 1 ? 1 : period_length;
  for (std::size_t s = 0; s < weights.size(); ++s)
    if (!(weights[s] > 0) || !std::isfinite(weights[s]))
      fail(ExitCode::bad_deck, "weight of data source {} is {}, allowed are positive numbers", s + 1, weights[s]);
  slots_ = apportion(weights, period);
  // The j-th of n slots of a source belongs at (2 j + 1) / 2 n of the period; in that order deficits stay smallest.
  std::vector<std::tuple<double, std::uint32_t, std::uint32_t>> order;
  for (std::uint32_t s = 0; s < weights.size(); ++s) {
    if (slots_[s] == 0)
      fail(ExitCode::bad_deck, "weight of data source {} is {}, below 1/{} of the sum", s + 1, weights[s], period);
    for (std::uint32_t j = 0; j < slots_[s]; ++j)
      order.emplace_back((2.0 * j + 1) / (2.0 * static_cast<double>(slots_[s])), s, j);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [when, source, rank] : order) period_.push_back({source, rank});
}

SourceBlend::Place SourceBlend::place(std::uint64_t sample) const {
  const Slot slot = period_[sample % period_.size()];
  return {slot.source, sample / period_.size() * slots_[slot.source] + slot.rank};
}

double SourceBlend::share(std::size_t source) const {
  return static_cast<double>(slots_[source]) / static_cast<double>(period_.size());
}

std::uint64_t window_of(std::uint64_t seed, std::size_t source, std::uint64_t ordinal, std::uint64_t windows,
                        bool shuffle) {
  if (!shuffle) return ordinal % windows;
  const std::uint64_t epoch = ordinal / windows;
  const Philox key = philox(stream_of(seed, "data"), source, epoch);
  return permute(std::uint64_t{key[1]} << 32 | key[0], ordinal % windows, windows);
}

namespace {

struct Part {
  std::shared_ptr<TokenSource> tokens;
  std::uint64_t begin = 0, count = 0;  // windows of the source that belong to the split
};

std::uint64_t windows_in(const TokenSource& source, int sequence) {
  return source.size() == 0 ? 0 : (source.size() - 1) / static_cast<std::uint64_t>(sequence);
}

void require_window(const TokenSource& source, std::uint64_t windows, int sequence) {
  if (windows == 0)
    fail(ExitCode::bad_data, "{}: too short, a window of data.sequence_length {} needs {} tokens", source.description(),
         sequence, sequence + 1);
}

// Where an end token tells documents apart, masking without one would mask nothing, or leave documents without their
// end. A Megatron index and files of bytes say where documents are.
void require_end(const DataSource& source, const Tokenizer* tokenizer, std::int64_t end) {
  if (end >= 0 || source.format == DataSource::Format::megatron) return;
  if (is_text(source.format) && tokenizer == nullptr) return;
  if (tokenizer != nullptr && tokenizer->end_of_document() >= 0) return;
  fail(ExitCode::bad_deck,
       "data.mask_documents: {}: no end token is known that ends its documents: name it with data.end_token (the text "
       "of a token of data.tokenizer, or an id), or leave masking off",
       source.path);
}

// The end token between two documents is the last that the first one predicts and the first that the second one sees,
// as a text that begins from nothing sees it; so it is whether a file has it before documents or after them. A document
// with a begin token of its own needs no other.
std::uint64_t first_of_document(const std::int32_t* tokens, std::uint64_t start, const DocumentMarks& marks) {
  const bool between = start > 0 && marks.end >= 0 && tokens[start - 1] == marks.end;
  return between && (marks.begin < 0 || tokens[start] != marks.begin) ? start - 1 : start;
}

// Returns the number of windows at the end that are held out: at least one, and never all.
std::uint64_t held_out(const TokenSource& source, std::uint64_t windows, double fraction) {
  if (fraction <= 0) return 0;
  if (windows < 2)
    fail(ExitCode::bad_data, "{}: {} windows, data.validation_fraction {} needs 2 or more", source.description(),
         windows, fraction);
  const auto wanted = static_cast<std::uint64_t>(std::ceil(fraction * static_cast<double>(windows)));
  return std::clamp<std::uint64_t>(wanted, 1, windows - 1);
}

}  // namespace

struct SampleSet::State {
  DataOptions options;
  Split split = Split::train;
  std::int64_t vocab_size = 0;
  DocumentMarks marks;
  std::uint64_t seed = 0, windows = 0;
  std::vector<Part> parts;
  std::vector<double> weights{1.0};
  SourceBlend blend{weights};

  bool own_validation() const { return !options.validation.empty(); }
  std::uint64_t sequence() const { return static_cast<std::uint64_t>(options.sequence_length); }

  void open(const Tokenizer* tokenizer, const Poll& poll) {
    const bool given = split == Split::validation && own_validation();
    for (const DataSource& source : given ? options.validation : options.source) {
      if (options.mask_documents) require_end(source, tokenizer, marks.end);
      parts.push_back({open_source(source, tokenizer, vocab_size, marks, poll), 0, 0});
    }
  }

  // Chooses the windows of the split from the opened sources, and the weights.
  void divide() {
    weights.clear();
    windows = 0;
    const double fraction = own_validation() ? 0 : options.validation_fraction;
    const bool all = split == Split::train || own_validation();
    for (std::size_t s = 0; s < parts.size(); ++s) {
      Part& part = parts[s];
      const std::uint64_t total = windows_in(*part.tokens, options.sequence_length);
      require_window(*part.tokens, total, options.sequence_length);
      const std::uint64_t kept_back = held_out(*part.tokens, total, fraction);
      part.begin = all ? 0 : total - kept_back;
      part.count = all ? total - kept_back : kept_back;
      windows += part.count;
      weights.push_back(split == Split::train ? options.source[s].weight : static_cast<double>(part.count));
    }
    if (split == Split::train) blend = SourceBlend(weights);
  }

  struct Place {
    const Part* part;
    std::uint64_t window;
  };
  Place place(std::uint64_t sample) const {
    if (split == Split::train) {
      const auto [source, ordinal] = blend.place(sample);
      return {&parts[source],
              parts[source].begin + window_of(seed, source, ordinal, parts[source].count, options.shuffle)};
    }
    std::uint64_t window = sample % windows;
    if (options.shuffle) window = permute(stream_of(seed, "validation"), window, windows);
    const Part* part = parts.data();
    for (; window >= part->count; ++part) window -= part->count;
    return {part, part->begin + window};
  }
  double share(std::size_t s) const {
    return split == Split::train ? blend.share(s) : static_cast<double>(parts[s].count) / static_cast<double>(windows);
  }
};

SampleSet::SampleSet(const DataOptions& options, Split split, std::int64_t vocab_size, std::uint64_t seed,
                     const Tokenizer* tokenizer, const DocumentMarks& marks, const Poll& poll)
    : state_(std::make_unique<State>()) {
  SESTINA_REQUIRE(options.sequence_length > 0, "sequence_length {}", options.sequence_length);
  state_->options = options;
  state_->split = split;
  state_->vocab_size = vocab_size;
  state_->seed = seed;
  state_->marks = marks;
  if (split == Split::validation && !state_->own_validation() && options.validation_fraction <= 0) return;
  state_->open(tokenizer, poll);
  if (state_->parts.empty()) fail(ExitCode::bad_deck, "no [[data.source]]: at least one is needed");
  state_->divide();
}

SampleSet::SampleSet(std::unique_ptr<State> state) : state_(std::move(state)) {}
SampleSet::~SampleSet() = default;
SampleSet::SampleSet(SampleSet&&) noexcept = default;

SampleSet SampleSet::validation(const Tokenizer* tokenizer, const Poll& poll) const {
  const State& state = *state_;
  if (state.own_validation() || state.options.validation_fraction <= 0)
    return SampleSet(state.options, Split::validation, state.vocab_size, state.seed, tokenizer, state.marks, poll);
  auto other = std::make_unique<State>(state);
  other->split = Split::validation;
  other->divide();
  return SampleSet(std::move(other));
}

int SampleSet::sequence() const { return state_->options.sequence_length; }
std::uint64_t SampleSet::windows() const { return state_->windows; }

void SampleSet::read(std::uint64_t sample, std::int32_t* tokens, std::int32_t* first_key) const {
  SESTINA_REQUIRE(state_->windows > 0, "sample {} of an empty set", sample);
  const auto [part, window] = state_->place(sample);
  const std::uint64_t length = state_->sequence(), begin = window * length;
  part->tokens->read(begin, length + 1, tokens);
  std::fill_n(first_key, length, 0);
  if (!state_->options.mask_documents) return;
  std::vector<std::uint64_t> starts;
  part->tokens->document_starts(begin, begin + length + 1, starts);
  for (const std::uint64_t start : starts) {
    const std::uint64_t first = first_of_document(tokens, start - begin, state_->marks);
    std::fill(first_key + std::min(first, length), first_key + length, static_cast<std::int32_t>(first));
  }
}

std::string SampleSet::description() const {
  std::string text;
  for (std::size_t s = 0; s < state_->parts.size(); ++s) {
    const Part& part = state_->parts[s];
    text += fmt::format("{}, {} windows of {}, {:.1f} % of the samples\n", part.tokens->description(), part.count,
                        state_->options.sequence_length, 100 * state_->share(s));
  }
  return text;
}

double SampleSet::bytes_per_token() const {
  double sum = 0;
  for (const Part& part : state_->parts) {
    const double ratio = part.tokens->bytes_per_token();
    if (ratio <= 0) return 0;
    sum += ratio * static_cast<double>(part.count);
  }
  return state_->windows > 0 ? sum / static_cast<double>(state_->windows) : 0;
}

}  // namespace sestina
