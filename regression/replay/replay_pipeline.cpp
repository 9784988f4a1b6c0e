// Golden files of asynchronous pipelines: K stages in this process, driven through the executor that trains. A file
// says its model by the name of a folder next to it; windows of the folder's token stream follow one another.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "io/hf/hf_model.hpp"
#include "parallel/stage/stages_of.hpp"
#include "parallel/step/executor.hpp"
#include "regression/replay/kind_options.hpp"
#include "regression/replay/replay.hpp"

namespace sestina::replay {
namespace {

namespace fs = std::filesystem;

double hyper(const Hdf5Reader& file, const std::string& name) { return file.attribute("hyper", name); }
int number(const Hdf5Reader& file, const std::string& name, int fallback) {
  return file.has("/", name) ? static_cast<int>(file.attribute("/", name)) : fallback;
}

AdamWOptions adamw_options(const Hdf5Reader& file, const std::string& prefix) {
  const auto value = [&](const char* name) { return hyper(file, prefix + name); };
  return {value("lr"), value("beta1"), value("beta2"), value("eps"), value("weight_decay")};
}

OptimizerOptions optimizer_options(const Hdf5Reader& file) {
  OptimizerOptions options;
  options.kind = file.text("/", "optimizer");
  const MatrixKind* kind = find_matrix_kind(options.kind);
  if (kind == nullptr) {
    options.kind = "adamw";
    options.adamw = adamw_options(file, "");
    options.lr = options.adamw.lr;
    return options;
  }
  options.adamw = adamw_options(file, "scalar_");
  options.lr = hyper(file, "lr");
  options.weight_decay = hyper(file, "weight_decay");
  options.matrix = kind_options(file, *kind);
  return options;
}

template <class Enum>
Enum choice(const std::string& got, const std::vector<std::string>& words) {
  const auto found = std::find(words.begin(), words.end(), got);
  if (found == words.end()) fail(ExitCode::bad_data, "no rule for \"{}\", only for {}", got, fmt::join(words, ", "));
  return static_cast<Enum>(found - words.begin());
}

// What is done about the delay; a file says it in one of three places.
void set_correction(const Hdf5Reader& file, Options& options) {
  using Kind = ParallelOptions::DelayCorrection;
  const std::string optimizer = file.text("/", "optimizer");
  const std::string word = number(file, "weight_prediction", 0) != 0                ? "prediction"
                           : optimizer == "pipedream-lr" || optimizer == "nesterov" ? optimizer
                           : file.has("/", "delay_correction")                      ? file.text("/", "delay_correction")
                                                                                    : "none";
  ParallelOptions::Correction& correction = options.parallel.correction;
  correction.kind = choice<Kind>(word, {"none", "pipedream-lr", "nesterov", "pipemare", "prediction", "dc-asgd"});
  if (correction.kind == Kind::pipedream_lr || correction.kind == Kind::pipemare)
    correction.steps = static_cast<std::int64_t>(hyper(file, "correction_steps"));
  if (correction.kind == Kind::pipemare) {
    correction.decay = hyper(file, "pipemare_decay");
    correction.warmup = static_cast<std::int64_t>(hyper(file, "pipemare_warmup"));
  }
  if (correction.kind == Kind::nesterov) options.optimizer.adamw.momentum_decay = hyper(file, "momentum_decay");
  if (correction.kind == Kind::dc_asgd) correction.lambda = hyper(file, "dc_lambda");
}

Options options_of(const Hdf5Reader& file, const std::string& folder) {
  Options options;
  options.model = read_hf_config(folder);
  options.data.sequence_length = number(file, "sequence_length", 0);
  options.train.global_batch = number(file, "batch", 0);
  options.train.micro_batch = options.train.global_batch / number(file, "accumulation", 1);
  options.train.clip_norm = file.attribute("/", "clip_norm");
  options.optimizer = optimizer_options(file);
  ParallelOptions& parallel = options.parallel;
  parallel.pp = number(file, "K", 1);
  parallel.schedule = ParallelOptions::Schedule::async_1f1b;
  parallel.delay_scale = number(file, "delay_scale", 1);
  parallel.drain_every = number(file, "drain_every", 0);
  parallel.stash = choice<ParallelOptions::Stash>(file.text("/", "stash"), {"on", "recompute", "saved"});
  parallel.clip_scope =
      choice<ParallelOptions::ClipScope>(file.text("/", "clip_scope"), {"global", "stage", "group", "global-lagged"});
  set_correction(file, options);
  return options;
}

// Window i of the stream, in order.
class FileBatches final : public Batches {
 public:
  FileBatches(const std::string& folder, const Options& options)
      : rows_(static_cast<std::size_t>(options.train.micro_batch)),
        length_(static_cast<std::size_t>(options.data.sequence_length)),
        tokens_(rows_ * (length_ + 1)) {
    std::ifstream in(folder + "/tokens.bin", std::ios::binary);
    for (std::uint16_t token = 0; in.read(reinterpret_cast<char*>(&token), sizeof token);) stream_.push_back(token);
  }
  BatchView next() override {
    for (std::size_t b = 0; b < rows_; ++b, ++window_)
      for (std::size_t t = 0; t <= length_; ++t)
        tokens_[b * (length_ + 1) + t] = stream_[std::min(window_ * length_ + t, stream_.size() - 1)];
    return {tokens_.data(), nullptr};
  }

