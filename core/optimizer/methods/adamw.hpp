// AdamW or another elementwise rule (core/deck/element_rule.hpp) over all owned tensors, in fused passes: tensors that
// share their numbers are updated by one kernel. AdamW's moments of matrices and rotations may be kept in 8 bits, in
// blocks that lie in the rows of a tensor, or in a rotation as in one row; these tensors have a kernel for themselves.
// State that lies elsewhere between its uses (optimizer.state_tier) is updated piece by piece (paged_bytes.hpp), each a
// kernel by itself. Decay acts on tensors with two dimensions only (embedding and head included), unless a group says
// otherwise. Where a tensor's state starts over (TensorSpec::reset_every) it and the step count do so before the first
// update after it; the count follows from t, so that it needs no place in a checkpoint, and from the early merges of
// its layer, which a checkpoint has (Stage::merge_fields). An average (schedule-free) starts over at the weights.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "core/memory/pager.hpp"
#include "core/memory/state_field.hpp"
#include "core/optimizer/base/owned_tensor.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/update_record.hpp"
#include "kernels/optimizer/element_rules.hpp"

namespace sestina {

template <class Exec, class T>
class AdamW {
 public:
  // State (element_fields) is created here, zero, before the first step. nonfinite: see
  // kernels/optimizer/matrix_update.hpp.
  AdamW(const Exec&, std::vector<OwnedTensor<Exec, T>>, const OptimizerOptions&, double* nonfinite = nullptr);
  ~AdamW();  // waits for the pager, which may still move its memory
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  // Makes update number t (from 1) with factor times each tensor's peak rate; gradients are multiplied by
  // gradient_scale.
  void step(const Exec&, std::int64_t t, double factor, double gradient_scale);
  // Leaves out update number t; moments that start over before it still do.
  void withhold(const Exec&, std::int64_t t);

  // Lets state start over after early merges as well, which the vector has; it must outlive this.
  void follow_merges(const LayerMerges* early) { early_ = early; }

  // An average starts at the weights as they are, and swap_average exchanges it with them: the model is evaluated at
  // it. Nothing happens where the rule has none.
  void start_average(const Exec&);
  void swap_average(const Exec&);

  // Returns "/optimizer/<HF name>/momentum" and so on for the fields of the rule, in spec order, in the shape of the
  // tensor. In 8 bits these are ".../momentum_codes", of that shape too, and ".../momentum_scales", one for each block;
  // the same for the second moment.
  std::vector<StateField> state() const;
  std::vector<UpdateRecord> records() const;  // of each tensor, without measures
  // Lets state lie with the pager between its uses, from its open() on.
  void page_to(const std::shared_ptr<Pager>&);

 private:
  struct Place {  // place of a tensor's state in each of state_, or in codes_ and scales_; unused where it is paged
    bool coded = false;
    std::size_t at = 0, scales_at = 0;
  };
  struct Run {  // tensors that are adjacent and share their numbers, or a piece of one whose state is paged
    OwnedTensor<Exec, T> tensor;
    Place place;
    TensorRates rates;
    Pages pages = {};        // by field; empty: its state is always in memory
    std::int64_t calls = 0;  // updates made
    bool grouped = false;    // updated in one launch with others
    bool as(const OwnedTensor<Exec, T>& other, const TensorRates& r) const {
      const TensorSpec &own = tensor.spec, &spec = other.spec;
      return rates == r && own.reset_every == spec.reset_every && own.reset_phase == spec.reset_phase &&
             own.eps_on_corrected == spec.eps_on_corrected && own.resets_early == spec.resets_early &&
             (!spec.resets_early || own.layer == spec.layer);
    }
    bool goes_with(const Run& other) const { return place.coded == other.place.coded && as(other.tensor, other.rates); }
  };
  // Runs that share their numbers and always have their state in memory: one launch updates them all.
  struct Group {
    std::vector<std::size_t> runs;
    Kokkos::View<ElementRun<T>*, typename Exec::memory_space> table;
    Kokkos::View<CodedRun<T>*, typename Exec::memory_space> coded;  // in place of it for moments in 8 bits
    std::size_t pieces = 0;                                         // of coded runs: blocks
  };
  struct Moment {  // the update that is made, and the updates that a run's state has seen with it
    std::int64_t t = 1, count = 1;
    double factor = 1, gradient_scale = 1;
  };
  std::int64_t count_at(const Run& run, std::int64_t t) const {
    const TensorSpec& spec = run.tensor.spec;
    return updates_of_state(updates_of_state(spec, t), t, spec.resets_early ? spec.layer : -1, early_);
  }
  // Return the factors mu of Nesterov's look-ahead: mu_t, and the product of all up to t.
  double look_ahead(std::int64_t t) const;
  double product_to(std::int64_t t);

  void add_to_runs(const OwnedTensor<Exec, T>&, const Place&, const TensorRates&);
  void add_pieces(const OwnedTensor<Exec, T>&, const Place&, const TensorRates&, const std::vector<FieldSize>&);
  void make_groups();
  Moment moment_of(const Run&, std::int64_t t, double factor, double gradient_scale) const;
  ElementRun<T> elements_of(const Run&) const;
  CodedRun<T> codes_of(const Run&) const;
  // Updates runs that share the numbers of the first one by the rule.
  template <class Runs>
  void update(const Exec&, const Moment&, const Run& first, const Runs&);
  template <class Step>
  Step element_step(const Moment&, const Run&) const;  // the numbers that all rules have
  AdamWStep adamw_step(const Moment&, const Run&);
  AdEMAMixStep ademamix_step(const Moment&, const Run&) const;
  ScheduleFreeStep schedule_free_step(const Moment&, const Run&) const;
  double bias_correction2(const Moment&, const Run&) const;
  void forget(const Exec&, const Run&);
  Vector<Acc<T>, Exec> state_of(const Run& run, std::size_t field) const {
    Acc<T>* const at = run.pages.empty() ? state_[field].data() + run.place.at
                                         : reinterpret_cast<Acc<T>*>(run.pages[field].memory.get());
    return Vector<Acc<T>, Exec>(at, run.tensor.gradient.size());
  }
  CodedMoments<Exec> coded(const Run&) const;
  void add_coded_state(const Run&, std::vector<StateField>&) const;

  using Storage = Kokkos::View<Acc<T>*, typename Exec::memory_space>;

  AdamWOptions options_;
  UpdateSchedule schedule_;
  bool cautious_;
  double* nonfinite_;
  std::size_t block_;  // columns
  std::vector<OwnedTensor<Exec, T>> tensors_;
  std::vector<Place> places_;        // by tensor
  std::vector<std::size_t> run_of_;  // by tensor; the first of its pieces
  std::vector<Run> runs_;
  std::vector<Group> groups_;
  std::vector<std::string> fields_;  // of the rule
  std::array<Storage, 3> state_;     // by field
  Kokkos::View<std::uint8_t*, typename Exec::memory_space> codes_;
  Kokkos::View<float*, typename Exec::memory_space> scales_;
  void* queue_;                         // of the space that updates
  const LayerMerges* early_ = nullptr;  // null: no layer is merged early
  std::shared_ptr<Pager> pager_;        // null: all state is always in memory
  std::int64_t product_of_ = 0;         // mu_1 ... mu_(product_of_) is product_
  double product_ = 1;
};

}  // namespace sestina
