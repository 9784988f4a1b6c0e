// A small training run without files: on one rank by itself, or on all ranks together.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/deck/kinds.hpp"
#include "core/deck/model_experts.hpp"
#include "kernels/base/random.hpp"
#include "regression/unit/kind_names.hpp"
#include "regression/unit/mpi/ranks.hpp"
#include "regression/unit/spaces.hpp"
#include "regression/unit/take_step.hpp"
#include "regression/unit/typed_executor.hpp"

namespace sestina {

struct TrainingCase {
  Options options;
};

// Optimizers with moments in 8 bits and projectors in 4, as kinds next to the others.
inline constexpr const char *adamw_8bit = "adamw-8bit", *galore_8bit = "galore-8bit", *apollo_8bit = "apollo-8bit";
inline bool is_8bit(const std::string& kind) {
  return kind == adamw_8bit || kind == galore_8bit || kind == apollo_8bit;
}
// With weights in 8 bits: without tensor parallelism.
inline constexpr const char *galore_int8 = "galore-int8", *apollo_int8 = "apollo-int8";
inline bool is_int8(const std::string& kind) { return kind == galore_int8 || kind == apollo_int8; }

// Sizes at which nothing divides anything: the embedding is dealt out in chunks, matrices have several costs.
inline TrainingCase training_case(const std::string& kind, Family family = Family::llama) {
  TrainingCase run;
  Options& o = run.options;
  o.model = family_defaults(family);
  o.model.hidden_size = 48;
  o.model.intermediate_size = 80;
  o.model.num_hidden_layers = 2;
  o.model.num_attention_heads = 4;
  o.model.num_key_value_heads = family == Family::gpt ? 4 : 2;
  o.model.head_dim = 12;
  if (is_mixture(family)) {
    o.model.num_experts = 6;
    o.model.num_experts_per_tok = 2;
    o.model.moe_intermediate_size = 20;
    o.model.router_aux_loss_coef = 0.01;
    o.model.router_z_loss_coef = 0.001;
  }
  o.model.vocab_size = 301;
  o.model.max_position_embeddings = 16;
  o.data.sequence_length = 16;
  o.train.global_batch = 4;
  o.train.micro_batch = 1;
  o.run.deterministic = true;
  o.schedule.lr = o.optimizer.lr = o.optimizer.adamw.lr = 3e-3;
  o.optimizer.kind = is_8bit(kind) || is_int8(kind) ? kind.substr(0, kind.rfind('-')) : kind;
  if (is_8bit(kind)) {
    o.optimizer.state_bits = 8;
    o.optimizer.state_block = 8;  // four tensor-parallel ranks do not cut it
  }
  if (const auto rule = find_element_rule(o.optimizer.kind)) {
    o.optimizer.adamw.rule = *rule;
    o.optimizer.adamw.warmup = 8;
  }
  if (const MatrixKind* known = find_matrix_kind(o.optimizer.kind)) {
    o.optimizer.matrix = default_options(*known);
    o.optimizer.matrix->refresh_every = 4;
    o.optimizer.matrix->state_bits = o.optimizer.state_bits;
    o.optimizer.matrix->state_block = o.optimizer.state_block;
    if (is_8bit(kind)) o.optimizer.matrix->set("projector_bits", 4);
    if (!is_int8(kind)) return run;
    o.optimizer.matrix->set("weight_bits", 8);
    o.optimizer.matrix->run_seed = 9;
    o.model.linear.form = "int8";
    o.model.linear.group_size = 32;
  }
  return run;
}

// What a run leaves: loss and norm of every update, and all weights that are computed with, in the order of the specs.
struct Trained {
  std::vector<double> loss, norm;
  std::vector<bool> weights_finite;
  std::vector<float> weights;
};

inline std::vector<std::int32_t> sample_tokens(const Options& options, std::uint64_t sample) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(options.data.sequence_length) + 1);
  for (std::size_t t = 0; t < tokens.size(); ++t)  // a few words that come back: something can be learned
    tokens[t] = static_cast<std::int32_t>((sample * 7 + (t % 5) * (sample % 3 + 1) * 11) %
                                          static_cast<std::uint64_t>(options.model.vocab_size));
  return tokens;
}

