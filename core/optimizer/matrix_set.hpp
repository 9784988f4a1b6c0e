// The matrices of one rank and their optimizers, spread over streams. On the host a stream is a thread that updates
// whole matrices on its own (Serial): products of many middle-sized matrices run faster each on one thread than each on
// all threads. Where that would leave threads idle, and on a device, one stream with all threads takes the matrices one
// after another.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/memory/pager.hpp"
#include "core/optimizer/base/matrix_optimizer.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/refresh/worker_pool.hpp"

namespace sestina {

// One matrix to update, in memory that streams of any space of the same memory can read.
template <class Exec>
struct MatrixItem {
  OwnedMatrix<Exec> matrix;
  TensorRates rates;
  std::int64_t index = 0;      // number among the matrices of the whole model
  bool saved = true;           // false: another rank writes the same state to checkpoints
  std::size_t skew_block = 0;  // b: gradient and master are a packed matrix (b, b), see matrix_optimizer.hpp; 0: they
                               // are the matrix
  std::int64_t reset_every = 0, reset_phase = 0;  // see TensorSpec
  int resets_with = -1;                           // the layer after whose early merges it starts over; -1: none
  std::string tensor = {};                        // HF name of the tensor it is of
  std::size_t rows() const { return skew_block > 0 ? skew_block : matrix.rows(); }  // as its optimizer sees it
  std::size_t cols() const { return skew_block > 0 ? skew_block : matrix.cols(); }
  bool is_copied() const { return skew_block > 0 || matrix.is_cut(); }  // for its update
};

// The state of the asynchronous refreshes of a matrix; `updates` are its optimizer's own.
struct RefreshClock {
  std::int64_t updates = 0;
  std::int64_t sent = 0, newness = 0;  // see RefreshPort
};

template <class Exec>
class MatrixSet {
 public:
  virtual ~MatrixSet() = default;
  // Makes update number t of the matrices [begin, end) with factor times each one's peak rate.
  virtual void step(std::int64_t t, double factor, double gradient_scale, std::size_t begin, std::size_t end) = 0;
  // Leaves out update number t; state that starts over before it still does.
  virtual void withhold(std::int64_t t) = 0;
  // Returns whether the next update of all matrices sends to a device what most of them do, and looks at nothing that
  // the device or a worker computed: no refresh falls due, is under way or is still to be booked.
  virtual bool repeats() = 0;
  virtual void follow_merges(const LayerMerges*) {}  // see AdamW
  virtual std::size_t size() const = 0;              // matrices
  virtual const std::vector<MatrixItem<Exec>>& items() const = 0;
  virtual const std::string& kind() const = 0;
  virtual const std::vector<std::int64_t>& calls() const = 0;  // of the optimizer of each matrix
  virtual std::vector<StateField> state() = 0;  // in the order of the items; waits for refreshes that are queued
  // Returns the seconds since the last call: waits and copies of the stream that spent most on each, workers of all.
  virtual RefreshSeconds take_refresh_seconds() = 0;
  virtual RefreshDrift take_refresh_drift() = 0;  // of all streams since the last call
  virtual WorkerPool* workers() = 0;              // null: no asynchronous refreshes
  virtual std::int64_t refresh_failures() const = 0;
  // Returns the updates since the snapshots were taken from which the bases, roots and projectors in use come, over all
  // that there are; inline: since the start of the process.
  virtual RefreshAges ages() const = 0;
  virtual int streams() const = 0;
  // Sets the receiver of factors that could not be decomposed; it is called from any stream.
  virtual void dump_failures(const RefreshDump&) = 0;

  // Sets periods by index of the matrix in the whole model, in the place of MatrixOptions::refresh_every. Called before
  // the first update.
  virtual void set_refresh_periods(const std::vector<std::int64_t>&) = 0;
  // Sets how many updates after its copy a result is used, at most MatrixOptions::refresh_staleness. Called as well
  // before the first update.
  virtual void set_refresh_staleness(std::int64_t updates) = 0;
  // Says, by the same index, which matrices an update refreshes itself although there are workers. Called as well
  // before the first update, or when nothing is in flight.
  virtual void set_refresh_executors(const std::vector<std::uint8_t>& in_update) = 0;

