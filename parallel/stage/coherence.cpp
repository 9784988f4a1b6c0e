#include "parallel/stage/coherence.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/memory/pager.hpp"

namespace sestina {
namespace {

constexpr const char* wait_name = "coherence of replicas";

constexpr std::size_t piece_bytes = coherence_piece * sizeof(float);

double square(double x) { return x * x; }

std::size_t total_bytes(const std::vector<StateField>& fields) {
  std::size_t sum = 0;
  for (const StateField& field : fields) sum += field.bytes();
  return sum;
}

// Bytes of a field that follow one another in memory, and the distance from their begin to that of the next ones: all
// of them, or a row of a block.
struct FieldRuns {
  std::size_t bytes, apart;
  explicit FieldRuns(const StateField& field) : bytes(field.bytes()), apart(bytes) {
    if (field.row_stride == 0) return;
    bytes = static_cast<std::size_t>(field.row_elements()) * size_of(field.dtype);
    apart = static_cast<std::size_t>(field.row_stride) * size_of(field.dtype);
  }
};

// Visits what lies in bytes [begin, begin + count) of fields laid one after the other: part(field, place in its memory,
// place in the piece, bytes).
template <class Part>
void for_each_part(const std::vector<StateField>& fields, std::size_t begin, std::size_t count, const Part& part) {
  std::size_t at = 0;  // where the field begins
  for (const StateField& field : fields) {
    const FieldRuns runs(field);
    const std::size_t to = std::min(begin + count, at + field.bytes());
    for (std::size_t from = std::max(begin, at); from < to;) {
      const std::size_t run = (from - at) / runs.bytes, in_run = (from - at) % runs.bytes;
      const std::size_t n = std::min(to - from, runs.bytes - in_run);
      part(field, run * runs.apart + in_run, from - begin, n);
      from += n;
    }
    at += field.bytes();
  }
}

// Copies between a field, after what a device still has to do for it, and host memory.
template <class Exec>
void fetch(const Exec& exec, const StateField& field, std::size_t at, std::byte* to, std::size_t n) {
  const Pin pin(field.pager, field.data, Pager::Need::reading);
  const auto* const from = static_cast<const std::byte*>(field.data) + at;
  if (!field.on_device) {
    std::memcpy(to, from, n);
    return;
  }
  Kokkos::deep_copy(exec, Vector<std::byte, Host>(to, n), Vector<const std::byte, Exec>(from, n));
  exec.fence("coherence");
}
template <class Exec>
void put(const Exec& exec, const StateField& field, const std::byte* from, std::size_t at, std::size_t n) {
  const auto to = write_to(field);
  if (!field.on_device) {
    std::memcpy(to.view() + at, from, n);
    return;
  }
  Kokkos::deep_copy(exec, Vector<std::byte, Exec>(to.view() + at, n), Vector<const std::byte, Host>(from, n));
  exec.fence("coherence");  // the piece is written again
}

// Returns the number of matrices that are refreshed asynchronously.
template <class Exec>
std::size_t count_replicas(MatrixSet<Exec>& matrices) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < matrices.size(); ++i) count += matrices.replica(i).empty() ? 0 : 1;
  return count;
}

}  // namespace

template <class Exec>
Coherence<Exec>::Coherence(const Exec& exec, Communicator& group, const NodeLevels& levels, MatrixSet<Exec>& matrices,
                           const CoherenceRule& rule, std::function<void()> complete)
    : exec_(exec),
      group_(group),
      matrices_(matrices),
      levels_(levels),
      registry_(count_replicas(matrices), rule),
      complete_(std::move(complete)),
      received_("sestina::received", coherence_staging_elements(levels_, group.rank())),
      result_(received_.data() + received_.size() - 2 * coherence_piece),
      own_(result_ + coherence_piece) {}

