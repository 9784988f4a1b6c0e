#include "parallel/stage/rank_diagnostics.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "kernels/base/random.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {
namespace {

double length_of(std::span<const double> x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  return std::sqrt(squares);
}

template <class Exec, class T>
std::vector<OwnedTensor<Exec, T>> counted_parts(const std::vector<StageRun<Exec, T>*>& stages) {
  std::vector<OwnedTensor<Exec, T>> all;
  for (StageRun<Exec, T>* stage : stages)
    for (OwnedTensor<Exec, T>& tensor : stage->exchanges().kept_tensors())
      if (tensor.saved) all.push_back(std::move(tensor));
  return all;
}

}  // namespace

// Start vectors are those that one rank would take, whose tensors follow one another through all stages.
template <class Exec, class T>
RankDiagnostics<Exec, T>::RankDiagnostics(const Exec& exec, const std::vector<StageRun<Exec, T>*>& stages,
                                          const Plan& plan)
    : exec_(exec), parts_(counted_parts<Exec, T>(stages)), before_(parts_), gemm_(exec) {
  std::map<std::string, std::vector<std::size_t>> parts;
  std::size_t longest = 0, largest = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts[parts_[i].spec.name].push_back(i);
    longest =
        std::max({longest, static_cast<std::size_t>(parts_[i].rows()), static_cast<std::size_t>(parts_[i].cols())});
    largest = std::max(largest, parts_[i].master.size());
  }
  std::uint64_t next = 0;
  for (const StagePlan& stage : plan.stages) {
    const auto run = std::find_if(stages.begin(), stages.end(), [&stage](const StageRun<Exec, T>* one) {
      return one->plan().layers.begin == stage.layers.begin && one->plan().layers.end == stage.layers.end;
    });
    MeasuredStage measured;
    for (const TensorSpec& spec : stage.specs) {
      if (!spec.trainable) continue;
      measured.tensors.push_back({spec, parts[spec.name], measured.right.size(), measured.left.size()});
      for (std::int64_t i = 0; i < spec.cols; ++i)
        measured.right.push_back(static_cast<double>(static_cast<A>(normal(0, next++))));
      measured.left.resize(measured.left.size() + static_cast<std::size_t>(spec.rows));
    }
    if (run == stages.end()) continue;
    measured.run = *run;
    stages_.push_back(std::move(measured));
  }
  in_ = decltype(in_)("sestina::diagnostics_in", longest);
  out_ = decltype(out_)("sestina::diagnostics_out", longest);
  workspace_ = Workspace<Exec>(bytes_of<SumScratch<Exec>, Exec>(largest));
}

template <class Exec, class T>
void RankDiagnostics<Exec, T>::add_squares(const Measured& measured, double& weight, double& update) {
  for (const std::size_t i : measured.parts) {
    weight += sum_of_squares<Exec, A>(exec_, Vector<const A, Exec>(parts_[i].master), workspace_);
    update += sum_of_squares<Exec, A>(exec_, Vector<const A, Exec>(before_.movement(exec_, i)), workspace_);
  }
}

// Adds W in, or W^T in, of a part of a tensor to out.
template <class Exec, class T>
void RankDiagnostics<Exec, T>::multiply_part(Op op, const OwnedTensor<Exec, T>& part, const double* in, double* out) {
  const auto rows = static_cast<std::size_t>(part.rows()), cols = static_cast<std::size_t>(part.cols());
  const bool plain = op == Op::none;
  const std::size_t read = plain ? cols : rows, written = plain ? rows : cols;
  in += plain ? part.col_begin : part.row_begin;
  out += plain ? part.row_begin : part.col_begin;
  const Vector<A, Exec> x(in_.data(), read), y(out_.data(), written);
  const auto host_x = Kokkos::create_mirror(Kokkos::HostSpace(), x),
             host_y = Kokkos::create_mirror(Kokkos::HostSpace(), y);
  for (std::size_t k = 0; k < read; ++k) host_x(k) = static_cast<A>(in[k]);
  Kokkos::deep_copy(exec_, x, host_x);
  gemm_.template operator()<A, A>(op, Op::none, A(1), Matrix<const A, Exec>(part.master.data(), rows, cols),
                                  Matrix<const A, Exec>(x.data(), read, 1), A(0),
                                  Matrix<A, Exec>(y.data(), written, 1));
  Kokkos::deep_copy(exec_, host_y, y);
  exec_.fence("diagnostics");
  for (std::size_t k = 0; k < written; ++k) out[k] += static_cast<double>(host_y(k));
}

// Sets out to the products of all matrices of the stage, on all of its ranks.
template <class Exec, class T>
void RankDiagnostics<Exec, T>::multiply(Op op, const MeasuredStage& stage, const std::vector<double>& in,
                                        std::vector<double>& out) {
  std::fill(out.begin(), out.end(), 0.0);
  const bool plain = op == Op::none;
  for (const Measured& tensor : stage.tensors)
    if (!tensor.spec.is_vector() && !tensor.ended)
      for (const std::size_t i : tensor.parts)
        multiply_part(op, parts_[i], &in[plain ? tensor.right : tensor.left], &out[plain ? tensor.left : tensor.right]);
  stage.run->exchanges().ranks().all_reduce(out.data(), out.size(), Reduction::sum);
}

template <class Exec, class T>
void RankDiagnostics<Exec, T>::find_norms(MeasuredStage& stage) {
  for (int i = 0; i < power_iterations; ++i) {
    for (Measured& tensor : stage.tensors) {
      const std::span<double> x(&stage.right[tensor.right], static_cast<std::size_t>(tensor.spec.cols));
      const double norm = length_of(x);
      tensor.ended = !(norm > 0);
      if (tensor.ended) tensor.sigma = norm;
      for (double& value : x) value /= tensor.ended ? 1 : norm;
    }
    multiply(Op::none, stage, stage.right, stage.left);
    for (Measured& tensor : stage.tensors)
      if (!tensor.ended)
        tensor.sigma = length_of({&stage.left[tensor.left], static_cast<std::size_t>(tensor.spec.rows)});
    multiply(Op::transpose, stage, stage.left, stage.right);
  }
}

template <class Exec, class T>
std::vector<UpdateDiagnostics::Tensor> RankDiagnostics<Exec, T>::after_update() {
  std::vector<Tensor> all;
  for (MeasuredStage& stage : stages_) {
    stage.run->complete();
    Communicator& ranks = stage.run->exchanges().ranks();
    std::vector<double> squares(2 * stage.tensors.size(), 0);
    for (std::size_t i = 0; i < stage.tensors.size(); ++i)
      add_squares(stage.tensors[i], squares[2 * i], squares[2 * i + 1]);
    ranks.all_reduce(squares.data(), squares.size(), Reduction::sum);
    find_norms(stage);
    for (std::size_t i = 0; i < stage.tensors.size(); ++i) {
      const Measured& tensor = stage.tensors[i];
      const auto n = static_cast<double>(tensor.spec.elements());
      const double norm = tensor.spec.is_vector() ? std::sqrt(squares[2 * i]) : tensor.sigma;
      if (ranks.rank() == 0)
        all.push_back({tensor.spec.name, std::sqrt(squares[2 * i] / n), std::sqrt(squares[2 * i + 1] / n), norm});
    }
  }
  return all;
}

#define SESTINA_RANK_DIAGNOSTICS(Exec, T) template class RankDiagnostics<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_RANK_DIAGNOSTICS)

}  // namespace sestina
