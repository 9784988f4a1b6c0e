// `sestina bench io`: the store of preconditioners (io/store/block_file.hpp) beside bare transfers of the same size
// past the page cache, in pairs, on the same disk: what digests, copies and the order of work cost.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "app/command/verbs.hpp"
#include "app/start/deck_layers.hpp"
#include "app/train/step_report.hpp"
#include "app/verbs/bench.hpp"
#include "core/layout/pager.hpp"
#include "io/store/block_file.hpp"

namespace sestina {
namespace {

constexpr std::size_t block_bytes = std::size_t{4} << 20;  // a factor of 1024 x 1024
constexpr std::size_t chunk = BlockFile::chunk_bytes;

// Bytes that are new each time: the store does not write what the file has.
void renew(std::byte* memory, std::size_t bytes, std::uint64_t round) {
  for (std::size_t at = 0; at < bytes; at += block_alignment) std::memcpy(memory + at, &round, sizeof round);
}

class Store {
 public:
  Store(const std::string& path, int depth, std::size_t blocks)
      : file_({.path = path, .queue_depth = depth}), blocks_(blocks) {
    for (std::size_t i = 0; i < blocks; ++i) file_.add(fmt::format("block {}", i), block_bytes);
    file_.open();
  }
  void move(std::byte* memory, bool writes) {
    transfers_.clear();
    for (std::size_t i = 0; i < blocks_; ++i)
      transfers_.push_back({i, memory + i * block_bytes, writes, {}, ExitCode::done});
    file_.run(transfers_);
    for (const auto& transfer : transfers_)
      if (!transfer.ok()) throw Error(transfer.code, transfer.error);
  }
  std::string describe() const { return file_.describe(); }

 private:
  BlockFile file_;
  std::size_t blocks_;
  std::vector<BlockStore::Transfer> transfers_;
};

// Chunks one behind the other, with nothing done to what is in them.
class BareDisk {
 public:
  BareDisk(const std::string& path, int depth, std::size_t bytes)
      : path_(path),
        bytes_(bytes),
        memory_(page_memory(std::max(static_cast<std::size_t>(depth) * chunk, block_bytes))),  // in huge pages too
        depth_(depth) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0600);
    if (file_ < 0)
      fail(ExitCode::cannot_create, "{}: cannot be opened past the page cache: {}", path, std::strerror(errno));
    if (::fallocate(file_, 0, 0, static_cast<off_t>(bytes)) != 0)
      fail(ExitCode::cannot_create, "{}: no room for {} bytes: {}", path, bytes, std::strerror(errno));
    const ChunkBuffers buffers{memory_.get(), static_cast<std::size_t>(depth), chunk};
    std::memset(buffers.data, 1, buffers.slots * buffers.bytes);
    std::string why, notice;
    engine_ = make_chunk_ring(file_, buffers, depth, why, notice);
    if (!engine_) engine_ = make_chunk_pool(file_, buffers, depth);
  }
  ~BareDisk() {
    engine_.reset();
    ::unlink(path_.c_str());
    ::close(file_);
  }
  BareDisk(const BareDisk&) = delete;
  BareDisk& operator=(const BareDisk&) = delete;

  void move(bool writes) {
    const std::size_t chunks = bytes_ / chunk;
    std::size_t next = 0;
    const auto submit = [&](int slot) { engine_->submit({slot, writes, next++ * chunk, 0, chunk}); };
    for (int slot = 0; slot < depth_ && next < chunks; ++slot) submit(slot);
    ChunkEngine::Done done;
    while (engine_->take(done, true)) {
      if (done.moved != static_cast<std::int64_t>(chunk))
        fail(ExitCode::io_error, "{}: moved {} of {} bytes", path_, done.moved, chunk);
      if (next < chunks) submit(done.slot);
    }
  }

 private:
  std::string path_;
  std::size_t bytes_;
  std::shared_ptr<std::byte> memory_;
  int depth_, file_ = -1;
  std::unique_ptr<ChunkEngine> engine_;
};

struct Pair {
  double store_gbs = 0, disk_gbs = 0, ratio = 0;  // medians
};
struct IoRow {
  int depth = 0;
  Pair write, read;
};

