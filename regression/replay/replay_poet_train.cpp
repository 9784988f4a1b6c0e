// Golden files of POET-X training: layers with tanh between them, mean squared error, AdamW on the rotations with its
// resets, the clip schedule, merges.
#include <deque>
#include <iterator>

#include "core/deck/model_config.hpp"
#include "core/optimizer/gradient_norm.hpp"
#include "core/optimizer/methods/adamw.hpp"
#include "regression/replay/poet_bench.hpp"

namespace sestina::replay {
namespace {

template <class Space>
class Training {
 public:
  using Floats = typename Bench<Space>::Floats;

  Training(const Space& exec, const Hdf5Reader& file) : bench_(exec, file), file_(file), options_(setting_of(file)) {
    linear_.form = "poet-x";
    linear_.merge_every = static_cast<std::int64_t>(hyper("merge_every"));
    linear_.clip_warmup_steps = static_cast<std::int64_t>(hyper("clip_warmup_steps"));
    linear_.clip_warmup_until = static_cast<std::int64_t>(hyper("clip_warmup_until"));
    linear_.clip_start_ratio = hyper("clip_start_ratio");
    const std::vector<std::int64_t> shape = file.shape("x");
    steps_ = shape.at(0);
    tokens_ = size_at(shape, 1);
    for (int i = 1; file.has(fmt::format("layer_{}", i)); ++i) add(fmt::format("layer_{}/", i));
    OptimizerOptions options;
    options.adamw = {hyper("lr"), hyper("beta1"), hyper("beta2"), hyper("eps"), 0};
    optimizer_ = std::make_unique<AdamW<Space, float>>(bench_.exec, tensors_, options);
  }

  Outcome replay() {
    for (std::int64_t j = 0; j < steps_; ++j) step(j);
    return bench_.outcome;
  }

 private:
  struct Stage {
    std::string at;
    Layer<Space> layer;
    Floats in, kept, out, d_out, inner, d_in;  // (tokens, .); out is after tanh but in the last layer
  };

  double hyper(const char* name) const { return file_.attribute("hyper", name); }

  void add(const std::string& at) {
    const std::vector<std::int64_t> shape = file_.shape(at + "weight_0");
    const std::size_t out = size_at(shape, 0), in = size_at(shape, 1), n = tokens_;
    stages_.push_back({at, Layer<Space>(options_, out, in), Floats("in", n, in), Floats("kept", n, out),
                       Floats("out", n, out), Floats("d_out", n, out), Floats("inner", n, in), Floats("d_in", n, in)});
    const Layer<Space>& layer = stages_.back().layer;
    permute(stages_.back(), 0);
    poet_assign<Space, float>(bench_.space, options_, layer.weight, bench_.read(at + "weight_0"));
    const Floats gradients[] = {layer.d_in, layer.d_out}, masters[] = {layer.rotation_in, layer.rotation_out};
    for (std::size_t i = 0; i < std::size(masters); ++i) {
      TensorSpec spec;
      spec.role = Role::vector;
      spec.rows = static_cast<std::int64_t>(masters[i].size());
      spec.lr_factor = hyper("poet_scale");
      spec.reset_every = linear_.merge_every;
      spec.eps_on_corrected = file_.text("hyper", "eps_on") == "corrected";
      tensors_.push_back({spec, Layer<Space>::flat(gradients[i]), Layer<Space>::flat(masters[i]), {}});
    }
  }
  void permute(const Stage& stage, std::size_t merges) {
    bench_.write(stage.at + "perm_in", merges, stage.layer.perm_in);
    bench_.write(stage.at + "perm_out", merges, stage.layer.perm_out);
  }
  // body(i) of the elements of several fields equally, in host memory.
  template <class Body>
  void on_host(const Body& body, const std::vector<Floats>& fields) {
    std::vector<typename Floats::host_mirror_type> host;
    for (const Floats& field : fields) host.push_back(Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), field));
    for (std::size_t i = 0; i < fields.front().size(); ++i) body(host, i);
    for (std::size_t f = 0; f < fields.size(); ++f) Kokkos::deep_copy(fields[f], host[f]);
  }