// Finds the fields once all of them have their place, which a tier gives them later than this object is made.
template <class Exec>
void Coherence<Exec>::find_blocks() {
  if (!blocks_.empty()) return;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    Block block{i};
    for (StateField& field : matrices_.replica(i))
      (is_averaged(field.dtype, field.of_basis) ? block.averaged : block.copied).push_back(std::move(field));
    if (!block.averaged.empty()) blocks_.push_back(std::move(block));
  }
  due_.reserve(blocks_.size());
  alike_.reserve(blocks_.size());
  owners_.reserve(blocks_.size());
  newness_.resize(blocks_.size() * static_cast<std::size_t>(group_.size() + 1));
}

template <class Exec>
void Coherence<Exec>::start() {
  find_blocks();
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    registry_.equal(i, matrices_.refresh_clock(blocks_[i].matrix).updates);
}

template <class Exec>
const typename Coherence<Exec>::Matrices& Coherence<Exec>::after_update() {
  find_blocks();
  due_.clear();
  looked_at_.clear();
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const RefreshClock clock = matrices_.refresh_clock(blocks_[i].matrix);
    if (registry_.due(i, clock.updates, clock.sent)) due_.push_back(i);
    if (registry_.looks(i, clock.updates, clock.sent)) looked_at_.push_back(i);
  }
  find_drifted(looked_at_);
  return make_equal(due_);
}

template <class Exec>
const typename Coherence<Exec>::Matrices& Coherence<Exec>::synchronise() {
  find_blocks();
  due_.clear();
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const RefreshClock clock = matrices_.refresh_clock(blocks_[i].matrix);
    if (registry_.last(i) == clock.updates) continue;
    if (CoherenceRegistry::may_differ(clock.sent))
      due_.push_back(i);
    else
      registry_.equal(i, clock.updates);
  }
  return make_equal(due_);
}

template <class Exec>
const typename Coherence<Exec>::Matrices& Coherence<Exec>::make_equal(const std::vector<std::size_t>& blocks) {
  alike_.clear();
  if (blocks.empty()) return alike_;
  if (complete_) complete_();
  exec_.fence("coherence");
  for (const std::size_t block : blocks) matrices_.open_replica(blocks_[block].matrix);  // counters are final now
  find_newest(blocks);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks_[blocks[i]];
    average(block);
    copy(block, owners_[i]);
    matrices_.close_replica(block.matrix);
    registry_.synchronised(blocks[i], matrices_.refresh_clock(block.matrix).updates);
    ++count_.blocks;
    alike_.push_back(block.matrix);
  }
  exec_.fence("coherence");
  return alike_;
}

// Adds the blocks whose replicas have drifted beyond the bound to those that are due, which stay in order. All ranks
// have the sketches of all: they find the same. A drift that is not a number is beyond every bound.
template <class Exec>
void Coherence<Exec>::find_drifted(const std::vector<std::size_t>& blocks) {
  if (blocks.empty()) return;
  if (complete_) complete_();
  exec_.fence("coherence");
  const std::size_t count = blocks.size(), ranks = static_cast<std::size_t>(group_.size());
  sketches_.resize(count * (ranks + 1));
  DriftSketch* const mine = sketches_.data() + count * ranks;
  for (std::size_t i = 0; i < count; ++i) mine[i] = sketch_of(blocks[i]);
  group_.all_gather(mine, count * sizeof(DriftSketch), sketches_.data());
  count_told(count * sizeof(DriftSketch));
  count_.sketches += static_cast<std::int64_t>(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::span<const DriftSketch> all(sketches_.data() + i, (ranks - 1) * count + 1);
    if (!(estimated_drift(all, count) <= registry_.rule().drift)) due_.push_back(blocks[i]);
  }
  std::sort(due_.begin(), due_.end());
}

