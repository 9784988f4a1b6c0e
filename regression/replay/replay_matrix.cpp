// Golden files of matrix optimizers. The keys of a kind have the names of the attributes of /hyper, so that nothing
// here knows an optimizer by name; where a file's words differ from ours, translate() says so.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/refresh/refresh_workers.hpp"
#include "regression/replay/kind_options.hpp"
#include "regression/replay/replay.hpp"

namespace sestina::replay {
namespace {

std::string word_of(const Hdf5Reader& file, const std::string& key) {
  const std::string word = file.text("hyper", key);
  if (word == "divide by max(norm, eps)") return "max";
  if (word == "divide by norm + eps") return "add";
  return word;
}

}  // namespace

MatrixOptions kind_options(const Hdf5Reader& file, const MatrixKind& kind) {
  MatrixOptions options = default_options(kind);
  for (const KindKey& key : keys_of(options)) {
    // Coefficients of Newton-Schulz that a file lists are those of the set that it names.
    if (!file.has("hyper", key.name) || key.type == KindKey::Type::triples) continue;
    if (key.type == KindKey::Type::word)
      options.set(key.name, word_of(file, key.name));
    else
      options.set(key.name, file.attribute("hyper", key.name));
  }
  if (options.has("eigenvalue_start") && !file.has("hyper", "eigenvalue_start"))
    options.set("eigenvalue_start", "given");  // as the authors have it
  if (options.has("ns_precision")) options.set("ns_precision", file.text("/", "precision"));
  if (options.has("dialect")) options.set("dialect", file.has("hyper", "release_rules") ? "release" : "corrected");
  if (options.has("projector") && file.text("/", "optimizer") == "apollo") options.set("projector", "given");
  if (file.has("hyper", "refresh_every"))
    options.refresh_every = static_cast<std::int64_t>(file.attribute("hyper", "refresh_every"));
  if (file.has("hyper", "staleness"))
    options.refresh_staleness = static_cast<std::int64_t>(file.attribute("hyper", "staleness"));
  return options;
}

namespace {

// The authors of SOAP leave a side above max_dim without a basis and do not cut: with one such side, the other is the
// shorter one.
MatrixOptions matrix_options(const Hdf5Reader& file, const MatrixKind& kind) {
  MatrixOptions options = kind_options(file, kind);
  const std::vector<std::int64_t> shape = file.shape("gradient");  // (T, m, n)
  if (options.has("sides") && file.has("hyper", "max_dim") &&
      static_cast<double>(std::max(shape.at(1), shape.at(2))) > file.attribute("hyper", "max_dim"))
    options.set("sides", "smaller");
  return options;
}

std::string last_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// The files and their tensors as one run sees them.
template <class Space>
class Run {
 public:
  Run(const Space& exec, const Hdf5Reader& file, const MatrixKind& kind)
      : file_(file),
        shape_(file.shape("gradient")),
        options_(matrix_options(file, kind)),
        optimizer_(make_matrix_optimizer<Space>(
            exec, options_,
            {"/optimizer/matrix", static_cast<std::size_t>(shape_.at(1)), static_cast<std::size_t>(shape_.at(2)), 0})),
        stream_{exec, Gemm<Space>(exec), Workspace<Space>(bytes_taken<Space>([&](auto& counter) {
                  declare_update<Space>(counter, options_, static_cast<std::size_t>(shape_[1]),
                                        static_cast<std::size_t>(shape_[2]));
                }))},
        gradient_("gradient", static_cast<std::size_t>(shape_[1]), static_cast<std::size_t>(shape_[2])),
        weight_("weight", gradient_.extent(0), gradient_.extent(1)) {
    write(file.numbers("weight_0"), 0, weight_.data(), weight_.size());
    load_initial();
    start_workers();
  }

  Outcome replay() {
    const std::vector<double> gradients = file_.numbers("gradient");
    const double atol = file_.attribute("/", "atol"), rtol = file_.attribute("/", "rtol");
    const UpdateNumbers fixed{1, file_.attribute("hyper", "lr"), file_.attribute("hyper", "weight_decay"), 1};
    const OwnedMatrix<Space> matrix{
        "matrix",
        Matrix<const float, Space>(gradient_.data(), gradient_.extent(0), gradient_.extent(1)),
        Matrix<float, Space>(weight_.data(), weight_.extent(0), weight_.extent(1)),
        {}};
    for (std::int64_t t = 1; t <= shape_[0]; ++t) {
      write(gradients, static_cast<std::size_t>(t - 1) * gradient_.size(), gradient_.data(), gradient_.size());
      give_projector(t);
      UpdateNumbers numbers = fixed;
      numbers.t = t;
      optimizer_->step(stream_, numbers, matrix);
      compare(file_, "weight", t - 1, read(weight_.data(), weight_.size()), atol, rtol, outcome_);
    }
    if (file_.has("/", "movement_rtol")) compare_movement();
    for (const std::string& name : file_.names("state")) compare_state(name);
    return outcome_;
  }

