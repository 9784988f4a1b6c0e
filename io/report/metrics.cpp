#include "io/report/metrics.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>

#include "io/store/output_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

// One JSON object on one line, in a buffer that keeps its memory.
class JsonLine {
 public:
  JsonLine() { text_.reserve(4096); }  // a train line has at most about 1200 bytes
  void begin(const char* kind, std::int64_t step) {
    text_.clear();
    const auto now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    fmt::format_to(std::back_inserter(text_), "{{\"kind\":\"{}\",\"step\":{},\"time\":{:.3f}", kind, step, now);
  }
  void key(std::string_view name) { fmt::format_to(std::back_inserter(text_), ",\"{}\":", name); }
  void number(std::string_view name, double value) {
    key(name);
    bare(value);
  }
  void bare(double value) {  // in the shortest form that reads back equal
    if (std::isfinite(value)) {
      fmt::format_to(std::back_inserter(text_), "{}", value);
    } else {
      append("null");
    }
  }
  template <class Items, class Value>
  void list(std::string_view name, const Items& items, Value value) {
    key(name);
    append("[");
    for (std::size_t i = 0; i < items.size(); ++i)
      fmt::format_to(std::back_inserter(text_), "{}{}", i == 0 ? "" : ",", value(items[i]));
    append("]");
  }
  void number(std::string_view name, std::optional<double> value) { number(name, value.value_or(std::nan(""))); }
  void numbers(std::string_view name, std::span<const double> values) {
    key(name);
    append("[");
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i > 0) append(",");
      bare(values[i]);
    }
    append("]");
  }
  void integer(std::string_view name, std::int64_t value) {
    key(name), fmt::format_to(std::back_inserter(text_), "{}", value);
  }
  void integer(std::string_view name, std::uint64_t value) {
    key(name), fmt::format_to(std::back_inserter(text_), "{}", value);
  }
  void text(std::string_view name, std::string_view value) {
    key(name);
    quoted(value);
  }
  void quoted(std::string_view value) {
    append("\"");
    for (const char c : value) {
      if (c == '"' || c == '\\') {
        fmt::format_to(std::back_inserter(text_), "\\{}", c);
      } else if (static_cast<unsigned char>(c) < 0x20) {
        fmt::format_to(std::back_inserter(text_), "\\u{:04x}", static_cast<int>(c));
      } else {
        text_.push_back(c);
      }
    }
    append("\"");
  }
  void append(std::string_view raw) { text_.append(raw.data(), raw.data() + raw.size()); }
  std::string_view finish() {
    append("}\n");
    return {text_.data(), text_.size()};
  }

 private:
  fmt::memory_buffer text_;
};

}  // namespace

struct Metrics::State {
  State(const std::string& run_dir, bool tensorboard) : file(run_dir + "/metrics.jsonl") {
    if (tensorboard) events = std::make_unique<TensorBoardFile>(run_dir);
  }

  // Metrics are no reason to stop a run: a line that the disk refuses is lost, which is said once.
  void write(std::string_view text) {
    if (!file.write(text)) warn(file.path());
  }
  void warn(const std::string& what) {
    if (!warned) spdlog::warn("{}: a line could not be written: {}", what, std::strerror(errno));
    warned = true;
  }
  void finish() { write(line.finish()); }
  // Writes a line with an object for each pattern of tensors: `fields` of it, and its numbers by layer.
  template <class Line, class Fields>
  void by_pattern(const char* kind, std::int64_t step, const std::vector<Line>& patterns, const Fields& fields) {
    line.begin(kind, step);
    line.key("tensors");
    line.append("[");
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      line.append(i > 0 ? ",{\"pattern\":" : "{\"pattern\":");
      line.quoted(patterns[i].pattern);
      fields(line, patterns[i]);
      line.numbers("layers", patterns[i].layers);
      line.append("}");
    }
    line.append("]");
    finish();
  }
  void finish_event() {
    if (!events->end()) warn(events->path());
  }

  AppendFile file;
  bool warned = false;
  JsonLine line;
  std::unique_ptr<TensorBoardFile> events;
};

namespace {

// Writes what is known of an energy by domain, its power and its tokens, or the seconds of processors in its place.
template <class Line>
void write_energy(Line& line, const std::optional<double>& joules, const EnergyNumbers& parts, double seconds,
                  std::uint64_t tokens) {
  if (parts.package_j) line.number("energy_package_j", *parts.package_j);
  if (parts.dram_j) line.number("energy_dram_j", *parts.dram_j);
  if (parts.device_j) line.number("energy_device_j", *parts.device_j);
  if (!joules && parts.processor_s) line.number("processor_s", *parts.processor_s);
  if (!joules || !(seconds > 0) || tokens == 0) return;
  line.number("watts", *joules / seconds);
  line.number("joules_per_token", *joules / static_cast<double>(tokens));
}

}  // namespace