// Values in the memory of a space, on the host.
template <class Exec, class V>
std::vector<double> host_values(const V* data, std::int64_t n) {
  const Kokkos::View<const V*, typename Exec::memory_space, Kokkos::MemoryUnmanaged> there(data,
                                                                                           static_cast<std::size_t>(n));
  const auto here = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), there);
  std::vector<double> values(here.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(static_cast<float>(here(i)));
  return values;
}

template <class Exec, class T>
std::vector<double> decoded_values(const Arena<Exec, T>& arena, std::size_t i) {
  const TensorSpec& spec = arena.specs()[i];
  const CodedRows there{static_cast<std::uint8_t*>(arena.frozen(i)), static_cast<std::size_t>(spec.rows),
                        static_cast<std::size_t>(spec.cols), static_cast<std::size_t>(spec.group)};
  const Kokkos::View<float**, Kokkos::LayoutRight, typename Exec::memory_space> values("values", there.rows,
                                                                                       there.cols);
  decode_rows<Exec, float>(Exec(), there, values);
  Exec().fence();
  return host_values<Exec>(values.data(), spec.elements());
}

// Returns the codes of 4 bits in these bytes, the lower half first.
inline std::vector<double> halves(const std::vector<double>& bytes) {
  std::vector<double> codes;
  for (const double byte : bytes) codes.insert(codes.end(), {std::fmod(byte, 16), std::floor(byte / 16)});
  return codes;
}

// What this rank computes with of tensor i of an arena.
template <class Exec, class T>
std::vector<double> values_of(const Arena<Exec, T>& arena, std::size_t i) {
  const TensorSpec& spec = arena.specs()[i];
  const std::int64_t n = spec.elements();
  if (spec.is_coded()) return decoded_values<Exec, T>(arena, i);
  if (spec.trainable && spec.is_vector()) return host_values<Exec>(arena.vector(i), n);
  if (spec.trainable) return host_values<Exec>(arena.matrix(i), n);
  void* const frozen = arena.frozen(i);
  switch (spec.stored) {
    case Stored::compute:
      return host_values<Exec>(static_cast<const T*>(frozen), n);
    case Stored::sum:
      return host_values<Exec>(static_cast<const Acc<T>*>(frozen), n);
    case Stored::index:
      return host_values<Exec>(static_cast<const std::int32_t*>(frozen), n);
    case Stored::code:
      return host_values<Exec>(static_cast<const std::uint8_t*>(frozen), n);
    case Stored::half_code:
      return halves(host_values<Exec>(static_cast<const std::uint8_t*>(frozen), n / 2));
    case Stored::coded_rows:
      break;
  }
  return {};
}

// The same where it lies in the whole one; other places as they were.
template <class Exec, class T>
void place_weights(const Arena<Exec, T>& arena, std::size_t i, std::vector<double>& whole) {
  const TensorHolding& tensor = arena.layout().tensors[i];
  std::vector<double> mine = values_of<Exec, T>(arena, i);
  if (!tensor.whole.trainable && tensor.whole.stored == Stored::index)  // of places in the shard
    for (double& place : mine) place += static_cast<double>(tensor.row_begin);
  for (std::int64_t r = 0; r < tensor.local.rows; ++r)
    for (std::int64_t c = 0; c < tensor.local.cols; ++c)
      whole[static_cast<std::size_t>((tensor.row_begin + r) * tensor.whole.cols + tensor.col_begin + c)] =
          mine[static_cast<std::size_t>(r * tensor.local.cols + c)];
}

// The whole weights of all stages, in their order: shards put together over the tensor-parallel group, stages from the
// pipeline ranks that have them.
template <class Exec, class T>
std::vector<float> whole_weights(TypedExecutor<Exec, T>& run) {
  std::vector<float> all;
  for (const StagePlan& stage : run.plan().stages)
    for (const TensorSpec& spec : stage.specs) {
      std::vector<double> values(static_cast<std::size_t>(spec.elements()), -1e300);
      for (std::size_t i = 0; i < run.stage_count(); ++i) {
        const Arena<Exec, T>& arena = run.stage(i).arena();
        for (std::size_t k = 0; k < arena.size(); ++k)
          if (arena.layout().tensors[k].whole.name == spec.name) place_weights<Exec, T>(arena, k, values);
      }
      if (spec.expert >= 0) run.grid().dp_group->all_reduce(values.data(), values.size(), Reduction::max);
      run.grid().tp_group->all_reduce(values.data(), values.size(), Reduction::max);
      run.pipeline().all_reduce(values.data(), values.size(), Reduction::max);
      all.insert(all.end(), values.begin(), values.end());
    }
  return all;
}

