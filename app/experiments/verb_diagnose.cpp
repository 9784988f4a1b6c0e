// `sestina diagnose hessian`: the (1,1)-norm of the Hessian of the loss at a checkpoint, in the coordinates of the
// weights and in those in which its optimizer adapts them. Ranks share the vectors of the estimates.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>

#include "app/experiments/checkpoint_bases.hpp"
#include "app/experiments/diagnose.hpp"
#include "app/start/rank_run.hpp"
#include "app/start/run_deck.hpp"
#include "app/train/dense_reader.hpp"
#include "app/train/rank_source.hpp"
#include "app/train/run_data.hpp"
#include "core/hessian_norm.hpp"
#include "core/stage.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

// One row of the table; rotated is NaN where the checkpoint has no bases at all.
struct Norms {
  std::string name;
  std::int64_t parameters = 0;
  double norm = 0, rotated = 0;
  bool has_basis = false;
};

struct Result {
  std::vector<Norms> tensors;
  Norms total;
  double loss = 0, frobenius = 0, difference_error = 0;
  std::uint64_t tokens = 0;
  // Ratio of a (1,1)-norm to sqrt(d) ||H||_F for a Hessian H of side d: from 1 / sqrt(d) for a single entry to sqrt(d)
  // for all equal.
  double relative(double norm) const { return norm / (std::sqrt(static_cast<double>(total.parameters)) * frobenius); }
};

// Returns the number of windows that are read: those of metrics.eval_batches micro-batches, if there are as many.
std::uint64_t windows_read(const Options& options, const SampleSet& set) {
  return std::min(static_cast<std::uint64_t>(options.metrics.eval_batches) *
                      static_cast<std::uint64_t>(pass_options(options).micro_batch),
                  set.windows());
}

// Reads the first windows of the split.
std::vector<FixedBatch> fixed_batches(const Options& options, const SampleSet& set) {
  const PassOptions setting = pass_options(options);
  const auto B = static_cast<std::size_t>(setting.micro_batch), length = static_cast<std::size_t>(setting.sequence);
  const std::uint64_t wanted = windows_read(options, set);
  std::vector<FixedBatch> batches;
  for (std::uint64_t sample = 0; sample < wanted; ++sample) {
    const std::size_t row = sample % B;
    if (row == 0)  // targets of rows that are missing do not count
      batches.push_back({std::vector<std::int32_t>(B * (length + 1), -1), std::vector<std::int32_t>(B * length, 0)});
    set.read(sample, &batches.back().tokens[row * (length + 1)], &batches.back().first_key[row * length]);
  }
  if (!setting.mask_documents)
    for (FixedBatch& batch : batches) batch.first_key.clear();
  return batches;
}