Metrics::Metrics(const std::string& run_dir, bool tensorboard)
    : state_(std::make_unique<State>(run_dir, tensorboard)) {}
Metrics::Metrics() = default;
Metrics::~Metrics() = default;

std::string Metrics::problem() const { return state_ ? state_->file.problem() : ""; }

void Metrics::run(const RunLine& r) {
  if (!state_) return;
  JsonLine& line = state_->line;
  line.begin("run", r.step);
  line.text("started", r.started);
  line.text("version", r.version);
  line.text("commit", r.commit);
  line.text("build", r.build);
  line.key("hosts");
  line.append("[");
  for (std::size_t i = 0; i < r.hosts.size(); ++i) {
    if (i > 0) line.append(",");
    line.quoted(r.hosts[i]);
  }
  line.append("]");
  line.text("device", r.device);
  line.integer("ranks", std::int64_t{r.ranks});
  line.integer("threads", std::int64_t{r.threads});
  line.text("command_line", r.command_line);
  line.text("deck_digest", r.deck_digest);
  state_->finish();
}

void Metrics::train(const TrainLine& t, const std::vector<StageAge>& stages) {
  if (!state_) return;
  JsonLine& line = state_->line;
  line.begin("train", t.step);
  line.integer("tokens", t.tokens);
  line.number("loss", t.loss);
  line.number("grad_norm", t.grad_norm);
  line.number("lr", t.lr);
  line.number("step_s", t.step_s);
  line.number("tokens_per_s", t.tokens_per_s);
  line.number("data_s", t.data_s);
  line.number("forward_backward_s", t.forward_backward_s);
  line.number("reduce_s", t.reduce_s);
  line.number("optimizer_s", t.optimizer_s);
  line.number("refresh_wait_s", t.refresh_wait_s);
  line.number("gather_s", t.gather_s);
  line.integer("preconditioner_age_max", t.preconditioner_age_max);
  line.number("preconditioner_age_mean", t.preconditioner_age_mean);
  if (!stages.empty()) {
    line.list("preconditioner_age_max_by_stage", stages, [](const StageAge& s) { return s.max; });
    line.list("preconditioner_age_mean_by_stage", stages, [](const StageAge& s) { return s.mean; });
  }
  line.integer("skipped_steps", t.skipped_steps);
  line.integer("memory_peak_bytes", t.memory_peak_bytes);
  line.number("tflops", t.tflops);
  line.number("mfu", t.mfu);
  line.number("energy_j", t.energy_j);
  write_energy(line, t.energy_j, t.energy, t.step_s, t.step_tokens);
  if (!t.staleness.empty()) line.numbers("staleness", t.staleness);
  if (!t.drift.empty()) line.numbers("drift", t.drift);
  if (!t.cosine.empty()) line.numbers("cosine", t.cosine);
  if (t.workers) {
    line.number("refresh_copy_s", t.workers->copy_s);
    line.number("refresh_worker_s", t.workers->worker_s);
  }
  if (t.refreshes) {
    line.integer("refreshed_sides", t.refreshes->sides);
    line.number("basis_drift", t.refreshes->largest);
  }
  if (t.tiers) {
    line.integer("tier_read_bytes", t.tiers->bytes_read);
    line.integer("tier_written_bytes", t.tiers->bytes_written);
    line.integer("tier_waits", t.tiers->waits);
    line.number("tier_wait_s", t.tiers->wait_s);
  }
  if (t.load) {
    line.number("expert_load_max", t.load->over_mean);
    line.number("expert_load_layer", t.load->layer);
  }
  if (t.replicas) {
    line.integer("coherence_bytes", t.replicas->bytes);
    const bool equal = t.replicas->bytes > 0 && t.replicas->drift >= 0;
    line.number("replica_drift", equal ? std::optional(t.replicas->drift) : std::nullopt);
  }
  state_->finish();
  if (!state_->events) return;
  TensorBoardFile& events = *state_->events;
  events.begin(t.step);
  events.scalar("train/loss", t.loss);
  events.scalar("train/grad_norm", t.grad_norm);
  events.scalar("train/lr", t.lr);
  events.scalar("train/tokens", static_cast<double>(t.tokens));
  events.scalar("speed/tokens_per_s", t.tokens_per_s);
  events.scalar("speed/step_s", t.step_s);
  events.scalar("speed/data_s", t.data_s);
  events.scalar("speed/forward_backward_s", t.forward_backward_s);
  events.scalar("speed/optimizer_s", t.optimizer_s);
  events.scalar("speed/tflops", t.tflops);
  if (t.mfu) events.scalar("speed/mfu", *t.mfu);
  events.scalar("memory/peak_bytes", static_cast<double>(t.memory_peak_bytes));
  state_->finish_event();
}

