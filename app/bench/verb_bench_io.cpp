// `sestina bench io`: the store of preconditioners (io/store/block_file.hpp) compared with bare transfers of the same
// size past the page cache, in turn, on the same disk: what digests, copies and the order of work cost. Bare transfers
// go through as few buffers as they need, again and again, as tools that measure disks do, and through as much memory
// as the store has to move, once: what that memory costs by itself.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "app/bench/bench.hpp"
#include "app/command/verbs.hpp"
#include "app/start/run_deck.hpp"
#include "app/train/step_report.hpp"
#include "core/machine_speed.hpp"
#include "core/memory/pager.hpp"
#include "io/store/block_file.hpp"

namespace sestina {
namespace {

constexpr std::size_t block_bytes = std::size_t{4} << 20;  // a factor of 1024 x 1024
constexpr std::size_t chunk = BlockFile::chunk_bytes;

// Fills bytes that are new each time, because the store does not write what the file has.
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

// Moves chunks one after the other, with nothing done to their contents.
class BareDisk {
 public:
  BareDisk(const std::string& path, int depth, std::size_t bytes)
      : path_(path),
        bytes_(bytes),
        memory_(page_memory(std::max(static_cast<std::size_t>(depth) * chunk, block_bytes))),  // also in huge pages
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

  // memory: holds all bytes; null: the transfer has buffers of its own, as many as the depth.
  void move(bool writes, std::byte* memory) {
    const std::size_t chunks = bytes_ / chunk;
    std::size_t next = 0;
    const auto submit = [&](int slot) {
      std::byte* const at = memory == nullptr ? nullptr : memory + next * chunk;
      engine_->submit({slot, writes, next++ * chunk, 0, chunk, at});
    };
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

struct Rates {
  double store_gbs = 0, disk_gbs = 0, ratio = 0;  // medians; disk: bare, through few buffers
  double through_gbs = 0, through_ratio = 0;      // bare, through as much memory as the store
};
struct IoRow {
  int depth = 0;
  Rates write, read;
};

double seconds_of(const std::function<void()>& move) {
  const double start = now_seconds();
  move();
  return now_seconds() - start;
}

// Times the store, bare transfers, and bare transfers through memory; which goes first changes from round to round.
Rates time_rounds(const BenchArguments& arguments, double bytes, const std::array<std::function<double()>, 3>& moves) {
  std::array<std::vector<double>, 3> seconds;
  std::vector<double> ratio, through_ratio;
  for (int i = -arguments.warmup; i < arguments.steps; ++i) {
    std::array<double, 3> round{};
    for (std::size_t k = 0; k < moves.size(); ++k) {
      const std::size_t who = (k + static_cast<std::size_t>(i + arguments.warmup)) % moves.size();
      round[who] = moves[who]();
    }
    if (i < 0) continue;
    for (std::size_t k = 0; k < moves.size(); ++k) seconds[k].push_back(round[k]);
    ratio.push_back(round[1] / round[0]);
    through_ratio.push_back(round[2] / round[0]);
  }
  const auto rate = [&](std::size_t k) { return 1e-9 * bytes / median(seconds[k]); };
  return {rate(0), rate(1), median(ratio), rate(2), median(through_ratio)};
}

IoRow measure(const std::string& folder, int depth, const BenchIoArguments& arguments, std::string& way) {
  const std::size_t blocks =
                        std::max<std::size_t>(1, (static_cast<std::size_t>(arguments.mebibytes) << 20) / block_bytes),
                    bytes = blocks * block_bytes;
  Store store(folder + "/bench.blocks", depth, blocks);
  BareDisk disk(folder + "/bench.bare", depth, bytes);
  way = store.describe();
  const auto pages = page_memory(bytes);  // pages as preconditioners have them
  const auto spare = page_memory(bytes);
  std::memset(spare.get(), 1, bytes);
  std::byte* const memory = pages.get();
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t value = (i + 1) * 0x9E3779B97F4A7C15u;  // data that no disk can compress
    std::memcpy(memory + i, &value, sizeof value);
  }
  std::uint64_t round = 1;
  const auto rates = [&](bool writes) {
    return time_rounds(arguments, static_cast<double>(bytes),
                       {[&, writes] {
                          if (writes) renew(memory, bytes, round++);
                          return seconds_of([&] { store.move(memory, writes); });
                        },
                        [&, writes] { return seconds_of([&] { disk.move(writes, nullptr); }); },
                        [&, writes] { return seconds_of([&] { disk.move(writes, spare.get()); }); }});
  };
  return {depth, rates(true), rates(false)};
}

nlohmann::ordered_json json_of(const Rates& rates) {
  return {{"store_gbs", rates.store_gbs},
          {"disk_gbs", rates.disk_gbs},
          {"ratio", rates.ratio},
          {"through_gbs", rates.through_gbs},
          {"through_ratio", rates.through_ratio}};
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
        "{} MiB in chunks of {} KiB, GB/s; of it: the store's share. bare: through buffers of the queue's depth; "
        "through: through as much memory as the store\n"
        "{:>6}{:>8}{:>8}{:>7}{:>9}{:>7}{:>8}{:>8}{:>7}{:>9}{:>7}\n",
        arguments.mebibytes, chunk / 1024, "depth", "write", "bare", "of it", "through", "of it", "read", "bare",
        "of it", "through", "of it");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string way;
  for (const int depth : {1, 2, 4, 8, 16, 32, 64}) {
    const IoRow row = measure(folder, depth, arguments, way);
    rows.push_back({{"queue_depth", depth}, {"write", json_of(row.write)}, {"read", json_of(row.read)}});
    if (arguments.json) continue;
    fmt::print("{:>6}", depth);
    for (const Rates& rates : {row.write, row.read})
      fmt::print("{:>8.3f}{:>8.3f}{:>5.0f} %{:>9.3f}{:>5.0f} %", rates.store_gbs, rates.disk_gbs, 100 * rates.ratio,
                 rates.through_gbs, 100 * rates.through_ratio);
    fmt::print("\n");
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
