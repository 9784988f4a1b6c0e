#include "parallel/stage/stage_audit.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/memory/pager.hpp"
#include "kernels/blas/bits.hpp"

namespace sestina {

template <class Exec, class T>
StageAudit<Exec, T>::StageAudit(const Exec& exec, std::vector<StageRun<Exec, T>*> runs)
    : exec_(exec), runs_(std::move(runs)), one_("sestina::digest", 1) {
  for (StageRun<Exec, T>* run : runs_) {
    digests_.push_back(std::make_unique<GradientDigests<Exec, T>>(run->stage().arena()));
    for (std::string& name : digests_.back()->names()) names_.push_back(std::move(name));
    run->watch(digests_.back().get());
  }
  all_.resize(names_.size());
}

template <class Exec, class T>
StageAudit<Exec, T>::~StageAudit() {
  for (StageRun<Exec, T>* run : runs_) run->watch(nullptr);
}

// Returns how many tensors each stage has for flips like this one.
template <class Exec, class T>
std::vector<std::size_t> StageAudit<Exec, T>::tensors_of(const BitFlip& flip) const {
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const LayerRange layers = runs_[i]->plan().layers;
    counts.push_back(flip.in_activation ? static_cast<std::size_t>(layers.end - layers.begin) : digests_[i]->size());
  }
  return counts;
}

// Returns the stage that has the tensor of a flip, and its number there.
template <class Exec, class T>
std::pair<std::size_t, std::uint64_t> StageAudit<Exec, T>::place_of(const BitFlip& flip) const {
  const std::vector<std::size_t> counts = tensors_of(flip);
  std::uint64_t tensor = flip.tensor % std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  std::size_t stage = 0;
  for (; tensor >= counts[stage]; ++stage) tensor -= counts[stage];
  return {stage, tensor};
}

// Deals the flip out to the stage that has its tensor.
template <class Exec, class T>
void StageAudit<Exec, T>::begin_passes(std::optional<int> digests, const std::optional<BitFlip>& flip) {
  const auto [stage, tensor] = flip ? place_of(*flip) : std::pair(runs_.size(), std::uint64_t{0});
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    std::optional<BitFlip> own;
    if (i == stage) {
      own = flip;
      own->tensor = tensor;
    }
    const bool in_activation = own && own->in_activation;
    digests_[i]->begin(digests, in_activation ? std::nullopt : own);
    runs_[i]->flip_in_forward(in_activation ? own : std::nullopt);
  }
}

template <class Exec, class T>
std::string StageAudit<Exec, T>::flipped(const BitFlip& flip) const {
  const auto [stage, tensor] = place_of(flip);
  if (flip.in_activation)
    return fmt::format("output of model.layers.{}.self_attn",
                       runs_[stage]->plan().layers.begin + static_cast<int>(tensor));
  return "gradient of " + digests_[stage]->names()[tensor];
}

template <class Exec, class T>
void StageAudit<Exec, T>::compute_again(const BatchView& batch, double gradient_scale) {
  runs_.front()->load(ForwardStage::evaluation, batch);
  for (StageRun<Exec, T>* run : runs_) run->forward_again();
  for (std::size_t i = runs_.size(); i-- > 0;) runs_[i]->backward_again(gradient_scale);
}

// Blocks come back in the opposite order, each with the gradient of its input before those of its weights.
template <class Exec, class T>
std::vector<PassDigest> StageAudit<Exec, T>::replay(const BatchView& batch, double gradient_scale) {
  for (StageRun<Exec, T>* run : runs_) run->keep_digests(true);
  compute_again(batch, gradient_scale);
  const std::span<const std::uint64_t> weights = gradients();
  std::vector<PassDigest> all;
  std::size_t first = 0;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const std::size_t begin = all.size();
    for (const PassDigest& digest : runs_[i]->digests()) all.push_back(digest);
    const int stage = runs_[i]->place().number;
    const auto layers = runs_[i]->stage().part().config.num_hidden_layers;
    for (std::size_t k = digests_[i]->size(); k-- > 0;) {
      const int block = digests_[i]->block(k);
      all.push_back({PassKind::backward,
                     stage,
                     layer_of_block(block, layers),
                     "gradient of " + names_[first + k],
                     block,
                     false,
                     {weights[first + k]}});
    }
    first += digests_[i]->size();
    std::stable_sort(all.begin() + static_cast<std::ptrdiff_t>(begin), all.end(),
                     [](const PassDigest& a, const PassDigest& b) {
                       return a.pass != b.pass ? a.pass < b.pass : a.pass == PassKind::backward && a.block > b.block;
                     });
    runs_[i]->keep_digests(false);
  }
  return all;
}

template <class Exec, class T>
std::span<const std::uint64_t> StageAudit<Exec, T>::gradients() {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    runs_[i]->complete();
    const std::span<const std::uint64_t> of_stage = digests_[i]->fetch(exec_);
    std::copy(of_stage.begin(), of_stage.end(), all_.begin() + static_cast<std::ptrdiff_t>(begin));
    begin += of_stage.size();
  }
  return all_;
}

template <class Exec, class T>
std::vector<StateField> StageAudit<Exec, T>::weight_fields() const {
  std::vector<StateField> fields;
  for (StageRun<Exec, T>* run : runs_) {
    run->finish_gather();
    for (StateField& field : run->stage().computed_fields()) fields.push_back(std::move(field));
  }
  return fields;
}

template <class Exec, class T>
std::uint64_t StageAudit<Exec, T>::digest(const StateField& field) {
  const PinAll pin(field.pager, field.data, field.bytes(), Pager::Need::reading);
  const std::size_t width = std::min<std::size_t>(size_of(field.dtype), sizeof(std::uint32_t));
  std::uint64_t result = 0;
  const Vector<std::uint64_t, Host> to(&result, 1);
  if (field.on_device) {
    digest_bits<Exec>(exec_, field.data, field.bytes(), width, one_);
    Kokkos::deep_copy(exec_, to, one_);
  } else {
    exec_.fence("digest");
    digest_bits<Host>(Host(), field.data, field.bytes(), width, to);
    Host().fence("digest");
  }
  exec_.fence("digest");
  return result;
}

template <class Exec, class T>
void StageAudit<Exec, T>::flip(const StateField& field, const BitFlip& flip) {
  exec_.fence("flip");
  const auto memory = write_to(field);
  const std::size_t width = std::min<std::size_t>(size_of(field.dtype), sizeof(std::uint32_t));
  if (field.on_device)
    flip_bits<Exec>(exec_, memory.view(), field.bytes(), width, flip.place, flip.bits);
  else
    flip_bits<Host>(Host(), memory.view(), field.bytes(), width, flip.place, flip.bits);
  Kokkos::fence("flip");
}

#define SESTINA_STAGE_AUDIT(Exec, T) template class StageAudit<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_STAGE_AUDIT)

}  // namespace sestina