// Sketches the weights of a block on this rank.
template <class Exec>
DriftSketch Coherence<Exec>::sketch_of(std::size_t block) {
  const std::size_t matrix = blocks_[block].matrix;
  const std::uint64_t stream =
      sketch_stream(registry_.rule().seed, matrices_.items()[matrix].index, matrices_.refresh_clock(matrix).updates);
  const std::vector<StateField> weights = {blocks_[block].averaged.back()};
  const std::size_t all = weights[0].bytes();
  DriftSketch sketch{};
  for (std::size_t begin = 0; begin < all; begin += piece_bytes) {
    const std::size_t bytes = std::min(piece_bytes, all - begin);
    for_each_part(weights, begin, bytes,
                  [&](const StateField& field, std::size_t place, std::size_t at, std::size_t n) {
                    fetch(exec_, field, place, reinterpret_cast<std::byte*>(own_) + at, n);
                  });
    add_to_sketch(stream, begin / sizeof(float), {own_, bytes / sizeof(float)}, sketch);
  }
  return sketch;
}

// Counts what this rank tells each of the others.
template <class Exec>
void Coherence<Exec>::count_told(std::size_t told) {
  const auto bytes = static_cast<std::int64_t>(told);
  const auto here = static_cast<std::int64_t>(levels_.mates(group_.rank()).size());
  count_.bytes.add({(group_.size() - 1) * bytes, (group_.size() - here) * bytes});
}

// Finds the rank with the newest replica of each block.
template <class Exec>
void Coherence<Exec>::find_newest(const std::vector<std::size_t>& blocks) {
  const std::size_t count = blocks.size(), ranks = static_cast<std::size_t>(group_.size());
  std::int64_t *const all = newness_.data(), *const mine = all + count * ranks;
  for (std::size_t i = 0; i < count; ++i) mine[i] = matrices_.refresh_clock(blocks_[blocks[i]].matrix).newness;
  group_.all_gather(mine, count * sizeof(std::int64_t), all);
  count_told(count * sizeof(std::int64_t));
  owners_.assign(count, 0);
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t rank = 1; rank < ranks; ++rank)
      if (all[rank * count + i] > all[static_cast<std::size_t>(owners_[i]) * count + i])
        owners_[i] = static_cast<int>(rank);
}

template <class Exec>
void Coherence<Exec>::average(const Block& block) {
  double moved = 0, size = 0;  // squares of what weights moved by, and of what they became
  const std::size_t all = total_bytes(block.averaged);
  const auto note = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      moved += square(static_cast<double>(own_[i]) - static_cast<double>(result_[i]));
      size += square(static_cast<double>(result_[i]));
    }
  };
  for (std::size_t begin = 0; begin < all; begin += piece_bytes) {
    const std::size_t bytes = std::min(piece_bytes, all - begin);
    for_each_part(block.averaged, begin, bytes,
                  [&](const StateField& field, std::size_t place, std::size_t at, std::size_t n) {
                    fetch(exec_, field, place, reinterpret_cast<std::byte*>(own_) + at, n);
                  });
    mean_of_all(bytes / sizeof(float));
    for_each_part(block.averaged, begin, bytes,
                  [&](const StateField& field, std::size_t place, std::size_t at, std::size_t n) {
                    if (&field == &block.averaged.back()) note(at / sizeof(float), (at + n) / sizeof(float));
                    put(exec_, field, reinterpret_cast<const std::byte*>(result_) + at, place, n);
                  });
  }
  if (moved > 0) count_.drift = std::max(count_.drift, std::sqrt(moved / size));
}

template <class Exec>
void Coherence<Exec>::copy(const Block& block, int owner) {
  const bool owns = group_.rank() == owner;
  const std::size_t all = total_bytes(block.copied);
  auto* const piece = reinterpret_cast<std::byte*>(own_);
  for (std::size_t begin = 0; begin < all; begin += piece_bytes) {
    const std::size_t bytes = std::min(piece_bytes, all - begin);
    if (owns)
      for_each_part(block.copied, begin, bytes,
                    [&](const StateField& field, std::size_t place, std::size_t at, std::size_t n) {
                      fetch(exec_, field, place, piece + at, n);
                    });
    pass_on(owner, bytes);
    if (!owns)
      for_each_part(block.copied, begin, bytes,
                    [&](const StateField& field, std::size_t place, std::size_t at, std::size_t n) {
                      put(exec_, field, piece + at, place, n);
                    });
  }
}