template <class Move>
double seconds_of(const Move& move) {
  const double start = now_seconds();
  move();
  return now_seconds() - start;
}

// Who goes first changes from pair to pair.
template <class StoreMove, class DiskMove>
Pair time_pairs(const BenchArguments& arguments, double bytes, const StoreMove& store, const DiskMove& disk) {
  std::vector<double> ours, bare, ratio;
  for (int i = -arguments.warmup; i < arguments.steps; ++i) {
    double a = 0, b = 0;
    if (i % 2 == 0) a = store();
    b = disk();
    if (i % 2 != 0) a = store();
    if (i < 0) continue;
    ours.push_back(a);
    bare.push_back(b);
    ratio.push_back(b / a);
  }
  return {1e-9 * bytes / median(ours), 1e-9 * bytes / median(bare), median(ratio)};
}

IoRow measure(const std::string& folder, int depth, const BenchIoArguments& arguments, std::string& way) {
  const std::size_t blocks =
                        std::max<std::size_t>(1, (static_cast<std::size_t>(arguments.mebibytes) << 20) / block_bytes),
                    bytes = blocks * block_bytes;
  Store store(folder + "/bench.blocks", depth, blocks);
  BareDisk disk(folder + "/bench.bare", depth, bytes);
  way = store.describe();
  const auto pages = page_memory(bytes);  // as preconditioners have
  std::byte* const memory = pages.get();
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t value = (i + 1) * 0x9E3779B97F4A7C15u;  // nothing that a disk could squeeze
    std::memcpy(memory + i, &value, sizeof value);
  }
  std::uint64_t round = 1;
  IoRow row{depth, {}, {}};
  row.write = time_pairs(
      arguments, static_cast<double>(bytes),
      [&] {
        renew(memory, bytes, round++);
        return seconds_of([&] { store.move(memory, true); });
      },
      [&] { return seconds_of([&] { disk.move(true); }); });
  row.read = time_pairs(
      arguments, static_cast<double>(bytes), [&] { return seconds_of([&] { store.move(memory, false); }); },
      [&] { return seconds_of([&] { disk.move(false); }); });
  return row;
}

nlohmann::ordered_json json_of(const Pair& pair) {
  return {{"store_gbs", pair.store_gbs}, {"disk_gbs", pair.disk_gbs}, {"ratio", pair.ratio}};
}

}  // namespace

int run_bench_io(const BenchIoArguments& arguments) {
  Deck deck = layered_deck(arguments.deck);
  const Options options = Options::read(deck);
  deck.finish();
  const std::string& path = options.optimizer.refresh.path;
  const std::string folder = path.empty() ? "." : path;
  if (!arguments.json)
    fmt::print(
        "{} MiB in chunks of {} KiB, GB/s; of the disk: the store's share of the bare rate\n{:>6}{:>10}{:>10}{:>10}"
        "{:>10}{:>10}{:>10}\n",
        arguments.mebibytes, chunk / 1024, "depth", "write", "bare", "of disk", "read", "bare", "of disk");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string way;
  for (const int depth : {1, 2, 4, 8, 16, 32, 64}) {
    const IoRow row = measure(folder, depth, arguments, way);
    rows.push_back({{"queue_depth", depth}, {"write", json_of(row.write)}, {"read", json_of(row.read)}});
    if (!arguments.json)
      fmt::print("{:>6}{:>10.3f}{:>10.3f}{:>8.0f} %{:>10.3f}{:>10.3f}{:>8.0f} %\n", depth, row.write.store_gbs,
                 row.write.disk_gbs, 100 * row.write.ratio, row.read.store_gbs, row.read.disk_gbs,
                 100 * row.read.ratio);
  }
  const nlohmann::ordered_json json{{"path", folder},
                                    {"store", way},
                                    {"bytes", static_cast<std::uint64_t>(arguments.mebibytes) << 20},
                                    {"chunk_bytes", chunk},
                                    {"pairs", arguments.steps},
                                    {"depths", rows}};
  if (arguments.json) fmt::print("{}\n", json.dump());
  return 0;
}

}  // namespace sestina
