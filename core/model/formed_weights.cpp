#include "core/model/formed_weights.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/model/linear_form.hpp"
#include "kernels/base/random.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {
namespace {

template <class Exec, class A>
using Storage = Kokkos::View<A**, Kokkos::LayoutRight, typename Exec::memory_space>;

template <class Exec, class A>
Storage<Exec, A> storage_of(const FormedWeight& w) {
  return Storage<Exec, A>(Kokkos::view_alloc("sestina::staging", Kokkos::WithoutInitializing),
                          static_cast<std::size_t>(w.rows), static_cast<std::size_t>(w.cols));
}

template <class A>
void normalise_rows(std::int64_t rows, std::int64_t cols, std::vector<A>& values) {
  for (std::int64_t row = 0; row < rows; ++row) {
    A* begin = values.data() + row * cols;
    double squares = 0;
    for (std::int64_t j = 0; j < cols; ++j) squares += static_cast<double>(begin[j]) * static_cast<double>(begin[j]);
    const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
    for (std::int64_t j = 0; j < cols; ++j) begin[j] = static_cast<A>(begin[j] * scale);
  }
}

template <class A>
void transpose(std::size_t rows, std::size_t cols, const std::vector<A>& from, std::vector<A>& to) {
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j) to[j * rows + i] = from[i * cols + j];
}

// Replaces normal numbers (rows, cols) by a matrix whose singular values are all 1: Q of their QR decomposition with a
// positive diagonal of R, which is distributed as the factor U V^T of their singular value decomposition, uniformly
// over all such matrices (Mezzadri, How to generate random matrices from the classical compact groups, 2007, section
// 5), for a tenth of its work. The solver has one thread: ranks that draw a weight draw the same one.
template <class A>
void orthonormalise(std::size_t rows, std::size_t cols, std::vector<A>& values) {
  const std::size_t m = std::max(rows, cols), n = std::min(rows, cols);
  const Serial exec;
  Workspace<Serial> workspace(
      bytes_taken<Serial>([&](Workspace<Serial>& counter) { Solver<Serial>::declare_qr<A>(counter, m, n, n); }));
  std::vector<A> tall(m * n), q(m * n);
  std::vector<double> diagonal(n);
  const bool wide = rows < cols;
  if (wide) transpose(rows, cols, values, tall);
  const Matrix<const A, Serial> a(wide ? tall.data() : values.data(), m, n);
  const Matrix<A, Serial> basis(q.data(), m, n);
  if (!Solver<Serial>(exec).qr<A>(a, basis, workspace))
    fail(ExitCode::internal, "model.linear.init: no QR decomposition of first weights ({}, {})", rows, cols);
  column_dots<Serial, A>(exec, a, basis, Vector<double, Serial>(diagonal.data(), n));
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j)
      if (diagonal[j] < 0) basis(i, j) = -basis(i, j);
  if (wide)
    transpose(m, n, q, values);
  else
    values.swap(q);
}

// Returns this rank's holding of the weight: its first part has its shape.
const TensorHolding& holding_of(const RankLayout& layout, const FormedWeight& w) {
  const auto found = std::find_if(layout.tensors.begin(), layout.tensors.end(), [&](const TensorHolding& tensor) {
    return tensor.whole.part == 0 && tensor.whole.weight == w.name;
  });
  SESTINA_REQUIRE(found != layout.tensors.end(), "no weight {} in a form of its own", w.name);
  return *found;
}

}  // namespace

bool merges_after(const ModelConfig& config, std::int64_t t) {
  for (int layer = 0; layer < static_cast<int>(config.num_hidden_layers); ++layer)
    if (merge_after(config.linear, layer, t) > 0) return true;
  return false;
}

template <class Exec, class T>
void merge_if_due(Transformer<Exec, T>& model, const Weights<Exec, T>& weights, std::uint64_t seed, std::int64_t t) {
  for_each_formed(weights, [&](const FormedWeight& w) {
    if (const std::int64_t number = merge_after(model.config().linear, w.layer, t); number > 0)
      model.merge(w, seed, number);
  });
}

template <class Exec, class T>
void merge_early(Transformer<Exec, T>& model, const Weights<Exec, T>& weights, int layer, std::uint64_t seed,
                 std::int64_t t) {
  for_each_formed(weights, [&](const FormedWeight& w) {
    if (w.layer == layer) model.merge(w, seed, early_merge_number(t));
  });
}

template <class Exec, class T>
void initialise_formed(const Exec& exec, Transformer<Exec, T>& model, const Arena<Exec, T>& arena,
                       const Weights<Exec, T>& weights, std::uint64_t seed) {
  const ModelConfig& config = model.config();
  std::vector<Acc<T>> values;
  for_each_formed(weights, [&](const FormedWeight& w) {
    const TensorSpec& whole = holding_of(arena.layout(), w).whole;
    values.resize(static_cast<std::size_t>(whole.elements()));
    normals(stream_of(seed, w.name), 0, values.size(), config.initializer_range, values.data());
    if (find_weight_form(config.linear)->normalised(config.linear)) normalise_rows(whole.rows, whole.cols, values);
    if (config.linear.init == LinearOptions::Init::uniform_spectrum)
      orthonormalise(static_cast<std::size_t>(whole.rows), static_cast<std::size_t>(whole.cols), values);
    set_dense<Exec, T>(exec, model, arena, w, seed, values.data());
  });
}