 private:
  std::size_t rows_, length_, window_ = 0;
  std::vector<std::int32_t> tokens_, stream_;
};

template <class Exec>
class PipelineRun {
 public:
  PipelineRun(const Exec& exec, const Hdf5Reader& file)
      : file_(file),
        folder_((fs::path(file.path()).parent_path() / file.text("/", "model")).string()),
        options_(options_of(file, folder_)),
        executor_(StagesOf<Exec, float>(exec), make_plan({options_, alone_->size()}), *alone_) {
    const SafeTensors weights = open_hf_weights(folder_, options_.model);
    for (const StateField& field : executor_.model_fields()) {
      const TensorSpec spec = spec_of(field.path.substr(std::string_view("/model/").size()));
      std::vector<float> values(static_cast<std::size_t>(spec.elements()));
      read_hf_tensor(weights, spec, values.data(), folder_);
      executor_.copy_from_host(field, values.data());
    }
    executor_.weights_changed();
    if (file.has("hyper", "initial_basis")) start_from_identity();
  }

  Outcome replay() {
    FileBatches batches(folder_, options_);
    const double warmup = hyper(file_, "warmup_steps");
    const int steps = number(file_, "steps", 0);
    std::vector<float> loss, norm, group_norm;
    const double tokens = static_cast<double>(options_.train.global_batch) * options_.data.sequence_length;
    for (int t = 1; t <= steps; ++t) {
      if (executor_.backward(t, std::min(1.0, static_cast<double>(t) / warmup), batches).sums) executor_.update();
      executor_.exchange();
      loss.push_back(static_cast<float>(executor_.sums().loss / tokens));
      for (std::size_t s = 0; s < executor_.stage_count(); ++s)
        norm.push_back(static_cast<float>(executor_.stage_norm(s)));
      for (std::size_t s = 0; s < executor_.stage_count(); ++s)
        for (const bool projections : {true, false})
          group_norm.push_back(static_cast<float>(executor_.group_norm(s, projections)));
    }
    compare(file_, "loss", -1, loss, file_.attribute("loss", "atol"), file_.attribute("loss", "rtol"), outcome_);
    compare(file_, "grad_norm", -1, norm, file_.attribute("grad_norm", "atol"), file_.attribute("grad_norm", "rtol"),
            outcome_);
    if (options_.parallel.clip_scope == ParallelOptions::ClipScope::group)
      compare(file_, "group_norm", -1, group_norm, file_.attribute("group_norm", "atol"),
              file_.attribute("group_norm", "rtol"), outcome_);
    for (const StateField& field : executor_.model_fields()) {
      std::vector<float> got(field.bytes() / sizeof(float));
      executor_.copy_to_host(field, got.data());
      compare(file_, "final_weight/" + field.path.substr(std::string_view("/model/").size()), -1, got,
              file_.attribute("/", "atol"), file_.attribute("/", "rtol"), outcome_);
    }
    return outcome_;
  }

 private:
  TensorSpec spec_of(const std::string& name) const {
    for (const TensorSpec& spec : tensor_specs(options_.model))
      if (spec.name == name) return spec;
    fail(ExitCode::bad_data, "{}: no such tensor", name);
  }

  // Bases are there, the identity, and no update has been counted.
  void start_from_identity() {
    for (const StateField& field : executor_.optimizer_fields()) {
      const std::string name = field.path.substr(field.path.rfind('/') + 1);
      const std::int64_t started = 1;
      if (name == "started") executor_.copy_from_host(field, &started);
      if (name != "basis_left" && name != "basis_right") continue;
      const auto d = static_cast<std::size_t>(field.shape[0]);
      std::vector<float> identity(d * d, 0.0f);
      for (std::size_t i = 0; i < d; ++i) identity[i * d + i] = 1;
      executor_.copy_from_host(field, identity.data());
    }
  }

  const Hdf5Reader& file_;
  std::string folder_;
  Options options_;
  std::unique_ptr<Communicator> alone_ = make_lone_communicator();
  Executor executor_;
  Outcome outcome_;
};

}  // namespace

template <class Exec>
Outcome replay_pipeline(const Exec& exec, const Hdf5Reader& file) {
  return PipelineRun<Exec>(exec, file).replay();
}

#define SESTINA_REPLAY_PIPELINE(Exec) template Outcome replay_pipeline<Exec>(const Exec&, const Hdf5Reader&);
SESTINA_INSTANTIATE_SPACES(SESTINA_REPLAY_PIPELINE)

}  // namespace sestina::replay