  double forward(std::size_t j) {
    bench_.write(file_.numbers("x"), j * stages_.front().in.size(), stages_.front().in);
    for (std::size_t l = 0; l < stages_.size(); ++l) {
      Stage& s = stages_[l];
      poet_forward<Space, float>(bench_.space, options_, s.layer.weight, s.in, s.kept, s.out);
      bench_.exec.fence();
      if (l + 1 == stages_.size()) break;
      on_host([](auto& f, std::size_t i) { f[1].data()[i] = f[0].data()[i] = std::tanh(f[0].data()[i]); },
              {s.out, stages_[l + 1].in});
    }
    Stage& last = stages_.back();
    const Floats target("target", tokens_, last.out.extent(1));
    bench_.write(file_.numbers("target"), j * target.size(), target);
    double loss = 0;
    const double n = static_cast<double>(target.size());
    on_host(
        [&](auto& f, std::size_t i) {
          const double difference = static_cast<double>(f[0].data()[i]) - static_cast<double>(f[1].data()[i]);
          loss += difference * difference / n;
          f[2].data()[i] = static_cast<float>(2 * difference / n);
        },
        {last.out, target, last.d_out});
    return loss;
  }
  void backward() {
    for (std::size_t l = stages_.size(); l-- > 0;) {
      Stage& s = stages_[l];
      poet_backward_input<Space, float>(bench_.space, options_, s.layer.weight, s.d_out, false, s.inner, s.d_in);
      poet_backward_rotations<Space, float>(bench_.space, options_, s.layer.weight, s.d_out, s.in, s.kept, s.inner,
                                            false, Layer<Space>::flat(s.layer.d_in), Layer<Space>::flat(s.layer.d_out));
      bench_.exec.fence();
      if (l == 0) break;
      on_host(
          [](auto& f, std::size_t i) {
            const float y = f[1].data()[i];
            f[2].data()[i] = f[0].data()[i] * (1 - y * y);
          },
          {s.d_in, s.in, stages_[l - 1].d_out});
    }
  }
  double gradient_norm() {
    double squares = 0;
    for (Stage& s : stages_) {
      const Floats fields[] = {s.layer.d_in, s.layer.d_out};
      for (const Floats& field : fields)
        on_host([&](auto& f, std::size_t i) { squares += std::pow(static_cast<double>(f[0].data()[i]), 2); }, {field});
    }
    return std::sqrt(squares);
  }
  void step(std::int64_t j) {
    const double loss = forward(static_cast<std::size_t>(j));
    backward();
    const double norm = gradient_norm(), clip = clip_norm_at(linear_, hyper("clip"), j + 1),
                 factor = 1 - (1 - hyper("lr_end_ratio")) * static_cast<double>(j) / hyper("steps");
    optimizer_->step(bench_.exec, j + 1, factor, clip_scale(norm, clip));
    bench_.check("training/loss", j, loss);
    bench_.check("training/grad_norm", j, norm);
    bench_.check("training/clip", j, clip);
    bench_.check("training/lr", j, hyper("lr") * hyper("poet_scale") * factor);
    for (Stage& s : stages_) {
      bench_.check(s.at + "theta_in", s.layer.rotation_in, j);
      bench_.check(s.at + "theta_out", s.layer.rotation_out, j);
      poet_effective<Space, float>(bench_.space, options_, s.layer.weight, s.layer.dense);
      bench_.check(s.at + "weight_effective", s.layer.dense, j);
      if ((j + 1) % linear_.merge_every != 0) continue;
      const auto merges = static_cast<std::size_t>((j + 1) / linear_.merge_every);
      permute(s, merges);
      poet_assign<Space, float>(bench_.space, options_, s.layer.weight, s.layer.dense);
      bench_.check(s.at + "weight_held", s.layer.base, static_cast<std::int64_t>(merges) - 1);
    }
  }

  Bench<Space> bench_;
  const Hdf5Reader& file_;
  PoetOptions options_;
  LinearOptions linear_;
  std::int64_t steps_ = 0;
  std::size_t tokens_ = 0;
  std::deque<Stage> stages_;
  std::vector<OwnedTensor<Space, float>> tensors_;
  std::unique_ptr<AdamW<Space, float>> optimizer_;
};

}  // namespace

template <class Space>
Outcome replay_poet_train(const Space& exec, const Hdf5Reader& file) {
  return Training<Space>(exec, file).replay();
}

#define SESTINA_REPLAY_POET_TRAIN(Space) template Outcome replay_poet_train<Space>(const Space&, const Hdf5Reader&);
SESTINA_INSTANTIATE_LANES(SESTINA_REPLAY_POET_TRAIN)

}  // namespace sestina::replay