void Metrics::validation(std::int64_t step, std::uint64_t tokens, double loss, std::optional<double> bits_per_byte,
                         double seconds) {
  if (!state_) return;
  JsonLine& line = state_->line;
  line.begin("val", step);
  line.integer("tokens", tokens);
  line.number("loss", loss);
  line.number("bits_per_byte", bits_per_byte);
  line.number("seconds", seconds);
  state_->finish();
  if (!state_->events) return;
  state_->events->begin(step);
  state_->events->scalar("val/loss", loss);
  if (bits_per_byte) state_->events->scalar("val/bits_per_byte", *bits_per_byte);
  state_->finish_event();
}

void Metrics::checkpoint(std::int64_t step, const std::string& path, double seconds, std::uint64_t bytes,
                         const std::string& error) {
  if (!state_) return;
  JsonLine& line = state_->line;
  line.begin("checkpoint", step);
  line.text("path", path);
  line.number("seconds", seconds);
  line.integer("bytes", bytes);
  if (error.empty()) {
    line.key("error");
    line.append("null");
  } else {
    line.text("error", error);
  }
  state_->finish();
}

void Metrics::event(std::int64_t step, const std::string& what, const std::string& detail) {
  if (!state_) return;
  state_->line.begin("event", step);
  state_->line.text("what", what);
  state_->line.text("detail", detail);
  state_->finish();
}

void Metrics::energy(std::int64_t step, const EnergyLine& energy) {
  if (!state_) return;
  JsonLine& line = state_->line;
  line.begin("energy", step);
  line.number("energy_j", energy.energy_j);
  write_energy(line, energy.energy_j, energy.parts, energy.seconds, energy.tokens);
  line.text("domains", energy.domains);
  state_->finish();
}

void Metrics::rewind(std::int64_t step, std::int64_t to_step) {
  if (!state_) return;
  state_->line.begin("rewind", step);
  state_->line.integer("to_step", to_step);
  state_->finish();
}

void Metrics::tensors(std::int64_t step, const std::vector<TensorLine>& tensors) {
  if (!state_) return;
  JsonLine& line = state_->line;
  line.begin("tensors", step);
  line.key("tensors");
  line.append("{");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i > 0) line.append(",");
    line.quoted(tensors[i].name);
    line.append(":{\"weight_rms\":");
    line.bare(tensors[i].weight_rms);
    line.number("update_rms", tensors[i].update_rms);
    line.number("spectral_norm", tensors[i].spectral_norm);
    line.append("}");
  }
  line.append("}");
  state_->finish();
}

void Metrics::updates(std::int64_t step, const std::vector<UpdateLine>& lines) {
  if (!state_) return;
  state_->by_pattern("updates", step, lines, [](JsonLine& line, const UpdateLine& update) {
    line.text("rule", update.rule);
    line.text("split", update.split);
    line.text("owner", update.owner);
    line.integer("calls", update.calls);
    line.number("orthogonality_defect", update.orthogonality_defect);
    line.number("update_rms", update.update_rms);
    line.number("update_ratio", update.update_ratio);
    line.number("decay", update.decay);
  });
}

void Metrics::rotations(std::int64_t step, const std::vector<RotationLine>& lines) {
  if (!state_) return;
  state_->by_pattern("rotations", step, lines, [](JsonLine& line, const RotationLine& one) {
    line.number("largest_q", one.largest_q);
    line.number("defect", one.defect);
    line.number("applied_defect", one.applied_defect);
    line.number("sigma_max", one.sigma_max);
    line.number("sigma_min", one.sigma_min);
    line.number("sigma_rms", one.sigma_rms);
  });
}

void Metrics::loads(std::int64_t step, const std::vector<double>& optimizer_s,
                    const std::vector<std::int64_t>& planned) {
  if (!state_) return;
  JsonLine& line = state_->line;
  line.begin("loads", step);
  line.numbers("optimizer_s", optimizer_s);
  line.key("planned");
  line.append(fmt::format("[{}]", fmt::join(planned, ",")));
  state_->finish();
}

}  // namespace sestina
