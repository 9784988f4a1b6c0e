#include "core/optimizer/base/matrix_optimizer.hpp"

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/stream_scratch.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/model/block_rotations.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"
#include "kernels/optimizer/shaped_move.hpp"

namespace sestina {

namespace {

template <class Space>
std::map<std::string, MatrixMaker<Space>>& makers() {
  static std::map<std::string, MatrixMaker<Space>> all;
  return all;
}

template <class Space>
const MatrixMaker<Space>& maker_of(const std::string& kind) {
  const auto found = makers<Space>().find(kind);
  SESTINA_REQUIRE(found != makers<Space>().end(), "no matrix optimizer \"{}\"", kind);
  return found->second;
}

}  // namespace

template <class Space>
void add_matrix_maker(const std::string& kind, MatrixMaker<Space> maker) {
  makers<Space>()[kind] = maker;
}

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_matrix_optimizer(const Space& exec, const MatrixOptions& options,
                                                              const MatrixShape& shape) {
  return maker_of<Space>(options.kind).make(exec, options, shape);
}

template <class Space>
void declare_update(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows, std::size_t cols,
                    bool copied) {
  const auto frame = workspace.frame();
  if (options.rules.any()) {
    MatrixScratch<Space>(workspace, rows, cols);  // held until the frame ends
    declare<ShapedMoveScratch<Space>>(workspace, rows);
  }
  if (copied) CopiedMatrix<Space>(workspace, rows, cols);  // held until the frame ends
  maker_of<Space>(options.kind).declare_scratch(workspace, options, rows, cols);
}

std::size_t host_scratch(const MatrixOptions& options, const MatrixPart& part) {
  const auto rows = static_cast<std::size_t>(part.rows), cols = static_cast<std::size_t>(part.cols);
  return bytes_taken<Serial>(
      [&](Workspace<Serial>& counter) { declare_update<Serial>(counter, options, rows, cols, part.is_copied()); });
}

template <class Space>
std::unique_ptr<UpdateBatch<Space>> make_update_batch(const MatrixOptions& options,
                                                      const std::vector<BatchItem<Space>>& items) {
  return maker_of<Space>(options.kind).batch(options, items);
}

template <class Space>
std::size_t scratch_in_batch(const MatrixOptions& options, bool computes_bf16, std::size_t rows, std::size_t cols,
                             bool copied) {
  const MatrixMaker<Space>& maker = maker_of<Space>(options.kind);
  if (maker.batch == nullptr || copied || options.rules.any() || options.state_tier != Tier::device) return 0;
  bool batched = false;
  const std::size_t bytes = bytes_taken<Space>([&](Workspace<Space>& counter) {
    batched = maker.declare_in_batch(counter, options, computes_bf16, rows, cols);
  });
  return batched ? bytes : 0;
}

std::size_t device_batch_scratch(const MatrixOptions& options, const MatrixPart& part) {
  return scratch_in_batch<Serial>(options, false, static_cast<std::size_t>(part.rows),
                                  static_cast<std::size_t>(part.cols), part.is_copied());
}

#define SESTINA_MAKE(Space)                                                                                         \
  template std::unique_ptr<MatrixOptimizer<Space>> make_matrix_optimizer<Space>(const Space&, const MatrixOptions&, \
                                                                                const MatrixShape&);                \
  template void declare_update<Space>(Workspace<Space>&, const MatrixOptions&, std::size_t, std::size_t, bool);     \
  template void add_matrix_maker<Space>(const std::string&, MatrixMaker<Space>);                                    \
  template std::unique_ptr<UpdateBatch<Space>> make_update_batch<Space>(const MatrixOptions&,                       \
                                                                        const std::vector<BatchItem<Space>>&);      \
  template std::size_t scratch_in_batch<Space>(const MatrixOptions&, bool, std::size_t, std::size_t, bool);
SESTINA_INSTANTIATE_LANES(SESTINA_MAKE)

// The kind rounds its movement to the weight's place, from which Muon knows the precision of its products, and where
// the rounded weight follows.
template <class Space>
void step_matrix(Stream<Space>& stream, MatrixOptimizer<Space>& optimizer, const UpdateNumbers& now,
                 const OwnedMatrix<Space>& matrix, const UpdateRules& rules) {
  if (!rules.any()) return optimizer.step(stream, now, matrix);
  const auto frame = stream.workspace.frame();
  const Matrix<float, Space> movement = MatrixScratch<Space>(stream.workspace, matrix.rows(), matrix.cols()).values;
  set_zero<Space, float>(stream.exec, flat<float, Space>(movement));
  UpdateNumbers alone = now;
  alone.lr = 1;
  alone.weight_decay = 0;
  optimizer.step(stream, alone, {matrix.name, matrix.gradient, movement, matrix.weight, {}, matrix.rounded_later});
  shaped_move<Space>(stream.exec, {rules, now.lr, now.weight_decay, stream.nonfinite}, movement, matrix.master,
                     matrix.weight, stream.workspace);
}

#define SESTINA_STEP_MATRIX(Space)                                                                \
  template void step_matrix<Space>(Stream<Space>&, MatrixOptimizer<Space>&, const UpdateNumbers&, \
                                   const OwnedMatrix<Space>&, const UpdateRules&);
SESTINA_INSTANTIATE_LANES(SESTINA_STEP_MATRIX)

template <class Space>
void step_skew_block(Stream<Space>& stream, MatrixOptimizer<Space>& optimizer, const UpdateNumbers& numbers,
                     const OwnedMatrix<Space>& packed, std::size_t b) {
  const auto frame = stream.workspace.frame();
  const CopiedMatrix<Space> whole(stream.workspace, b, b);
  const Vector<float, Space> theta = flat<float, Space>(packed.master);
  unpack_skew<Space, float>(stream.exec, flat<const float, Space>(packed.gradient), whole.gradient);
  unpack_skew<Space, float>(stream.exec, theta, whole.master);
  optimizer.step(stream, numbers, {{}, whole.gradient, whole.master, {}});
  pack_skew<Space, float>(stream.exec, whole.master, false, theta);
  scale_values<Space>(stream.exec, 0.5, theta);
}

template <class Space>
void step_cut_block(Stream<Space>& stream, MatrixOptimizer<Space>& optimizer, const UpdateNumbers& numbers,
                    const OwnedMatrix<Space>& block, const UpdateRules& rules) {
  const auto frame = stream.workspace.frame();
  const CopiedMatrix<Space> copy(stream.workspace, block.rows(), block.cols());
  copy_matrix<Space>(stream.exec, false, block.gradient, copy.gradient);
  copy_matrix<Space>(stream.exec, false, block.master, copy.master);
  step_matrix<Space>(stream, optimizer, numbers, {{}, copy.gradient, copy.master, {}}, rules);
  copy_matrix<Space>(stream.exec, false, copy.master, block.master);
  round_matrix<Space>(stream.exec, copy.master, block.weight);
}

#define SESTINA_COPIED_STEPS(Space)                                                                   \
  template void step_skew_block<Space>(Stream<Space>&, MatrixOptimizer<Space>&, const UpdateNumbers&, \
                                       const OwnedMatrix<Space>&, std::size_t);                       \
  template void step_cut_block<Space>(Stream<Space>&, MatrixOptimizer<Space>&, const UpdateNumbers&,  \
                                      const OwnedMatrix<Space>&, const UpdateRules&);
SESTINA_INSTANTIATE_LANES(SESTINA_COPIED_STEPS)

}  // namespace sestina
