#include "core/hessian_norm.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace sestina {

namespace {

double root_of_squares(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

std::uint64_t stream(std::uint64_t seed, const char* what, int number) {
  return stream_of(seed, what + std::to_string(number));
}

// Adds up the n numbers that values_of(k, values) makes of each vector k, in the order of the vectors, each of which
// one rank takes.
template <class Values>
std::vector<double> sum_over_vectors(int vectors, std::size_t n, const VectorRanks& ranks, const Values& values_of) {
  constexpr std::size_t piece = 1 << 18;  // numbers of each rank that are brought at a time
  std::vector<double> sums(n, 0.0), values(n), all;
  for (int first = 0; first < vectors; first += ranks.size) {
    const int taken = std::min(ranks.size, vectors - first);
    if (ranks.rank < taken) values_of(first + ranks.rank, values);
    for (std::size_t begin = 0; begin < n; begin += piece) {
      const std::size_t count = std::min(piece, n - begin);
      const double* from = &values[begin];
      if (ranks.size > 1) {
        all.resize(count * static_cast<std::size_t>(ranks.size));
        ranks.gather(from, count, all.data());
        from = all.data();
      }
      for (int rank = 0; rank < taken; ++rank, from += count)
        for (std::size_t i = 0; i < count; ++i) sums[begin + i] += from[i];
    }
  }
  return sums;
}

// Computes x = op(U) x, or x op(V), for the coordinates x of a matrix.
void multiply(Gemm<Host>& gemm, const RotatedCoordinates& m, bool from_left, Op op, std::vector<double>& coordinates,
              std::vector<double>& scratch) {
  const std::size_t n = from_left ? m.rows : m.cols;
  const Matrix<double, Host> rows(coordinates.data() + m.begin, m.rows, m.row_stride > 0 ? m.row_stride : m.cols);
  const Matrix<double, Host> to = Kokkos::subview(rows, Kokkos::ALL, std::pair(std::size_t{0}, m.cols));
  scratch.resize(m.rows * m.cols);
  const Matrix<double, Host> from(scratch.data(), m.rows, m.cols);
  for (std::size_t i = 0; i < m.rows; ++i) std::copy_n(&to(i, 0), m.cols, &from(i, 0));
  const Matrix<const double, Host> q((from_left ? m.left : m.right).data(), n, n);
  if (from_left)
    gemm.operator()<double, double>(op, Op::none, 1.0, q, from, 0.0, to);
  else
    gemm.operator()<double, double>(Op::none, op, 1.0, from, q, 0.0, to);
}

}  // namespace

HessianProducts::HessianProducts(GradientAt gradient, std::vector<double> at, double step)
    : gradient_(std::move(gradient)), at_(std::move(at)), moved_(at_.size()), ahead_(at_.size()), behind_(at_.size()) {
  const double scale = root_of_squares(at_) / std::sqrt(static_cast<double>(at_.size()));
  step_ = step * (scale > 0 ? scale : 1);
}

void HessianProducts::differences(const std::vector<double>& v, double step, std::vector<double>& product) {
  const double norm = root_of_squares(v);
  SESTINA_REQUIRE(v.size() == at_.size() && norm > 0, "a direction of {} numbers, norm {}", v.size(), norm);
  const double h = step / norm;
  for (std::size_t i = 0; i < at_.size(); ++i) moved_[i] = at_[i] + h * v[i];
  gradient_(moved_, ahead_);
  for (std::size_t i = 0; i < at_.size(); ++i) moved_[i] = at_[i] - h * v[i];
  gradient_(moved_, behind_);
  product.resize(at_.size());
  for (std::size_t i = 0; i < at_.size(); ++i) product[i] = (ahead_[i] - behind_[i]) / (2 * h);
}

void HessianProducts::times(const std::vector<double>& v, std::vector<double>& product) {
  differences(v, step_, product);
}

double HessianProducts::error(const std::vector<double>& v) {
  std::vector<double> once, twice;
  differences(v, step_, once);
  differences(v, 2 * step_, twice);
  double change = 0, size = 0;
  for (std::size_t i = 0; i < once.size(); ++i) {
    change += std::abs(twice[i] - once[i]);
    size += std::abs(once[i]);
  }
  return size > 0 ? change / (3 * size) : 0;
}

void rotate_coordinates(Gemm<Host>& gemm, const std::vector<RotatedCoordinates>& rotated, bool back,
                        std::vector<double>& coordinates) {
  std::vector<double> scratch;
  for (const RotatedCoordinates& m : rotated) {
    if (!m.left.empty()) multiply(gemm, m, true, back ? Op::transpose : Op::none, coordinates, scratch);
    if (!m.right.empty()) multiply(gemm, m, false, back ? Op::none : Op::transpose, coordinates, scratch);
  }
  Host().fence("rotated");
}

void cauchy_vector(std::uint64_t seed, int number, std::vector<double>& v) {
  const std::uint64_t key = stream(seed, "cauchy ", number);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::tan(std::numbers::pi * (uniform(key, i) - 0.5));
}

std::vector<double> hessian_row_norms(HessianProducts& products, Gemm<Host>& gemm,
                                      const std::vector<RotatedCoordinates>& rotated, int vectors, std::uint64_t seed,
                                      const VectorRanks& ranks) {
  const std::size_t n = products.size();
  std::vector<double> v(n);
  const auto logs_of = [&](int k, std::vector<double>& logs) {
    cauchy_vector(seed, k, v);
    rotate_coordinates(gemm, rotated, false, v);
    products.times(v, logs);
    rotate_coordinates(gemm, rotated, true, logs);
    for (double& value : logs) value = std::log(std::abs(value));  // log 0 makes the mean 0, as it is
  };
  std::vector<double> logs = sum_over_vectors(vectors, n, ranks, logs_of);
  const double count = vectors, unbiased = std::pow(std::cos(std::numbers::pi / (2 * count)), count);
  for (double& row : logs) row = std::exp(row / count) * unbiased;
  return logs;
}

double hessian_frobenius(HessianProducts& products, int vectors, std::uint64_t seed, const VectorRanks& ranks) {
  std::vector<double> r(products.size()), product;
  const auto squares_of = [&](int k, std::vector<double>& squares) {
    const std::uint64_t key = stream(seed, "signs ", k);
    for (std::size_t i = 0; i < r.size(); ++i) r[i] = uniform(key, i) < 0.5 ? -1 : 1;
    products.times(r, product);
    squares[0] = std::pow(root_of_squares(product), 2);
  };
  return std::sqrt(sum_over_vectors(vectors, 1, ranks, squares_of)[0] / vectors);
}

LossGradient::LossGradient(const Host& exec, const ModelConfig& config, int micro_batch, int sequence,
                           const std::vector<FixedBatch>& batches)
    : exec_(exec),
      model_(exec_, config, all_layers(config), micro_batch, sequence, false, false),
      arena_(model_.specs(), true),
      weights_(weights_of<Host, double>(config, all_layers(config), arena_)),
      gradients_(gradients_of<Host, double>(config, all_layers(config), arena_)),
      slot_(model_.make_slot()) {
  for (const TensorSpec& spec : specs()) size_ += static_cast<std::size_t>(spec.elements());
  std::int64_t counted = 0;
  for (const FixedBatch& batch : batches) {
    batches_.push_back(std::make_unique<TokenSlot<Host>>(micro_batch, sequence, 1));
    batches_.back()->load(exec_, {batch.tokens.data(), batch.first_key.empty() ? nullptr : batch.first_key.data()});
    const Vector<const std::int32_t, Host> targets = batches_.back()->targets();
    counted += std::count_if(targets.data(), targets.data() + targets.size(), [](std::int32_t t) { return t >= 0; });
  }
  SESTINA_REQUIRE(counted > 0, "{} batches without a token to predict", batches.size());
  scale_ = 1 / static_cast<double>(counted);
}

double LossGradient::operator()(const std::vector<double>& at, std::vector<double>& gradient) {
  SESTINA_REQUIRE(at.size() == size_, "{} numbers for {} weights", at.size(), size_);
  const double* from = at.data();
  for (std::size_t i = 0; i < arena_.size(); ++i) {
    const Vector<double, Host> master = arena_.master(i);
    std::copy_n(from, master.size(), master.data());
    from += master.size();
  }
  double loss = 0;
  for (std::size_t b = 0; b < batches_.size(); ++b) {
    const TokenSlot<Host>& batch = *batches_[b];
    model_.forward(weights_, slot_, batch.inputs(), batch.first_key(), hooks_);
    model_.loss_and_backward(weights_, slot_, batch.targets(), scale_, b > 0, gradients_, hooks_);
    loss += model_.loss_sum(slot_);  // fences
  }
  gradient.resize(size_);
  double* to = gradient.data();
  for (std::size_t i = 0; i < arena_.size(); ++i) {
    const Vector<double, Host> part = arena_.gradient(i);
    to = std::copy_n(part.data(), part.size(), to);
  }
  return loss * scale_;
}

}  // namespace sestina