std::vector<double> read_weights(const CheckpointReader& reader, const std::vector<TensorSpec>& specs) {
  const DenseReader dense(reader);
  std::vector<double> all;
  std::vector<float> one;
  for (const TensorSpec& spec : specs) {
    one.resize(static_cast<std::size_t>(spec.elements()));
    dense.read(spec, one.data(), ExitCode::diverged);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

// Adds up rows by tensor, and over all.
void add_up(const std::vector<TensorSpec>& specs, const std::vector<double>& rows, double Norms::*norm,
            Result& result) {
  auto from = rows.begin();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto end = from + static_cast<std::ptrdiff_t>(specs[i].elements());
    result.tensors[i].*norm = std::accumulate(from, end, 0.0);
    result.total.*norm += result.tensors[i].*norm;
    from = end;
  }
}

void name_tensors(const std::vector<TensorSpec>& specs, const std::vector<RotatedCoordinates>& bases, Result& result) {
  result.total.name = "total";
  result.total.has_basis = !bases.empty();
  std::size_t begin = 0;
  for (const TensorSpec& spec : specs) {
    const std::size_t end = begin + static_cast<std::size_t>(spec.elements());
    const bool rotated = std::any_of(bases.begin(), bases.end(),
                                     [&](const RotatedCoordinates& m) { return m.begin >= begin && m.begin < end; });
    result.tensors.push_back({spec.name, spec.elements(), 0, 0, rotated});
    result.total.parameters += spec.elements();
    begin = end;
  }
}

VectorRanks vector_ranks(Communicator& world) {
  return {world.rank(), world.size(), [&world](const double* mine, std::size_t n, double* all) {
            world.all_gather(mine, n * sizeof(double), all);
          }};
}

Result measure(const HessianArguments& arguments, const Options& options, const std::string& checkpoint,
               const std::vector<FixedBatch>& batches, Runtime& runtime) {
  const PassOptions setting = pass_options(options);
  LossGradient loss(Host(), options.model, setting.micro_batch, setting.sequence, batches);
  const std::vector<TensorSpec> specs = loss.specs();
  const CheckpointReader reader(checkpoint, false);
  std::vector<double> at, gradient;
  std::vector<RotatedCoordinates> bases;
  Result result;
  runtime.phase("reading the weights", [&] {
    at = read_weights(reader, specs);
    bases = read_bases(reader, specs, options.optimizer);
    name_tensors(specs, bases, result);
    result.loss = loss(at, gradient);
    if (!std::isfinite(result.loss))
      fail(ExitCode::diverged, "{}: its weights are finite, the loss is not", checkpoint);
  });
  runtime.set_timeout(options.run.abort_timeout);
  const VectorRanks ranks = vector_ranks(runtime.world());
  HessianProducts products([&](const std::vector<double>& w, std::vector<double>& g) { loss(w, g); }, std::move(at));
  Gemm<Host> gemm{Host()};
  std::vector<double> v(products.size());
  cauchy_vector(arguments.seed, 0, v);
  result.difference_error = products.error(v);
  add_up(specs, hessian_row_norms(products, gemm, {}, arguments.vectors, arguments.seed, ranks), &Norms::norm, result);
  if (!bases.empty())
    add_up(specs, hessian_row_norms(products, gemm, bases, arguments.vectors, arguments.seed, ranks), &Norms::rotated,
           result);
  result.frobenius = hessian_frobenius(products, std::max(2, arguments.vectors / 5), arguments.seed, ranks);
  return result;
}

void print_json(const Json& head, const Result& result) {
  const bool rotated = result.total.has_basis;
  const auto row = [&](const Norms& norms) {
    Json json{{"name", norms.name}, {"parameters", norms.parameters}, {"norm", norms.norm}};
    json["rotated_norm"] = rotated ? Json(norms.rotated) : Json(nullptr);
    json["has_basis"] = norms.has_basis;
    return json;
  };
  Json json = head;
  json["tensors"] = Json::array();
  for (const Norms& norms : result.tensors) json["tensors"].push_back(row(norms));
  json["total"] = row(result.total);
  json["total"]["per_parameter"] = result.total.norm / static_cast<double>(result.total.parameters);
  json["total"]["relative"] = result.relative(result.total.norm);
  json["total"]["rotated_relative"] = rotated ? Json(result.relative(result.total.rotated)) : Json(nullptr);
  json["total"]["ratio"] = rotated ? Json(result.total.rotated / result.total.norm) : Json(nullptr);
  fmt::print("{}\n", json.dump());
}

void print_table(const Json& head, const Result& result) {
  const bool rotated = result.total.has_basis;
  std::size_t width = 6;
  for (const Norms& norms : result.tensors) width = std::max(width, norms.name.size());
  fmt::print(
      "{}: (1,1)-norm of the Hessian of the mean loss, {:.6f}, of {} tokens of the {} split, by {} Cauchy vectors\n"
      "(each row within about {:.0f} %, sums of rows less; relative error of differences of gradients {:.1g})\n\n",
      head["model"].get<std::string>(), result.loss, result.tokens, head["split"].get<std::string>(),
      head["vectors"].get<int>(), 100 * head["row_error"].get<double>(), result.difference_error);
  fmt::print("{:<{}}  {:>12}  {:>12}", "tensor", width, "parameters", "original");
  if (rotated) fmt::print("  {:>12}  {:>8}", "rotated", "ratio");
  fmt::print("\n");
  const auto row = [&](const Norms& norms) {
    fmt::print("{:<{}}  {:>12}  {:>12.5g}", norms.name, width, norms.parameters, norms.norm);
    if (rotated)
      fmt::print("  {:>12.5g}  {:>8.4f}{}", norms.rotated, norms.rotated / norms.norm,
                 norms.has_basis ? "" : "  (no basis)");
    fmt::print("\n");
  };
  for (const Norms& norms : result.tensors) row(norms);
  row(result.total);
  fmt::print("\nFrobenius norm {:.5g}; (1,1)-norm over sqrt(parameters) times it: original {:.4f}", result.frobenius,
             result.relative(result.total.norm));
  if (rotated)
    fmt::print(", rotated {:.4f}\n", result.relative(result.total.rotated));
  else
    fmt::print("\nThe checkpoint holds no bases of an optimizer: there are no rotated coordinates\n");
}

int diagnose_on_ranks(const HessianArguments& arguments, Runtime& runtime) {
  warn_on_stderr(runtime);
  const Source source = find_rank_source(runtime, arguments.checkpoint, "");
  const std::string vectors = std::to_string(arguments.vectors), seed = std::to_string(arguments.seed);
  const Options options = read_rank_options(runtime, source, arguments.deck,
                                            {{"--vectors", vectors, "", true}, {"--seed", seed, "", true}}, true);
  compare_rank_data(runtime, source, options, {});
  const bool held_out = has_validation(options.data);
  std::vector<FixedBatch> batches;
  std::uint64_t tokens = 0;
  runtime.phase("opening the data", [&] {
    require_byte_vocabulary(options);
    const auto tokenizer = open_tokenizer(options.data);
    const SampleSet set = open_samples(options, held_out ? Split::validation : Split::train, tokenizer.get());
    batches = fixed_batches(options, set);
    tokens = windows_read(options, set) * static_cast<std::uint64_t>(options.data.sequence_length);
  });
  const auto session = start_kokkos(runtime, options.run.threads, arguments.kokkos, 0);
  Result result = measure(arguments, options, source.checkpoint, batches, runtime);
  result.tokens = tokens;
  if (!runtime.is_first()) return 0;
  const Json head{{"model", source.checkpoint},
                  {"split", held_out ? "validation" : "train"},
                  {"tokens", result.tokens},
                  {"loss", result.loss},
                  {"vectors", arguments.vectors},
                  {"seed", arguments.seed},
                  {"row_error", std::numbers::pi / (2 * std::sqrt(static_cast<double>(arguments.vectors)))},
                  {"difference_error", result.difference_error},
                  {"frobenius", result.frobenius}};
  if (arguments.json)
    print_json(head, result);
  else
    print_table(head, result);
  return 0;
}

}  // namespace

int run_diagnose_hessian(const HessianArguments& arguments, const RankSource& ranks) {
  Runtime runtime(ranks, find_start_timeout(arguments.deck));
  return run_on_ranks(runtime, [&] { return diagnose_on_ranks(arguments, runtime); });
}

}  // namespace sestina
