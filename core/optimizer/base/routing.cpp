#include "core/optimizer/base/routing.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>

#include "core/deck/deck.hpp"
#include "core/optimizer/base/transfer_factors.hpp"

namespace sestina {

bool glob_match(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (star != std::string_view::npos) {  // let the last star take one character more
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_matrix_optimized(const TensorSpec& spec, const OptimizerOptions& options) {
  const bool packed = spec.is_packed();
  if (!options.matrix || (spec.is_vector() && !packed) || !spec.trainable) return false;
  bool matrix = spec.role == Role::matrix || packed;
  for (const OptimizerGroup& group : options.group)
    if (group.kind && glob_match(group.match, spec.name)) matrix = *group.kind == options.kind;
  return matrix;
}

TensorRates rates_of(const TensorSpec& spec, const OptimizerOptions& options) {
  const bool matrix = is_matrix_optimized(spec, options);
  TensorRates rates{matrix ? options.lr : options.adamw.lr, spec.is_vector() ? 0.0
                                                            : matrix         ? options.weight_decay
                                                                             : options.adamw.weight_decay};
  if (!matrix) {
    rates.beta1 = options.adamw.beta1;
    rates.beta2 = options.adamw.beta2;
    rates.eps = options.adamw.eps;
  }
  double multiplier = 1;
  for (const OptimizerGroup& group : options.group) {
    if (!glob_match(group.match, spec.name)) continue;
    if (group.lr_multiplier) multiplier = *group.lr_multiplier;
    if (group.weight_decay) rates.weight_decay = *group.weight_decay;
    if (matrix) continue;
    rates.beta1 = group.beta1.value_or(rates.beta1);
    rates.beta2 = group.beta2.value_or(rates.beta2);
    rates.eps = group.eps.value_or(rates.eps);
  }
  const TransferFactors transfer = transfer_factors(options.transfer, spec, matrix);
  rates.lr *= multiplier * spec.lr_factor * transfer.lr;
  rates.weight_decay *= transfer.decay;
  if (spec.never_decays) rates.weight_decay = 0;
  return rates;
}

namespace {

std::vector<MatrixPart> skew_parts(const TensorSpec& spec) {
  const std::int64_t b = spec.skew_block, packed = b * (b - 1) / 2;
  std::vector<MatrixPart> parts;
  for (std::int64_t block = 0; block * packed < spec.rows; ++block)
    parts.push_back({fmt::format("{}/block_{:04}", spec.name, block), block * packed, b, b, true});
  return parts;
}

// Adds a matrix with all columns of its rows, or its blocks of at most `most` rows and columns.
void add_blocks(const MatrixPart& whole, std::int64_t most, std::vector<MatrixPart>& parts) {
  if (whole.rows <= most && whole.cols <= most) {
    parts.push_back(whole);
    return;
  }
  for (std::int64_t i = 0; i * most < whole.rows; ++i)
    for (std::int64_t j = 0; j * most < whole.cols; ++j) {
      MatrixPart block = whole;
      block.name += fmt::format("/block_{:02}_{:02}", i, j);
      block.row_begin += i * most;
      block.col_begin = j * most;
      block.rows = std::min(most, whole.rows - i * most);
      block.cols = std::min(most, whole.cols - j * most);
      block.cut_cols = block.cols < whole.cols;
      parts.push_back(std::move(block));
    }
}

std::int64_t longest_side(const OptimizerOptions& options) {
  const MatrixKind* kind = options.matrix ? find_matrix_kind(options.matrix->kind) : nullptr;
  return kind != nullptr && kind->max_dim != nullptr ? kind->max_dim(*options.matrix)
                                                     : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

bool is_by_head(const TensorSpec& spec, const OptimizerOptions& options) { return options.per_head && spec.heads > 1; }

std::vector<MatrixPart> matrix_parts(const TensorSpec& spec, const OptimizerOptions& options) {
  if (spec.is_packed()) return skew_parts(spec);
  const std::int64_t most = longest_side(options);
  std::vector<MatrixPart> parts;
  if (!is_by_head(spec, options)) {
    add_blocks({spec.name, 0, spec.rows, spec.cols}, most, parts);
    return parts;
  }
  const std::int64_t rows = spec.rows / spec.heads;
  for (int head = 0; head < spec.heads; ++head)
    add_blocks({fmt::format("{}/head_{:02}", spec.name, head), head * rows, rows, spec.cols}, most, parts);
  return parts;
}

std::string rule_of(const TensorSpec& spec, const OptimizerOptions& options) {
  return is_matrix_optimized(spec, options) ? options.kind : name(options.adamw.rule);
}

std::string split_of(const TensorSpec& spec, const OptimizerOptions& options) {
  if (!is_matrix_optimized(spec, options)) return "elements";
  if (spec.is_packed()) return "packed rotations";
  const std::vector<MatrixPart> parts = matrix_parts(spec, options);
  if (parts.size() == 1) return "whole";
  return parts.front().name.find("/head_") != std::string::npos ? "heads" : "blocks";
}

std::string name_of_all_layers(const TensorSpec& spec) {
  std::string name = spec.name;
  const std::string number = fmt::format(".{}.", spec.layer);
  if (const std::size_t at = name.find(number); spec.layer >= 0 && at != name.npos)
    name.replace(at, number.size(), ".*.");
  const std::string expert = fmt::format(".{}.", spec.expert);
  if (const std::size_t at = name.rfind(expert); spec.expert >= 0 && at != name.npos)
    name.replace(at, expert.size(), ".*.");
  return name;
}

MatrixIndex matrix_index(const std::vector<TensorSpec>& model, const OptimizerOptions& options) {
  MatrixIndex index;
  std::int64_t next = 0;
  for (const TensorSpec& spec : model) {
    if (!is_matrix_optimized(spec, options)) continue;
    index[spec.name] = next;
    next += static_cast<std::int64_t>(matrix_parts(spec, options).size());
  }
  return index;
}

std::size_t matrix_count(const std::vector<TensorSpec>& model, const OptimizerOptions& options) {
  std::size_t count = 0;
  for (const TensorSpec& spec : model)
    if (is_matrix_optimized(spec, options)) count += matrix_parts(spec, options).size();
  return count;
}

namespace {

std::string kinds_that_keep_skew() {
  std::string all = "adamw";
  for (const MatrixKind& kind : matrix_kinds())
    if (kind.keeps_skew != nullptr) all += ", " + kind.name;
  return all;
}

}  // namespace

void require_skew_updates(Deck& deck, Options& options) {
  const OptimizerOptions& optimizer = options.optimizer;
  if (!optimizer.matrix || options.model.linear.is_dense()) return;
  const std::vector<TensorSpec> specs = tensor_specs(options.model);
  const auto packed = std::find_if(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
    return spec.is_packed() && is_matrix_optimized(spec, optimizer);
  });
  if (packed == specs.end()) return;
  const MatrixKind& kind = *find_matrix_kind(optimizer.kind);
  const std::string tensor = packed->name + " is packed skew-symmetric matrices";
  constexpr const char* by_adamw = "an [[optimizer.group]] of all such tensors with kind = \"adamw\"";
  if (kind.keeps_skew == nullptr)
    deck.error("optimizer.kind", tensor + ", whose updates by it would not be skew-symmetric",
               fmt::format("{}, or {}", kinds_that_keep_skew(), by_adamw));
  else if (!kind.keeps_skew(*optimizer.matrix))
    deck.error("optimizer.kind", tensor + ", whose updates by it are skew-symmetric with bases of both sides alone",
               fmt::format("its default keys for the sides, or {}", by_adamw));
  if (kind.max_dim != nullptr && kind.max_dim(*optimizer.matrix) < packed->skew_block)
    deck.error("optimizer.max_dim", fmt::format("{} of side {}, which are never cut", tensor, packed->skew_block),
               fmt::format(">= {}, or {}", packed->skew_block, by_adamw));
  if (options.model.linear.state_bits == 8)
    deck.error("model.linear.state_bits", tensor + ", whose state is that of optimizer.kind",
               fmt::format("32, or {}", by_adamw));
  if (optimizer.matrix->refresh_eager)
    deck.error("optimizer.refresh.visibility", tensor + ", whose replicas are never made equal",
               fmt::format("fixed, or {}", by_adamw));
}

bool has_coded_moments(const TensorSpec& spec, const OptimizerOptions& options) {
  const bool coded = spec.is_vector() ? spec.coded_state : options.state_bits == 8;
  return coded && options.adamw.rule == ElementRule::adamw;
}

std::vector<FieldSize> adamw_fields(const TensorSpec& spec, std::int64_t rows, std::int64_t cols,
                                    const OptimizerOptions& options, std::size_t accumulate_width) {
  std::vector<FieldSize> fields;
  for (const std::string& name : element_fields(options.adamw.rule))
    if (has_coded_moments(spec, options) && spec.is_vector())
      add_coded_fields(fields, name, 1, rows, options.state_block);
    else if (has_coded_moments(spec, options))
      add_coded_fields(fields, name, rows, cols, options.state_block);
    else
      fields.push_back({name, accumulate_width == size_of(DType::f64) ? DType::f64 : DType::f32, rows, cols});
  for (FieldSize& field : fields) field.tier = options.state_tier;
  return fields;
}

std::size_t adamw_bytes(const TensorSpec& spec, std::int64_t rows, std::int64_t cols, const OptimizerOptions& options,
                        std::size_t accumulate_width) {
  std::size_t sum = 0;
  for (const FieldSize& field : adamw_fields(spec, rows, cols, options, accumulate_width)) sum += bytes_of(field);
  return sum;
}

std::size_t optimizer_state_bytes(const std::vector<TensorSpec>& specs, const OptimizerOptions& options,
                                  std::size_t accumulate_width) {
  const MatrixKind* kind = options.matrix ? find_matrix_kind(options.matrix->kind) : nullptr;
  std::size_t sum = 0;
  for (const TensorSpec& spec : specs) {
    if (!spec.trainable) continue;
    if (kind == nullptr || !is_matrix_optimized(spec, options)) {
      sum += adamw_bytes(spec, spec.rows, spec.cols, options, accumulate_width);
      continue;
    }
    for (const MatrixPart& part : matrix_parts(spec, options))
      for (const FieldSize& field : kind->state(*options.matrix, part.rows, part.cols)) sum += bytes_of(field);
  }
  return sum;
}

namespace {

bool is_number(const std::string& word) {
  return std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
}

// Returns the parts of a name or a pattern, without wildcards and numbers of layers.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == '.' || c == '/' || c == '*' || c == '?')
      words.emplace_back();
    else
      words.back() += c;
  }
  std::erase_if(words, is_number);  // empty ones too
  return words;
}

// Returns the names of what is trained, in the order of the model.
std::vector<std::string> names_of_all_layers(const std::vector<TensorSpec>& specs) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : specs) {
    const std::string name = name_of_all_layers(spec);
    if (spec.trainable && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

// Returns what the first unknown word of the pattern was meant to be, one that the names have; "" when none is near.
std::string meant_by(const std::string& pattern, const std::vector<std::string>& names) {
  std::set<std::string> known;
  for (const std::string& name : names)
    for (const std::string& word : words_of(name)) known.insert(word);
  const std::vector<std::string> candidates(known.begin(), known.end());
  for (const std::string& word : words_of(pattern)) {
    const auto inside = [&](const std::string& one) { return one.find(word) != one.npos; };
    if (std::any_of(candidates.begin(), candidates.end(), inside)) continue;
    if (const std::string meant = nearest(word, candidates); !meant.empty())
      return fmt::format(", did you mean {} for {}?", meant, word);
  }
  return "";
}

// Refuses the numbers of the elementwise rule in a group of matrices alone.
void refuse_element_numbers(Deck& deck, const OptimizerOptions& optimizer, std::size_t i) {
  const OptimizerGroup& group = optimizer.group[i];
  const std::pair<const char*, bool> keys[] = {
      {"beta1", group.beta1.has_value()}, {"beta2", group.beta2.has_value()}, {"eps", group.eps.has_value()}};
  for (const auto& [key, given] : keys)
    if (given)
      deck.error(
          fmt::format("optimizer.group.{}.{}", i, key),
          fmt::format("the group has only matrices, which \"{}\" updates with numbers of its own", optimizer.kind),
          fmt::format("a group of tensors that \"{}\" updates", name(optimizer.adamw.rule)));
}

}  // namespace

void require_matching_groups(Deck& deck, const Options& options) {
  if (options.optimizer.group.empty()) return;
  const std::vector<TensorSpec> specs = tensor_specs(options.model);
  const std::vector<std::string> names = names_of_all_layers(specs);
  for (std::size_t i = 0; i < options.optimizer.group.size(); ++i) {
    const std::string& pattern = options.optimizer.group[i].match;
    bool fits = false, trains = false, elementwise = false;
    for (const TensorSpec& spec : specs) {
      if (!glob_match(pattern, spec.name)) continue;
      fits = true;
      trains = trains || spec.trainable;
      elementwise = elementwise || (spec.trainable && !is_matrix_optimized(spec, options.optimizer));
    }
    if (trains && !elementwise) refuse_element_numbers(deck, options.optimizer, i);
    if (trains || pattern.empty()) continue;
    const std::string what = fits ? "fits frozen weights alone" : "fits no weight of the model";
    deck.error(fmt::format("optimizer.group.{}.match", i), what + (fits ? "" : meant_by(pattern, names)),
               fmt::format("a glob on {}", fmt::join(names, ", ")));
  }
}

}  // namespace sestina
