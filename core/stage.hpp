// A range of layers on one rank: weights, gradients, optimizer of what the rank owns of them, and the passes over them.
// It holds no batch and no activations (core/slot_pool.hpp) and knows neither files nor ranks: the exchanges between
// ranks are attached to it in parallel/stage.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "core/layout/accumulation_tree.hpp"
#include "core/layout/plan.hpp"
#include "core/layout/rank_layout.hpp"
#include "core/model/formed_weights.hpp"
#include "core/model/pass_graphs.hpp"
#include "core/model/transformer.hpp"
#include "core/optimizer/expert_loads.hpp"
#include "core/optimizer/gradient_norm.hpp"
#include "core/optimizer/optimizer.hpp"
#include "core/optimizer/qk_clip.hpp"
#include "core/optimizer/router_bias.hpp"
#include "core/slot_pool.hpp"
#include "core/stage_values.hpp"

namespace sestina {

template <class Exec, class T>
class Stage {
 public:
  // Makes the layers of the range; the layout says what the rank holds of their tensors. training false: weights for
  // forward passes alone. The group must outlive it; null: the group of one rank. make_optimizer comes before the first
  // update.
  Stage(const Exec&, const ModelPart&, LayerRange, const PassOptions&, const RankLayout&, GroupOps<Exec>*,
        bool training);
  void make_optimizer(const ModelConfig& whole, const OptimizerOptions&,
                      const std::vector<MatrixItem<Exec>>& homed = {},
                      const std::shared_ptr<RefreshWorkers>& workers = {});
  void initialise(std::uint64_t seed);  // weights as functions of (seed, name, index)

  Activations<Exec, T> make_slot(bool split = false) const;  // split: for backward passes in two parts
  // Lets passes in the slot leave their largest attention scores with the clip and count the loads of experts, where
  // make_optimizer() made places for them, as those of a minibatch; and ends it.
  void watch(Activations<Exec, T>& slot, std::int64_t minibatch = 0) const;
  static void ignore(Activations<Exec, T>& slot) {
    for (LayerActivations<Exec, T>& layer : slot.layers) {
      layer.largest_score = {};
      layer.load = {};
    }
  }
  // Runs from the slot's input (the first stage: tokens) to its output. first_key: empty, or as
  // kernels/model/attention.hpp.
  void forward(const Weights<Exec, T>&, Activations<Exec, T>&, const TokenRows<Exec>& tokens,
               Vector<const std::int32_t, Exec> first_key, BlockHooks&);
  // Runs from slot.gradient (the last stage: from targets) to the gradient of its input in the same place. Gradients of
  // gradient_scale times the sum of token losses are added to those of the micro-batches of the step before: in order,
  // or deterministically in a tree. accumulate() is to be called for each finished block.
  void backward(const Weights<Exec, T>&, Activations<Exec, T>&, Vector<const std::int32_t, Exec> targets,
                double gradient_scale, int micro, BlockHooks&);
  // Runs the forward pass and the backward pass of a stage of all layers, which a device starts by one call.
  void forward_and_backward(const Weights<Exec, T>&, Activations<Exec, T>&, const TokenSlot<Exec>&,
                            double gradient_scale, int micro, BlockHooks&);
  // Whether training passes are run so: those of train.graphs, unless somebody looks at what lies between the two.
  bool joins_passes(const BlockHooks& hooks) const {
    return options_.graphs && !hooks.act() && is_last() && range().begin == 0;
  }
  // Makes the next update by what `work` sends to the space, which a device starts by one call where it repeats.
  template <class Work>
  void run_update(const Work& work) {
    if (update_graph_ && optimizer_->repeats())
      update_graph_->run(work);
    else
      work();
  }
  // The backward pass in two calls with other work between them (slots made with split set).
  void backward_input(const Weights<Exec, T>&, Activations<Exec, T>&, Vector<const std::int32_t, Exec> targets,
                      double gradient_scale, int micro, BlockHooks&);
  void backward_weight(const Weights<Exec, T>&, Activations<Exec, T>&, int micro, BlockHooks&);
  // These serve tied embeddings, where first and last stage are two. The last one, before losses and backward passes,
  // binds the head (V, D) and the place of the head's gradient of one micro-batch; the first takes that before a
  // backward pass.
  void bind_head(Matrix<const T, Exec> head, Matrix<Acc<T>, Exec> gradient);
  void begin_embedding_gradient(Matrix<const Acc<T>, Exec> of_head, int micro) const;
  using Part = typename AccumulationTree<Exec, T>::Part;
  // Called when a pass of micro-batch `micro` with these weights has the gradients of a block, or of a part of it.
  void accumulate(const Weights<Exec, T>& weights, int block, int micro, Part part = Part::all) {
    if (tree_) tree_->add(exec_, block, micro, part);
    if (gathers_ && micro + 1 == options_.micros && part != Part::input)
      model_.finish_gradients(weights, block, gradients_);
  }
  // Returns the buffer, laid out as the arena's gradients, that those of micro-batch `micro` of an update are in before
  // they are added to others.
  Acc<T>* own_gradients(int micro) const { return tree_ ? tree_->place(micro) : arena_.gradients().data(); }
  // Says whether passes may add up, in the place of gradients, what these are made of once an update
  // (core/layout/weight_form.hpp: gathers_sums). They do unless told otherwise.
  void gather_sums(bool on);
  // Scales gradients that are owned here, after the sums of squares, by a factor for each tensor.
  void scale_gradients(std::span<const double> by_tensor) const;
  void scale_gradient(std::size_t tensor, double factor) const;  // that of one
  void start_step(std::int64_t minibatch = 0) const {            // forgets what the passes of an earlier one left
    if (qk_clip_) qk_clip_->start_step(exec_, minibatch);
    if (loads_) loads_->start_step(minibatch);
  }

