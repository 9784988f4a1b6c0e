#include "core/update_meter.hpp"

#include <algorithm>

#include "core/optimizer/base/stream_scratch.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/model/block_rotations.hpp"

namespace sestina {
namespace {

// Memory of the measure of one matrix: its Gram matrix, and a packed one as it is.
template <class Exec>
struct MeterScratch {
  MeterScratch(Workspace<Exec>& workspace, std::size_t gram_side, std::size_t skew_block)
      : gram(workspace.template take<float>(gram_side, gram_side)),
        skew(workspace.template take<float>(skew_block, skew_block)) {}
  Matrix<float, Exec> gram, skew;
};

template <class Exec>
void declare_measure(Workspace<Exec>& workspace, std::size_t gram_side, std::size_t skew_block) {
  const auto frame = workspace.frame();
  MeterScratch<Exec>(workspace, gram_side, skew_block);
  declare<SumScratch<Exec>>(workspace, gram_side * gram_side);
}

}  // namespace

std::size_t host_meter_scratch(std::size_t elements, std::size_t gram_side, std::size_t skew_block) {
  return bytes_taken<Host>([&](Workspace<Host>& counter) {
    declare<SumScratch<Host>>(counter, elements);
    declare_measure<Host>(counter, gram_side, skew_block);
  });
}

template <class Exec, class T>
UpdateMeter<Exec, T>::UpdateMeter(const Exec& exec, const Parts& parts)
    : tensors_(parts.tensors),
      rules_(parts.optimizer.rules),
      schedule_(parts.optimizer.schedule),
      before_(parts.tensors),
      decay_(parts.tensors.size()),
      gemm_(exec, parts.deterministic) {
  std::size_t largest = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    rates_.push_back(rates_of(tensors_[i].spec, parts.optimizer));
    largest = std::max(largest, tensors_[i].master.size());
    if (tensors_[i].sharded && is_matrix_optimized(tensors_[i].spec, parts.optimizer))
      add_shard(i, i < parts.groups.size() && parts.groups[i] ? *parts.groups[i] : parts.group);
  }
  for (const MatrixItem<Exec>& item : parts.matrices) add_matrix(item);
  const std::size_t count = 2 * (tensors_.size() + directions_.size());
  sums_ = decltype(sums_)(Kokkos::view_alloc(exec, "sestina::update_sums"), count);
  workspace_ = Workspace<Exec>(bytes_taken<Exec>([&](Workspace<Exec>& counter) {
    declare<SumScratch<Exec>>(counter, largest);
    for (const Direction& d : directions_) declare_measure<Exec>(counter, d.gram, d.skew_block);
  }));
}

template <class Exec, class T>
void UpdateMeter<Exec, T>::add_matrix(const MatrixItem<Exec>& item) {
  const float* const first = item.matrix.master.data();
  const auto tensor = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& one) {  // or one of its shares
    return one.spec.name == item.tensor && one.master.data() <= first && first < one.master.data() + one.master.size();
  });
  SESTINA_REQUIRE(tensor != tensors_.end(), "{} is of no tensor that is measured", item.matrix.name);
  Direction d;
  d.tensor = static_cast<std::size_t>(tensor - tensors_.begin());
  d.at = static_cast<std::size_t>(item.matrix.master.data() - tensor->master.data());
  d.rows = item.matrix.rows();
  d.cols = item.matrix.cols();
  d.stride = d.rows > 1 ? item.matrix.master.stride(0) : d.cols;
  d.skew_block = item.skew_block;
  d.gram = std::min(item.rows(), item.cols());
  d.side = static_cast<std::int64_t>(d.gram);
  d.op = item.rows() <= item.cols() ? Op::none : Op::transpose;
  directions_.push_back(d);
}