// Sets result to the mean of all ranks' own pieces.
template <class Exec>
void Coherence<Exec>::mean_of_all(std::size_t n) {
  const int rank = group_.rank(), my_leader = leader(levels_.node(rank));
  if (rank != my_leader) {
    send(my_leader, own_, n * sizeof(float));
    group_.receive(my_leader, result_, n * sizeof(float));
    return group_.wait(wait_name);
  }
  const std::vector<int>& mates = levels_.mates(rank);
  float* const others = received_.data();
  for (std::size_t m = 1; m < mates.size(); ++m) group_.receive(mates[m], others + (m - 1) * n, n * sizeof(float));
  group_.wait(wait_name);
  for (std::size_t i = 0; i < n; ++i) {
    double sum = own_[i];
    for (std::size_t m = 1; m < mates.size(); ++m) sum += static_cast<double>(others[(m - 1) * n + i]);
    result_[i] = static_cast<float>(sum / static_cast<double>(mates.size()));
  }
  mean_of_nodes(n);
  for (const int mate : mates)
    if (mate != rank) send(mate, result_, n * sizeof(float));
  group_.wait(wait_name);
}

// On leaders: the result, which is the mean of the node, becomes the mean of all nodes, each weighted by its ranks.
template <class Exec>
void Coherence<Exec>::mean_of_nodes(std::size_t n) {
  const std::size_t nodes = levels_.nodes.size();
  const int first = leader(0);
  if (nodes == 1) return;
  if (group_.rank() != first) {
    send(first, result_, n * sizeof(float));
    group_.wait(wait_name);
    group_.receive(first, result_, n * sizeof(float));
    return group_.wait(wait_name);
  }
  float* const others = received_.data();
  for (std::size_t k = 1; k < nodes; ++k)
    group_.receive(leader(static_cast<int>(k)), others + (k - 1) * n, n * sizeof(float));
  group_.wait(wait_name);
  for (std::size_t i = 0; i < n; ++i) {
    double sum = static_cast<double>(levels_.nodes[0].size()) * static_cast<double>(result_[i]);
    for (std::size_t k = 1; k < nodes; ++k)
      sum += static_cast<double>(levels_.nodes[k].size()) * static_cast<double>(others[(k - 1) * n + i]);
    result_[i] = static_cast<float>(sum / static_cast<double>(levels_.node_of.size()));
  }
  for (std::size_t k = 1; k < nodes; ++k) send(leader(static_cast<int>(k)), result_, n * sizeof(float));
  group_.wait(wait_name);
}

// Sends the owner's piece to its node and to the leaders of the other nodes, who pass it on.
template <class Exec>
void Coherence<Exec>::pass_on(int owner, std::size_t bytes) {
  const int rank = group_.rank(), node = levels_.node(rank), home = levels_.node(owner);
  if (rank == owner) {
    for (const int mate : levels_.mates(rank))
      if (mate != rank) send(mate, own_, bytes);
    for (int k = 0; k < static_cast<int>(levels_.nodes.size()); ++k)
      if (k != home) send(leader(k), own_, bytes);
    return group_.wait(wait_name);
  }
  group_.receive(node == home || leads() ? owner : leader(node), own_, bytes);
  group_.wait(wait_name);
  if (node == home || !leads()) return;
  for (const int mate : levels_.mates(rank))
    if (mate != rank) send(mate, own_, bytes);
  group_.wait(wait_name);
}

template <class Exec>
void Coherence<Exec>::send(int peer, const void* data, std::size_t bytes) {
  group_.send(peer, data, bytes);
  const auto sent = static_cast<std::int64_t>(bytes);
  count_.bytes.add({sent, levels_.node(peer) == levels_.node(group_.rank()) ? 0 : sent});
}

template <class Exec>
CoherenceCount Coherence<Exec>::take_count() {
  return std::exchange(count_, {});
}

#define SESTINA_COHERENCE(Exec) template class Coherence<Exec>;
SESTINA_INSTANTIATE_SPACES(SESTINA_COHERENCE)

}  // namespace sestina
