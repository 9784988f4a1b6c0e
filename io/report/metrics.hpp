// metrics.jsonl (one flushed object per line, each with its wall-clock time in seconds since 1970; numbers round-trip),
// TensorBoard events. Buffers are reused: a train line allocates nothing after the first. io/report/history.hpp reads
// them back. No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sestina {

// Replicas that drift (parallel/plan/coherence.hpp) since the line before: the bytes that all ranks sent to make them
// equal, or to look at their drift, and the largest relative distance of a rank's weights of a matrix from the result;
// 0 bytes, or a negative distance: none were made equal.
struct ReplicaNumbers {
  std::uint64_t bytes = 0;
  double drift = 0;
};

// Asynchronous refreshes: the seconds of the update in copies for workers and of results, and the seconds that the
// workers of all ranks spent on the results that the update took.
struct WorkerNumbers {
  double copy_s = 0, worker_s = 0;
};

// Refreshes that are started by drift: the sides of matrices that were refreshed, on all ranks, and the largest drift
// of the checks of the update before; empty: there were none.
struct DriftNumbers {
  std::int64_t sides = 0;
  std::optional<double> largest = {};
};

// State that lies elsewhere between its uses: bytes that all ranks read and wrote for the update, and the times that
// somebody waited for some of it.
struct TierNumbers {
  std::uint64_t bytes_read = 0, bytes_written = 0, waits = 0;
  double wait_s = 0;
};

// The largest load of an expert of the update, over the mean of its layer's experts, and that layer; empty: no load is
// known.
struct LoadNumbers {
  std::optional<double> over_mean = {};
  std::optional<std::int64_t> layer = {};
};

// The energy of an update by domain, as far as it is known, and the seconds that processors worked for it (user and
// system, of all ranks), which stand in its place where there is no energy_j.
struct EnergyNumbers {
  std::optional<double> package_j = {}, dram_j = {}, device_j = {}, processor_s = {};
};

struct TrainLine {
  std::int64_t step = 0;
  std::uint64_t tokens = 0;
  double loss = 0, grad_norm = 0, lr = 0, step_s = 0, tokens_per_s = 0, data_s = 0, forward_backward_s = 0,
         reduce_s = 0, optimizer_s = 0, refresh_wait_s = 0, gather_s = 0;
  std::int64_t preconditioner_age_max = 0, skipped_steps = 0;
  double preconditioner_age_mean = 0;
  std::uint64_t memory_peak_bytes = 0;
  double tflops = 0;
  std::optional<double> mfu, energy_j;
  // By stage of an asynchronous pipeline, empty: no such key. staleness: updates between the weights that the gradient
  // is of and those that it updates. drift: how far the weights moved meanwhile, relative to them (NaN: not known).
  // cosine: that of the gradient with the one of the same samples at the newest weights (NaN: not computed).
  std::span<const double> staleness = {}, drift = {}, cosine = {};
  std::optional<ReplicaNumbers> replicas = {};
  std::optional<WorkerNumbers> workers = {};
  std::optional<DriftNumbers> refreshes = {};
  std::optional<TierNumbers> tiers = {};
  std::optional<LoadNumbers> load = {};
  EnergyNumbers energy = {};
  std::uint64_t step_tokens = 0;  // of this update
};

// The ages of the preconditioners of one pipeline stage, in updates.
struct StageAge {
  std::int64_t max = 0;
  double mean = 0;
};

// The facts of a start of a run, which are the first line of each start.
struct RunLine {
  std::int64_t step = 0;                                                           // the step that the run goes on from
  std::string version, commit, build, device, command_line, deck_digest, started;  // started: UTC, ISO 8601
  std::vector<std::string> hosts;                                                  // by rank
  int ranks = 1, threads = 1;                                                      // threads of each rank
};