// Products over the cut side are sums over the shards, whichever side is shorter: ||M M^T||_F = ||M^T M||_F.
template <class Exec, class T>
void UpdateMeter<Exec, T>::add_shard(std::size_t tensor, GroupOps<Exec>& group) {
  const OwnedTensor<Exec, T>& shard = tensors_[tensor];
  Direction d;
  d.tensor = tensor;
  d.rows = static_cast<std::size_t>(shard.rows());
  d.cols = d.stride = static_cast<std::size_t>(shard.cols());
  d.op = shard.cols() == shard.spec.cols ? Op::transpose : Op::none;
  d.gram = d.op == Op::transpose ? d.cols : d.rows;
  d.side = std::min(shard.spec.rows, shard.spec.cols);
  d.group = &group;
  d.adds = shard.counted;
  d.told = group.rank() == 0;
  directions_.push_back(d);
}

template <class Exec, class T>
void UpdateMeter<Exec, T>::measure(const Exec& exec, const Direction& d, Vector<Acc<T>, Exec> movement,
                                   Vector<double, Exec> sums) {
  const auto frame = workspace_.frame();
  const MeterScratch<Exec> scratch(workspace_, d.gram, d.skew_block);
  const Vector<float, Exec> elements(scratch.gram.data(), scratch.gram.size());
  Matrix<const float, Exec> direction = scratch.skew;
  if (d.skew_block > 0) {
    unpack_skew<Exec, float>(exec, Vector<const float, Exec>(movement.data() + d.at, d.rows * d.cols), scratch.skew);
  } else {
    const Matrix<const float, Exec> wide(movement.data() + d.at, d.rows, d.stride);
    direction = Kokkos::subview(wide, Kokkos::ALL, std::pair<std::size_t, std::size_t>(0, d.cols));
  }
  if (d.adds)
    gemm_.template symmetric<float, float>(d.op, 1, direction, 0, scratch.gram);
  else
    Kokkos::deep_copy(exec, elements, 0.0f);
  if (d.group) d.group->sum(exec, elements);
  trace_to<Exec, float>(exec, scratch.gram, Kokkos::subview(sums, std::pair<std::size_t, std::size_t>(0, 1)));
  sum_of_squares_to<Exec, float>(exec, elements, workspace_,
                                 Kokkos::subview(sums, std::pair<std::size_t, std::size_t>(1, 2)));
}

template <class Exec, class T>
void UpdateMeter<Exec, T>::after(const Exec& exec, std::int64_t t, double factor) {
  const auto place = [this](std::size_t i) { return Vector<double, Exec>(sums_.data() + i, 1); };
  std::vector<Vector<Acc<T>, Exec>> movements;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const double weight_decay = rules_.hyperball ? 0 : rates_[i].weight_decay * schedule_.decay_factor(t, factor);
    decay_[i] = factor * rates_[i].lr * weight_decay;
    movements.push_back(before_.movement(exec, i, decay_[i], rules_.cautious));
    sum_of_squares_to<Exec, Acc<T>>(exec, movements[i], workspace_, place(2 * i));
    sum_of_squares_to<Exec, Acc<T>>(exec, tensors_[i].master, workspace_, place(2 * i + 1));
  }
  for (std::size_t i = 0; i < directions_.size(); ++i) {
    const Vector<double, Exec> sums(sums_.data() + 2 * (tensors_.size() + i), 2);
    measure(exec, directions_[i], movements[directions_[i].tensor], sums);
  }
}

template <class Exec, class T>
std::vector<UpdateMeasure> UpdateMeter<Exec, T>::read(const Exec& exec) const {
  const auto sums = Kokkos::create_mirror_view(sums_);
  Kokkos::deep_copy(exec, sums, sums_);
  exec.fence("update meter");
  std::vector<UpdateMeasure> all;
  for (std::size_t i = 0; i < tensors_.size(); ++i) all.push_back({sums(2 * i), sums(2 * i + 1), 0, 0, decay_[i]});
  for (std::size_t i = 0; i < directions_.size(); ++i) {
    const Direction& d = directions_[i];
    const double trace = sums(2 * (tensors_.size() + i)), squares = sums(2 * (tensors_.size() + i) + 1);
    const auto side = static_cast<double>(d.side);
    if (!d.told || !(trace > 0)) continue;
    all[d.tensor].defect += side * std::max(0.0, side * squares / (trace * trace) - 1);
    all[d.tensor].sides += side;
  }
  return all;
}

#define SESTINA_UPDATE_METER(Exec, T) template class UpdateMeter<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_UPDATE_METER)

}  // namespace sestina