  GradientNorm<Exec, T>& norm() { return *norm_; }
  Optimizer<Exec, T>& optimizer() { return *optimizer_; }
  const Optimizer<Exec, T>& optimizer() const { return *optimizer_; }
  QkClip<Exec, T>* qk_clip() const { return qk_clip_.get(); }              // null without optimizer.qk_clip
  RouterBias<Exec, T>* router_bias() const { return router_bias_.get(); }  // null without model.router_bias_rate
  ExpertLoads* expert_loads() const { return loads_.get(); }               // null without experts

  // Called after update t, with all weights there: where the form of the weights says so, they are merged.
  bool merges_after(std::int64_t t) const { return sestina::merges_after(model_.config(), t); }
  void merge_if_due(std::int64_t t) { sestina::merge_if_due<Exec, T>(model_, weights_, options_.seed, t); }
  // Merges a layer after update t out of turn (model.linear.merge_bound): its optimizer's state starts over.
  void merge_early(int layer, std::int64_t t) {
    sestina::merge_early<Exec, T>(model_, weights_, layer, options_.seed, t);
    early_merges_->at(static_cast<std::size_t>(layer)) = t;
  }
  // Returns "/optimizer/model.layers.<l>/early_merge" of the layers here; none without model.linear.merge_bound.
  std::vector<StateField> merge_fields(bool saved) const;
  // Sets weights in another form than dense, by the names of the dense ones, from whole ones in host memory. Fences.
  void set_dense(const std::string& weight, const Acc<T>* host);

  std::vector<StateField> model_fields() const;    // master weights and frozen ones, "/model/<HF name>[/<part>]"
  std::vector<StateField> trained_fields() const;  // each alone
  std::vector<StateField> frozen_fields() const;
  // Returns the shards that passes compute with, "/weights/<HF name>"; those that are frozen are in model_fields().
  std::vector<StateField> computed_fields() const;
  void weights_changed() { arena_.round_weights(exec_); }  // to be called when master weights were written

  LayerRange range() const { return model_.range(); }
  const PassOptions& options() const { return options_; }
  bool is_last() const { return range().end == static_cast<int>(model_.config().num_hidden_layers); }
  const ModelPart& part() const { return model_.part(); }
  Transformer<Exec, T>& model() { return model_; }
  const Transformer<Exec, T>& model() const { return model_; }
  const Arena<Exec, T>& arena() const { return arena_; }
  const Weights<Exec, T>& weights() const { return weights_; }                   // the newest ones
  const std::vector<OwnedTensor<Exec, T>>& tensors() const { return tensors_; }  // those of which something is owned

 private:
  StateField frozen_field(std::size_t tensor) const;
  template <class Pass>
  void run_pass(const PassKey&, BlockHooks&, const Pass&);
  // Returns where gradients of a micro-batch are written.
  const Gradients<Exec, T>& gradients_for(int micro) const {
    return tree_ && tree_->place(micro) == tree_->place(0) ? waiting_ : gradients_;
  }
  // Returns whether a pass adds to the gradients of the micro-batches before.
  bool adds(int micro) const { return micro > 0 && !tree_ && !arena_.layout().gradients_in_turn; }

  Exec exec_;
  Transformer<Exec, T> model_;
  Arena<Exec, T> arena_;
  Weights<Exec, T> weights_;
  Gradients<Exec, T> gradients_, waiting_;  // empty without training; waiting_: in the first level of the tree
  Kokkos::View<Acc<T>*, typename Exec::memory_space> sums_;  // what gradients_ has sums of, else empty
  bool gathers_ = false;                                     // they are there, and in use
  std::vector<OwnedTensor<Exec, T>> tensors_;
  // Deterministic, with several micro-batches whose gradients stay (else parallel/stage/owned_sums.hpp).
  std::unique_ptr<AccumulationTree<Exec, T>> tree_;
  std::unique_ptr<GradientNorm<Exec, T>> norm_;
  std::unique_ptr<Optimizer<Exec, T>> optimizer_;
  std::unique_ptr<LayerMerges> early_merges_;         // only with model.linear.merge_bound
  std::unique_ptr<QkClip<Exec, T>> qk_clip_;          // only with optimizer.qk_clip
  std::unique_ptr<ExpertLoads> loads_;                // only with experts
  std::unique_ptr<RouterBias<Exec, T>> router_bias_;  // only with model.router_bias_rate
  std::unique_ptr<PassGraphs<>> graphs_;              // only with train.graphs, on a device
  std::unique_ptr<UpdateGraph<>> update_graph_;       // as well, where no state lies in a tier
  PassOptions options_;
};

// Copy between a state field and host memory of its size. Both fence.
template <class Exec>
void copy_to_host(const Exec&, const StateField&, void* host);
template <class Exec>
void copy_from_host(const Exec&, const StateField&, const void* host);

}  // namespace sestina
