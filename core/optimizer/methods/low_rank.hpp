// GaLore and APOLLO share a projector P of one side, and Adam's moments of the gradient G projected by it, which a
// refresh of the projector leaves as they are. A projector in 8 or 4 bits (Q-GaLore, arXiv 2407.08296) is decoded into
// the stream's workspace for each update, its first one too: the values in use are those that a checkpoint holds.
#pragma once
#include <cmath>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/low_rank_options.hpp"
#include "core/optimizer/methods/two_sided.hpp"
#include "kernels/base/random.hpp"
#include "kernels/model/quantise.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"

namespace sestina {

struct LowRankRule {
  AdamRule adam;
  double scale = 1;  // factor on the direction
  bool right = true;
  bool decay_first = false;
  bool given = false;                // the projector is not renewed
  BasisForm form = BasisForm::gram;  // source of a new one
  std::uint64_t rounding = 0;        // stream of random numbers for the rounding of coded weights
  std::int64_t refresh_every = 200;

  LowRankRule(const LowRankOptions& o, const MatrixOptions& options, const MatrixShape& shape)
      : adam{o.beta1, o.beta2, o.eps},
        scale(o.scale),
        right(low_rank_of(o, std::int64_t(shape.rows), std::int64_t(shape.cols)).right),
        decay_first(o.decay_order == Order::before),
        given(o.given),
        form(o.form),
        rounding(stream_of(options.run_seed, shape.path + "/rounding")),
        refresh_every(options.refresh_every) {}
  // Returns the correction of both moments after t updates.
  double bias_correction(std::int64_t t) const {
    const auto n = static_cast<double>(t);
    return std::sqrt(1 - std::pow(adam.beta2, n)) / (1 - std::pow(adam.beta1, n));
  }
};

// Memory that a projector is decoded into.
template <class Space>
struct ProjectorScratch {
  ProjectorScratch(Workspace<Space>& workspace, LowRank::Size size)
      : values(workspace.template take<float>(size.rows, size.cols)) {}
  Matrix<float, Space> values;
};

template <class Space>
class Projector {
 public:
  Projector(MatrixState<Space>& state, const LowRankOptions& options, const MatrixShape& shape) {
    const LowRank low = low_rank_of(options, std::int64_t(shape.rows), std::int64_t(shape.cols));
    size_ = low.projector(shape.rows, shape.cols);
    if (!options.has_coded_projector()) {
      whole_ = state.array("projector");
      return;
    }
    bits_ = static_cast<int>(options.projector_bits);
    const Vector<float, Space> scales = state.vector("projector_scales");
    const std::size_t n = code_bytes(size(), bits_);
    std::uint8_t* const codes = state.codes("projector_codes").data();
    coded_ = {projector_group, bits_, Vector<std::uint8_t, Space>(codes, n),
              Vector<std::uint8_t, Space>(codes + n, scales.extent(0)), scales};
  }
  std::size_t size() const { return size_.rows * size_.cols; }

  // Returns where it is read and renewed in an update: the state itself, or memory of the stream.
  StateArray<Space> place(Stream<Space>& stream) const {
    return bits_ == 32 ? whole_ : StateArray<Space>(ProjectorScratch<Space>(stream.workspace, size_).values, nullptr);
  }
  void keep(const Space& exec, const StateArray<Space>& place) const {
    if (bits_ < 32) group_quantise<Space, float>(exec, flat<const float, Space>(place.read()), true, coded_);
  }
  void recall(const Space& exec, const StateArray<Space>& place) const {
    if (bits_ == 32) return;
    const auto to = place.write();
    group_dequantise<Space, float>(exec, coded_, flat<float, Space>(to.view()));
  }

 private:
  LowRank::Size size_;  // (r, n) on the right, (m, r) on the left
  int bits_ = 32;
  StateArray<Space> whole_;
  GroupCodes<Space, float> coded_;
};

template <class Space>
struct LowRankMoments {
  LowRankMoments(MatrixState<Space>& state, bool right, std::size_t block = 0) : right(right) {
    if (!state.has("momentum_codes")) {
      momentum = state.matrix("momentum");
      second_moment = state.matrix("second_moment");
      size = {momentum.extent(0), momentum.extent(1)};
      return;
    }
    coded = {block, state.codes("momentum_codes"), state.codes("second_moment_codes"), state.matrix("momentum_scales"),
             state.matrix("second_moment_scales")};
    size = {coded.m.extent(0), coded.m.extent(1)};
  }

  bool right;
  LowRank::Size size;  // size of the projected gradient
  Matrix<float, Space> momentum, second_moment;
  CodedMoments<Space> coded;  // in the place of both, in 8 bits

  // Computes small = alpha G P^T, or alpha P^T G.
  void project(Stream<Space>& stream, float alpha, Matrix<const float, Space> projector,
               Matrix<const float, Space> gradient, Matrix<float, Space> small) const {
    if (right)
      multiply<Space>(stream, Op::none, Op::transpose, alpha, gradient, projector, 0, small);
    else
      multiply<Space>(stream, Op::transpose, Op::none, alpha, projector, gradient, 0, small);
  }
  // Computes whole = small P, or P small.
  void project_back(Stream<Space>& stream, Matrix<const float, Space> projector, Matrix<const float, Space> small,
                    Matrix<float, Space> whole) const {
    if (right)
      multiply<Space>(stream, Op::none, Op::none, 1, small, projector, 0, whole);
    else
      multiply<Space>(stream, Op::none, Op::none, 1, projector, small, 0, whole);
  }
  void adam(Stream<Space>& stream, const AdamRule& rule, Matrix<const float, Space> small,
            Matrix<float, Space> direction) const {
    if (coded.block > 0)
      return adam_direction<Space>(stream.exec, rule, 1, flat<const float, Space>(small), coded,
                                   flat<float, Space>(direction));
    adam_direction<Space>(stream.exec, rule, 1, flat<const float, Space>(small), flat<float, Space>(momentum),
                          flat<float, Space>(second_moment), flat<float, Space>(direction));
  }
};

}  // namespace sestina
