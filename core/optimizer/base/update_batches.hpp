// Updates of several matrices together. A device is idle while its host launches what is little work for it, and one
// small matrix after another is that: kinds that can (MatrixMaker::batch) update many in the launches of one
// (kernels/optimizer/muon/muon_batch.hpp). A host gains nothing by it, and updates matrix by matrix.
//
// A batch is of whole matrices that lie in memory as they are: those that are copied for their update (packed, or cut
// from longer rows), that move by rules of their own on the update (kernels/optimizer/update_rules.hpp), whose weights
// are codes, or whose state a pager may take away go one by one. Of what is updated in one call, matrices of one wide
// form come together, and as many in one batch as the scratch allows.
#pragma once
#include <algorithm>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/base/stream_scratch.hpp"
#include "kernels/optimizer/batch/flat_batch.hpp"

namespace sestina {

// A matrix that may be updated with others. Its optimizer outlives the batch.
template <class Space>
struct BatchItem {
  OwnedMatrix<Space> matrix;
  TensorRates rates;
  MatrixOptimizer<Space>* optimizer = nullptr;
  bool copied = false;  // for its update

  std::size_t short_side() const { return std::min(matrix.rows(), matrix.cols()); }
  std::size_t long_side() const { return std::max(matrix.rows(), matrix.cols()); }
};

// Returns the numbers of one matrix; lr and weight_decay of those that all share are factors of its rates.
inline UpdateNumbers with_rates(UpdateNumbers shared, const TensorRates& rates) {
  shared.lr *= rates.lr;
  shared.weight_decay *= rates.weight_decay;
  return shared;
}

// Returns what an item says of its matrix, as one of a batch of element-wise passes.
template <class Space>
FlatMatrix flat_matrix(const BatchItem<Space>& item) {
  FlatMatrix one;
  one.gradient = item.matrix.gradient.data();
  one.master = item.matrix.master.data();
  one.weight = item.matrix.weight.data();
  one.lr = item.rates.lr;
  one.weight_decay = item.rates.weight_decay;
  one.rows = static_cast<std::uint32_t>(item.matrix.rows());
  one.cols = static_cast<std::uint32_t>(item.matrix.cols());
  one.apart = item.matrix.cols();
  return one;
}

// Returns whether a matrix (rows, cols) whose state has these fields may be in a batch of products with its factors:
// all of it stays on the device, no product has operands in bf16, which are rounded one by one, and no side is so long
// that a device computes symmetric products in tiles: such a matrix keeps it busy by itself.
inline bool may_be_grouped(const std::vector<FieldSize>& fields, MatmulPrecision precision, std::size_t rows,
                           std::size_t cols) {
  constexpr std::size_t tiled = 8192;  // Gemm::symmetric
  if (precision == MatmulPrecision::bf16 || rows * cols == 0 || std::max(rows, cols) >= tiled) return false;
  return std::all_of(fields.begin(), fields.end(), [](const FieldSize& field) { return field.tier == Tier::device; });
}

// Returns the numbers below n in groups of one key_of(i), in the order in which keys come first.
template <class KeyOf>
std::vector<std::vector<std::size_t>> groups_by(std::size_t n, const KeyOf& key_of) {
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < n; ++i) {
    const auto found = std::find_if(groups.begin(), groups.end(),
                                    [&](const auto& group) { return key_of(group.front()) == key_of(i); });
    (found == groups.end() ? groups.emplace_back() : *found).push_back(i);
  }
  return groups;
}

// Makes the updates one after another.
template <class Space>
void step_each(Stream<Space>& stream, const UpdateNumbers& shared, const std::vector<BatchItem<Space>>& items) {
  for (const BatchItem<Space>& item : items) item.optimizer->step(stream, with_rates(shared, item.rates), item.matrix);
}

template <class Space>
class UpdateBatch {
 public:
  virtual ~UpdateBatch() = default;
  // Makes one update of all of its matrices; lr and weight_decay of the numbers are factors of each one's rates.
  // From its second call on it fences only where the updates of its kind do, and allocates nothing.
  virtual void step(Stream<Space>&, const UpdateNumbers&) = 0;
};

// Returns a batch of matrices that have all a rounded weight or none, in the order of their wide form.
template <class Space>
std::unique_ptr<UpdateBatch<Space>> make_update_batch(const MatrixOptions&, const std::vector<BatchItem<Space>>&);

// Returns the bytes of the stream's workspace that a matrix adds to those of its batch, of the type of its products; 0:
// it is updated alone. computes_bf16: it has a rounded weight; without knowing, false is the larger number.
template <class Space>
std::size_t scratch_in_batch(const MatrixOptions&, bool computes_bf16, std::size_t rows, std::size_t cols, bool copied);

// How the matrices of one call are updated; the numbers are those of the items.
template <class Space>
struct BatchedRange {
  std::vector<std::unique_ptr<UpdateBatch<Space>>> batches;
  std::vector<std::size_t> together, alone;
};

// Forms the batches of items [begin, end), each of which takes at most so many bytes of the workspace. Fences.
template <class Space>
BatchedRange<Space> batch_range(const MatrixOptions& options, const std::vector<BatchItem<Space>>& items,
                                std::size_t begin, std::size_t end, std::size_t most = most_batch_scratch) {
  BatchedRange<Space> range;
  const auto scratch_of = [&](std::size_t i) {
    const BatchItem<Space>& item = items[i];
    const bool in_place = item.matrix.coded.rows == 0 && item.optimizer->state().pages().empty();
    const std::size_t bytes = scratch_in_batch<Space>(options, item.matrix.computes_bf16(), item.matrix.rows(),
                                                      item.matrix.cols(), item.copied);
    return in_place && bytes <= most ? bytes : 0;
  };
  for (std::size_t i = begin; i < end; ++i) (scratch_of(i) > 0 ? range.together : range.alone).push_back(i);
  const auto form_of = [&](std::size_t i) {
    return std::tuple(items[i].matrix.computes_bf16(), items[i].short_side(), items[i].long_side());
  };
  std::stable_sort(range.together.begin(), range.together.end(),
                   [&](std::size_t a, std::size_t b) { return form_of(a) < form_of(b); });
  std::vector<BatchItem<Space>> next;
  std::size_t taken = 0;
  for (const std::size_t i : range.together) {
    const std::size_t bytes = scratch_of(i);
    if (!next.empty() &&
        (taken + bytes > most || next.back().matrix.computes_bf16() != items[i].matrix.computes_bf16())) {
      range.batches.push_back(make_update_batch<Space>(options, std::exchange(next, {})));
      taken = 0;
    }
    next.push_back(items[i]);
    taken += bytes;
  }
  if (!next.empty()) range.batches.push_back(make_update_batch<Space>(options, next));
  return range;
}

}  // namespace sestina