class Metrics {
 public:
  // Appends to the file; Error(cannot_create) when it cannot be opened. tensorboard: also writes events.out.tfevents.*.
  Metrics(const std::string& run_dir, bool tensorboard);
  Metrics();  // writes nothing, for all ranks but the first
  ~Metrics();
  std::string problem() const;  // says where metrics.jsonl was removed, renamed or replaced; "" if it was not
  void run(const RunLine&);
  void train(const TrainLine&, const std::vector<StageAge>& stages = {});  // stages: none without a pipeline
  void validation(std::int64_t step, std::uint64_t tokens, double loss, std::optional<double> bits_per_byte,
                  double seconds);
  void checkpoint(std::int64_t step, const std::string& path, double seconds, std::uint64_t bytes,
                  const std::string& error);
  void event(std::int64_t step, const std::string& what, const std::string& detail);
  void rewind(std::int64_t step, std::int64_t to_step);
  // The energy of the updates since the start of the process, and which of its domains are counted.
  struct EnergyLine {
    std::optional<double> energy_j = {};  // where all updates knew it
    EnergyNumbers parts = {};             // in the same way
    double seconds = 0;
    std::uint64_t tokens = 0;
    std::string domains;
  };
  void energy(std::int64_t step, const EnergyLine&);
  // The diagnostics of a tensor: update and weight RMS, spectral norm.
  struct TensorLine {
    std::string name;
    double weight_rms, update_rms, spectral_norm;
  };
  void tensors(std::int64_t step, const std::vector<TensorLine>&);
  // The update of the tensors of a pattern (core/update_record.hpp).
  struct UpdateLine {
    std::string pattern, rule, split, owner;     // owner: ranks, "0-3, 6"
    std::int64_t calls = 0;                      // of its optimizer since the last such line
    std::optional<double> orthogonality_defect;  // none for an elementwise rule
    double update_rms = 0, update_ratio = 0, decay = 0;
    std::vector<double> layers;  // update_ratio by layer of the model (NaN: not of the pattern); empty: of no layer
  };
  void updates(std::int64_t step, const std::vector<UpdateLine>&);
  // The rotations of the weights of a pattern (core/layout/rotation_record.hpp): the largest norm and defects, the
  // ends and the root of the mean square of the singular values.
  struct RotationLine {
    std::string pattern;
    double largest_q = 0, defect = 0, applied_defect = 0, sigma_max = 0, sigma_min = 0, sigma_rms = 0;
    std::vector<double> layers;  // largest_q by layer of the model (NaN: not of the pattern)
  };
  void rotations(std::int64_t step, const std::vector<RotationLine>&);
  // Writes, by rank, the mean seconds of a rank's own updates since the last such line, and the cost that the plan gave
  // it (in the units of parallel.cost).
  void loads(std::int64_t step, const std::vector<double>& optimizer_s, const std::vector<std::int64_t>& planned);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// TensorBoard event files: framed protobuf records, written without TensorFlow.

// Returns the CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), as in RFC 3720, appendix B.4.
std::uint32_t crc32c(std::string_view bytes);

// A file of records. Record: u64 length, u32 masked CRC of it, data, u32 masked CRC of the data, little-endian; mask =
// rotate right by 15, plus 0xA282EAD8. Data: Event {1: double wall_time, 2: int64 step, 3: string file_version, 5:
// Summary {1: Value {1: string tag, 2: float simple_value}}}. Buffers are reused: after the first event of a kind none
// is allocated.
class TensorBoardFile {
 public:
  // Creates <folder>/events.out.tfevents.<unix time>.<host>.<pid>.<n>; Error(cannot_create).
  explicit TensorBoardFile(const std::string& folder);
  ~TensorBoardFile();
  TensorBoardFile(const TensorBoardFile&) = delete;
  TensorBoardFile& operator=(const TensorBoardFile&) = delete;

  void begin(std::int64_t step);
  void scalar(std::string_view tag, double value);
  bool end();  // writes the event; false when the disk refuses it
  const std::string& path() const { return path_; }

 private:
  bool write_record(std::string_view data);
  std::string path_, event_, summary_, value_, record_;
  int file_ = -1;
  bool good_ = true;  // the last record could be written
};

}  // namespace sestina