// The data of a test: windows of sample_tokens.
class SampleBatches final : public Batches {
 public:
  // begin: updates that were taken before.
  SampleBatches(const Options& options, const BatchShare& share, int begin)
      : options_(options), share_(share), next_(static_cast<std::int64_t>(begin) * share.count) {}
  BatchView next() override {
    const std::int64_t step = next_ / share_.count, micro = share_.number(static_cast<int>(next_ % share_.count));
    ++next_;
    tokens_.clear();
    for (int b = 0; b < share_.micro_batch; ++b) {
      const std::vector<std::int32_t> window = sample_tokens(
          options_, static_cast<std::uint64_t>(step * options_.train.global_batch + micro * share_.micro_batch + b));
      tokens_.insert(tokens_.end(), window.begin(), window.end());
    }
    return {tokens_.data(), nullptr};
  }

 private:
  const Options& options_;
  BatchShare share_;
  std::int64_t next_;
  std::vector<std::int32_t> tokens_;
};

inline void train_steps(Executor& run, const Options& options, int begin, int end, Trained& result) {
  const double scale = 1.0 / (static_cast<double>(options.train.global_batch) * options.data.sequence_length);
  SampleBatches batches(options, run.share(), begin);
  for (int t = begin + 1; t <= end; ++t) {
    take_step(run, t, batches);
    result.loss.push_back(run.sums().loss * scale);
    result.norm.push_back(run.sums().norm);
    result.weights_finite.push_back(run.sums().weights_finite);
  }
  run.finish_steps();  // nothing is on its way when the executor goes
  run.finish_gather();
}

// One run, looked at after these numbers of updates, which rise.
template <class T, class Exec = Host>
std::vector<Trained> train_through(Communicator& ranks, const TrainingCase& run, const std::vector<int>& updates) {
  TypedExecutor<Exec, T> session(Exec(), make_plan({run.options, ranks.size()}), ranks);
  session.initialise(5);
  std::vector<Trained> looks;
  Trained result;
  int begin = 0;
  for (const int end : updates) {
    train_steps(session, run.options, std::exchange(begin, end), end, result);
    result.weights = whole_weights(session);
    looks.push_back(result);
  }
  return looks;
}

template <class T, class Exec = Host>
Trained train_on(Communicator& ranks, const TrainingCase& run, int steps) {
  return train_through<T, Exec>(ranks, run, {steps}).front();
}

template <class V>
void take_from_first(std::vector<V>& values) {
  std::size_t count = values.size();
  world().broadcast(&count, sizeof count, 0);
  values.resize(count);
  if (count > 0) world().broadcast(values.data(), count * sizeof(V), 0);
}

inline void take_from_first(Trained& trained) {
  std::vector<char> finite(trained.weights_finite.begin(), trained.weights_finite.end());
  take_from_first(trained.loss);
  take_from_first(trained.norm);
  take_from_first(finite);
  take_from_first(trained.weights);
  trained.weights_finite.assign(finite.begin(), finite.end());
}

// One rank trains and tells the others: what is the same on all is computed once.
template <class Train>
Trained train_once(Train train) {
  Trained trained;
  if (world().rank() == 0) trained = train();
  take_from_first(trained);
  return trained;
}

template <class T, class Exec = Host>
Trained train_alone(const TrainingCase& run, int steps) {
  return train_once([&] { return train_on<T, Exec>(*make_lone_communicator(), run, steps); });
}

template <class T, class Exec = Host>
Trained train_together(const TrainingCase& run, int steps) {
  return train_on<T, Exec>(world(), run, steps);
}

// Six heads over two, three or six ranks; the vocabulary of 301 and the rows of the stream divide by none of them.
inline TrainingCase grid_case(const std::string& kind, int tp, Family family = Family::llama) {
  TrainingCase run = training_case(kind, family);
  Options& o = run.options;
  o.model.num_attention_heads = 6;
  o.model.num_key_value_heads = family == Family::qwen3 ? 1 : 6;  // qwen3: one head that all ranks hold
  o.model.head_dim = 8;
  o.model.intermediate_size = 84;
  o.data.sequence_length = o.model.max_position_embeddings = 13;
  o.train.global_batch = 6;
  o.optimizer.state_block = 2;  // neither are these columns cut
  o.parallel.tp = tp;
  o.parallel.dp = world().size() / tp;
  o.parallel.bucket_elements = 20000;
  o.parallel.micro_group_bytes = 60000;  // several micro-groups
  return run;
}