 private:
  // Stale refreshes go to workers, where the memory is theirs too.
  void start_workers() {
    if (!is_host<Space> || options_.refresh_staleness == 0) return;
    const RefreshNeeds needs = refresh_needs(options_, weight_.extent(0), weight_.extent(1));
    workers_ = std::make_unique<RefreshWorkers>(WorkerPool::Options{.workers = 2}, needs.scratch, needs.jobs, false);
    stream_.refresh.workers = workers_.get();
  }

  void write(const std::vector<double>& values, std::size_t begin, float* to, std::size_t n) {
    const Kokkos::View<float*, Kokkos::HostSpace> host("host", n);
    for (std::size_t i = 0; i < n; ++i) host(i) = static_cast<float>(values.at(begin + i));
    Kokkos::deep_copy(stream_.exec, Vector<float, Space>(to, n), host);
    stream_.exec.fence();
  }
  std::vector<float> read(const float* from, std::size_t n) {
    std::vector<float> values(n);
    Kokkos::deep_copy(stream_.exec, Vector<float, Host>(values.data(), n), Vector<const float, Space>(from, n));
    stream_.exec.fence();
    return values;
  }

  void load_initial() {
    const std::vector<std::string> names = file_.names("initial");
    if (names.empty()) return;
    for (StateField& field : optimizer_->state().fields()) {
      const std::string name = last_name(field.path);
      if (field.dtype == DType::i64) {
        std::int64_t& counter = optimizer_->state().counter(name);
        if (name == "updates") counter = static_cast<std::int64_t>(file_.attribute("initial", "step"));
        if (name == "started") counter = 1;
      } else if (std::find(names.begin(), names.end(), name) != names.end()) {
        const auto to = write_to(field);
        write(file_.numbers("initial/" + name), 0, reinterpret_cast<float*>(to.view()), field.bytes() / sizeof(float));
      }
    }
  }

  // Random projectors come from the file.
  void give_projector(std::int64_t t) {
    const std::vector<KindKey> keys = keys_of(options_);
    if (std::none_of(keys.begin(), keys.end(),
                     [](const KindKey& key) { return key.name == "projector" && key.word == "given"; }))
      return;
    if ((t - 1) % options_.refresh_every != 0) return;
    const auto guard = optimizer_->state().write("projector");
    const Matrix<float, Space> projector = guard.view();
    write(file_.numbers("projector"), static_cast<std::size_t>((t - 1) / options_.refresh_every) * projector.size(),
          projector.data(), projector.size());
  }

  // bf16: the whole movement as well, ||w_T - want|| <= movement_rtol ||want - weight_0||.
  void compare_movement() {
    const std::vector<double> first = file_.numbers("weight_0"), want = file_.numbers("weight");
    const std::vector<float> got = read(weight_.data(), weight_.size());
    const std::size_t begin = want.size() - got.size();
    double error = 0, movement = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error += std::pow(got[i] - want[begin + i], 2);
      movement += std::pow(want[begin + i] - first[i], 2);
    }
    outcome_.of_tolerance =
        std::max(outcome_.of_tolerance, std::sqrt(error / movement) / file_.attribute("/", "movement_rtol"));
  }

  void compare_state(const std::string& name) {
    const std::string path = "state/" + name, how = file_.text(path, "compare");
    if (how == "free") return;
    for (const StateField& field : optimizer_->state().fields()) {
      if (last_name(field.path) != name || field.dtype != DType::f32) continue;
      std::vector<float> got = read(static_cast<const float*>(field.data), field.bytes() / sizeof(float));
      if (how == "columns up to sign")
        align_columns(file_.numbers(path), static_cast<std::size_t>(field.shape.back()), got);
      return compare(file_, path, -1, got, file_.attribute(path, "atol"), file_.attribute(path, "rtol"), outcome_);
    }
    fail(ExitCode::bad_data, "the file has {}, the optimizer keeps no such state", path);
  }

  static void align_columns(const std::vector<double>& want, std::size_t cols, std::vector<float>& got) {
    for (std::size_t col = 0; col < cols; ++col) {
      double dot = 0;
      for (std::size_t i = col; i < got.size(); i += cols) dot += got[i] * want.at(i);
      if (dot < 0)
        for (std::size_t i = col; i < got.size(); i += cols) got[i] = -got[i];
    }
  }

  const Hdf5Reader& file_;
  std::vector<std::int64_t> shape_;  // (T, m, n)
  MatrixOptions options_;
  std::unique_ptr<MatrixOptimizer<Space>> optimizer_;
  Stream<Space> stream_;
  Kokkos::View<float**, Kokkos::LayoutRight, typename Space::memory_space> gradient_, weight_;
  Outcome outcome_;
  std::unique_ptr<RefreshWorkers> workers_;
};

}  // namespace

template <class Space>
Outcome replay_matrix(const Space& exec, const Hdf5Reader& file) {
  const std::string optimizer = file.text("/", "optimizer");
  const MatrixKind* kind = find_matrix_kind(optimizer);
  if (kind == nullptr) fail(ExitCode::bad_data, "no rule for optimizer {}", optimizer);
  return Run<Space>(exec, file, *kind).replay();
}

#define SESTINA_REPLAY_MATRIX(Space) template Outcome replay_matrix<Space>(const Space&, const Hdf5Reader&);
SESTINA_INSTANTIATE_LANES(SESTINA_REPLAY_MATRIX)

}  // namespace sestina::replay