  // Lets state that has a tier lie with the pager between its uses, from its open() on.
  virtual void page_to(const std::shared_ptr<Pager>&) = 0;

  // These serve matrices that other ranks hold as well (parallel/stage/coherence.hpp). replica: the state of matrix i
  // and its master weights; none where it has no asynchronous refreshes. A replica is opened, written and closed:
  // workers let go of it, then what is computed with is made from the master weights.
  virtual std::vector<StateField> replica(std::size_t i) = 0;
  virtual RefreshClock refresh_clock(std::size_t i) = 0;
  virtual void open_replica(std::size_t i) = 0;
  virtual void close_replica(std::size_t i) = 0;

  // For benchmarks: counts the products of all streams since the last call; seconds are those of the stream that spent
  // most.
  virtual void time_products(bool on) = 0;
  virtual ProductCount take_products() = 0;
};

struct MatrixSetOptions {
  MatrixOptions options;
  RefreshPolicy refresh;
  bool deterministic = false;
  double* nonfinite = nullptr;                          // see kernels/optimizer/matrix_update.hpp
  WorkerPool::Options workers;                          // workers of asynchronous refreshes
  std::shared_ptr<RefreshWorkers> shared_workers = {};  // workers of all stages of the process; null: a pool of its own
  int threads = 0;  // streams on the host: 0 = chosen by the balance of the matrices, 1 = one stream with all threads
};

template <class Exec>
std::unique_ptr<MatrixSet<Exec>> make_matrix_set(const Exec&, const std::vector<MatrixItem<Exec>>&,
                                                 const MatrixSetOptions&);

// A tensor to be taken apart into the matrices that a MatrixSet updates (MatrixPart).
struct MatrixTensor {
  TensorSpec spec;  // spec of what is updated: its name begins the names of its state
  TensorRates rates;
  std::int64_t index = 0;
  bool saved = true;           // see TensorHolding
  std::int64_t row_begin = 0;  // first of the rows at hand: those of some of its matrices
  std::string name = {};       // HF name of the whole tensor
};

// Returns a part of the rows at hand of its tensor, from row `begin` of them on: packed numbers as one row.
template <class View>
View part_of(const View& rows, const MatrixPart& part, std::int64_t begin) {
  if (part.skew) return View(rows.data() + begin, 1, static_cast<std::size_t>(part.elements()));
  return Kokkos::subview(rows, std::pair(begin, begin + part.rows),
                         std::pair(part.col_begin, part.col_begin + part.cols));
}

// Adds the matrices of a tensor. gradient, master and weight (rows at hand, n); weight is empty where the master is
// computed with.
template <class Exec>
void add_matrix_items(const MatrixTensor& tensor, const OptimizerOptions& options,
                      const Matrix<const float, Exec>& gradient, const Matrix<float, Exec>& master,
                      const Matrix<bf16, Exec>& weight, std::vector<MatrixItem<Exec>>& items) {
  std::int64_t next = tensor.index;
  const std::int64_t row_end = tensor.row_begin + static_cast<std::int64_t>(master.extent(0));
  for (const MatrixPart& part : matrix_parts(tensor.spec, options)) {
    const std::int64_t index = next++;
    const std::int64_t rows = part.skew ? part.elements() : part.rows;  // of the tensor
    if (part.row_begin < tensor.row_begin || part.row_begin + rows > row_end) continue;
    const std::int64_t begin = part.row_begin - tensor.row_begin;
    OwnedMatrix<Exec> matrix{part.name, part_of(gradient, part, begin), part_of(master, part, begin), {}};
    if (weight.size() > 0) matrix.weight = part_of(weight, part, begin);
    items.push_back({matrix, tensor.rates, index, tensor.saved, static_cast<std::size_t>(part.skew ? part.rows : 0),
                     tensor.spec.reset_every, tensor.spec.reset_phase,
                     tensor.spec.resets_early ? tensor.spec.layer : -1, tensor.name});
  }
}

}  // namespace sestina