// An MLP whose parts differ: by one row with 83, and with 88 over three or six ranks by the 8 rows of a unit.
inline constexpr std::int64_t uneven_sizes[] = {83, 88};
inline TrainingCase uneven(TrainingCase run, std::int64_t intermediate_size = uneven_sizes[0]) {
  run.options.model.intermediate_size = intermediate_size;
  return run;
}

inline std::vector<int> tensor_sizes() {
  std::vector<int> sizes;
  for (const int tp : {1, 2, 3, 6})
    if (world().size() % tp == 0) sizes.push_back(tp);
  return sizes;
}

inline TrainingCase alone(TrainingCase run) {
  run.options.parallel = ParallelOptions();
  return run;
}

// One matrix leaves the range of its type in the first update, on the rank that updates it: the next sums tell all.
template <class Exec = Host>
std::vector<bool> finite_after_overflow(TrainingCase run) {
  OptimizerGroup group;
  group.match = "*.1.mlp.down_proj.weight*";
  group.lr_multiplier = 1e300;
  run.options.optimizer.group.push_back(group);
  return train_together<float, Exec>(run, 2).weights_finite;
}

inline double largest_difference(const Trained& a, const Trained& b) {
  double largest = 0;
  for (std::size_t t = 0; t < a.loss.size(); ++t)
    largest = std::max(largest, std::abs(a.loss[t] - b.loss[t]) / std::abs(a.loss[t]));
  return largest;
}

inline std::vector<std::string> every_kind() {
  std::vector<std::string> kinds = kind_names();
  kinds.insert(kinds.end(), element_rules().begin(), element_rules().end());
  kinds.push_back(adamw_8bit);
  kinds.push_back(galore_8bit);
  kinds.push_back(apollo_8bit);
  return kinds;
}

inline std::vector<std::string> every_kind_without_tp() {
  std::vector<std::string> kinds = every_kind();
  kinds.insert(kinds.end(), {galore_int8, apollo_int8});
  return kinds;
}

inline std::vector<std::string> asynchronous_kinds() {
  std::vector<std::string> names;
  for (const std::string& kind : kind_names())
    if (find_matrix_kind(kind)->refresh_needs != nullptr) names.push_back(kind);
  return names;
}

// Row-parallel products, and sums over ranks whose parts of the tree are not aligned, are rounded in another order: the
// gradients of each update differ by some eps of themselves. What updates make of it depends on the rule: nearly
// nothing where the update is a product of the gradient; adamuon and shampoo divide by small numbers; bases are sorted,
// and a sort is not continuous; neither are codes of 8 bits, whose cells are up to a tenth of a moment wide, nor lion's
// sign, with which one element moves two steps apart. About ten times what was seen over all grids, families and uneven
// parts after 5 and after 50 updates.
struct Drift {
  double loss, weights;  // relative, the largest of all updates; relative, Frobenius
};
inline Drift allowed_drift(const std::string& kind, int updates) {
  const bool early = updates <= 5;
  if (kind == "basis-rotation") return early ? Drift{5e-4, 3e-2} : Drift{1e-2, 0.2};
  if (kind == "lion") return early ? Drift{1e-5, 5e-3} : Drift{2e-3, 5e-2};
  if (kind == "soap" || kind == "kl-soap") return early ? Drift{5e-5, 5e-3} : Drift{1e-2, 0.2};
  if (kind == "soap-muon") return early ? Drift{5e-5, 2e-2} : Drift{1e-2, 0.2};  // bases turn in every update
  if (is_8bit(kind)) return early ? Drift{3e-6, 2e-3} : Drift{3e-3, 4e-2};
  if (kind == "adamuon" || kind == "shampoo") return early ? Drift{3e-6, 5e-4} : Drift{1e-4, 5e-3};
  return early ? Drift{1e-7, 5e-6} : Drift{3e-6, 5e-5};
}

inline double weight_difference(const Trained& a, const Trained& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    difference += std::pow(double(a.weights[i]) - double(b.weights[i]), 2);
    size += std::pow(double(a.weights[i]), 2);
  }
  return std::sqrt(difference / size);
}

}  // namespace sestina
