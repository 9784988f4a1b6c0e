#include "parallel/stage/stage_audit.hpp"

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

// Deals the flip out to the stage that has its tensor.
template <class Exec, class T>
void StageAudit<Exec, T>::begin_passes(std::optional<int> digests, const std::optional<BitFlip>& flip) {
  std::uint64_t tensor = flip ? flip->tensor % names_.size() : 0;
  bool is_dealt = !flip;
  for (auto& of_stage : digests_) {
    const bool here = !is_dealt && tensor < of_stage->size();
    std::optional<BitFlip> own = here ? flip : std::nullopt;
    if (own) own->tensor = tensor;
    of_stage->begin(digests, own);
    is_dealt = is_dealt || here;
    if (!is_dealt) tensor -= of_stage->size();
  }
}

template <class Exec, class T>
void StageAudit<Exec, T>::compute_again(const BatchView& batch, double gradient_scale) {
  runs_.front()->load(ForwardStage::evaluation, batch);
  for (StageRun<Exec, T>* run : runs_) run->forward_again();
  for (std::size_t i = runs_.size(); i-- > 0;) runs_[i]->backward_again(gradient_scale);
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