template <class Exec, class T>
void set_dense(const Exec& exec, Transformer<Exec, T>& model, const Arena<Exec, T>& arena, const FormedWeight& w,
               std::uint64_t seed, const Acc<T>* host) {
  using A = Acc<T>;
  const TensorHolding& held = holding_of(arena.layout(), w);
  std::vector<A> own;
  own.reserve(static_cast<std::size_t>(w.rows * w.cols));
  for (std::int64_t row = held.row_begin; row < held.row_begin + w.rows; ++row) {
    const A* const from = host + row * held.whole.cols + held.col_begin;
    own.insert(own.end(), from, from + w.cols);
  }
  const Storage<Exec, A> dense = storage_of<Exec, A>(w);
  const auto n = dense.size();
  Kokkos::deep_copy(exec, Vector<A, Exec>(dense.data(), n), Vector<const A, Host>(own.data(), n));
  model.assign(w, seed, Matrix<const A, Exec>(dense));
  exec.fence("set_dense");
}

template <class Exec, class T>
void get_dense(const Exec& exec, Transformer<Exec, T>& model, const FormedWeight& w, Acc<T>* host) {
  using A = Acc<T>;
  const Storage<Exec, A> dense = storage_of<Exec, A>(w);
  model.effective(w, Matrix<A, Exec>(dense));
  Kokkos::deep_copy(exec, Vector<A, Host>(host, dense.size()), Vector<const A, Exec>(dense.data(), dense.size()));
  exec.fence("get_dense");
}

template <class Exec, class T>
const FormedWeight& find_formed(const Weights<Exec, T>& weights, const std::string& name) {
  const FormedWeight* found = nullptr;
  for_each_formed(weights, [&](const FormedWeight& w) {
    if (w.name == name) found = &w;
  });
  SESTINA_REQUIRE(found != nullptr, "no weight {} in a form of its own", name);
  return *found;
}

std::size_t host_rotation_scratch(const LinearOptions& linear, const FormShape& shape, TensorCut cut,
                                  RotationLook look) {
  if (linear.is_dense()) return 0;
  return bytes_taken<Host>([&](Workspace<Host>& counter) {
    linear_form<Host, float>(linear).declare_measure(counter, linear, shape, cut, look);
  });
}

template <class Exec, class T>
RotationMeter<Exec, T>::RotationMeter(const Exec& exec, const LinearOptions& here, const Weights<Exec, T>& weights,
                                      const RotationShare& share, RotationLook look)
    : share_(share), solver_(exec) {
  workspace_ = Workspace<Exec>(bytes_taken<Exec>([&](Workspace<Exec>& counter) {
    for_each_formed(weights, [&](const FormedWeight& w) {
      const FormShape shape{0, static_cast<std::size_t>(w.rows), static_cast<std::size_t>(w.cols), sizeof(T),
                            sizeof(Acc<T>)};
      linear_form<Exec, T>(here).declare_measure(counter, here, shape, w.cut, look);
    });
  }));
}

template <class Exec, class T>
template <class Use>
int RotationMeter<Exec, T>::for_each_own(const Weights<Exec, T>& weights, const Use& use) const {
  int number = 0;
  for_each_formed(weights, [&](const FormedWeight& w) {
    const bool told_elsewhere = w.cut == TensorCut::none && share_.tp_rank > 0;
    if (number % share_.dp == share_.dp_rank && !told_elsewhere) use(w, number);
    ++number;
  });
  return number;
}

template <class Exec, class T>
void RotationMeter<Exec, T>::measure(Transformer<Exec, T>& model, const Weights<Exec, T>& weights) {
  records_.clear();
  for_each_own(weights, [&](const FormedWeight& w, int) {
    records_.push_back({w.name, model.measure(w, workspace_, solver_)});
  });
}

template <class Exec, class T>
std::vector<double> RotationMeter<Exec, T>::norms(Transformer<Exec, T>& model, const Weights<Exec, T>& weights) {
  std::vector<double> found;
  const int count = for_each_own(weights, [&](const FormedWeight& w, int number) {
    found.resize(static_cast<std::size_t>(number) + 1, 0);
    found.back() = std::fmax(0, model.largest_rotation(w, workspace_));  // a NaN becomes 0
  });
  found.resize(static_cast<std::size_t>(count), 0);
  return found;
}

#define SESTINA_FORMED(Exec, T)                                                                                     \
  template void merge_if_due<Exec, T>(Transformer<Exec, T>&, const Weights<Exec, T>&, std::uint64_t, std::int64_t); \
  template void merge_early<Exec, T>(Transformer<Exec, T>&, const Weights<Exec, T>&, int, std::uint64_t,            \
                                     std::int64_t);                                                                 \
  template void initialise_formed<Exec, T>(const Exec&, Transformer<Exec, T>&, const Arena<Exec, T>&,               \
                                           const Weights<Exec, T>&, std::uint64_t);                                 \
  template void set_dense<Exec, T>(const Exec&, Transformer<Exec, T>&, const Arena<Exec, T>&, const FormedWeight&,  \
                                   std::uint64_t, const Acc<T>*);                                                   \
  template void get_dense<Exec, T>(const Exec&, Transformer<Exec, T>&, const FormedWeight&, Acc<T>*);               \
  template const FormedWeight& find_formed<Exec, T>(const Weights<Exec, T>&, const std::string&);
SESTINA_INSTANTIATE(SESTINA_FORMED)
#define SESTINA_ROTATION_METER(Exec, T) template class RotationMeter<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_ROTATION_METER)

}  // namespace sestina
