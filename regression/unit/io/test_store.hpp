// For tests of what lies on a fast disk: what is said in the log, calls that the system refuses, an engine that is
// watched and disturbed.
#pragma once
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "io/store/chunk_engine.hpp"

namespace sestina::test {

// What the log says while `body` runs.
template <class Body>
std::string said(const Body& body) {
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("said", std::make_shared<spdlog::sinks::ostream_sink_mt>(text)));
  body();
  spdlog::set_default_logger(before);
  return text.str();
}

inline std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

inline std::string noise_text(std::size_t n, unsigned seed = 1) {
  std::mt19937 draw(seed);
  std::string bytes(n, 0);
  for (char& b : bytes) b = static_cast<char>(draw());
  return bytes;
}

// Returns whether a process may forbid itself calls here; under an emulator of processors it may not.
inline bool can_forbid() { return ::prctl(PR_GET_SECCOMP) >= 0; }

// Lets the system refuse a call to this process for good, as a container's seccomp profile does, where
// (argument & mask) != 0; mask 0: always. Exits with 77 where that cannot be had.
inline void forbid(long call, int error, unsigned argument = 0, std::uint32_t mask = 0) {
  const auto value = [](unsigned i) { return static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * i); };
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, value(argument)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, mask, 0, static_cast<std::uint8_t>(mask == 0 ? 0 : 1)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    std::_Exit(77);
}

// What goes through an engine, and what is done to it.
struct Watch {
  int reads = 0, writes = 0, under_way = 0, most = 0;
  std::uint64_t bytes_read = 0, bytes_written = 0;
  std::size_t piece = 0;                                     // at most so many bytes of a transfer; 0: all
  std::function<int(const ChunkEngine::Chunk&)> error = {};  // errno of a transfer, 0: it is let through
  std::function<std::unique_ptr<ChunkEngine>(std::unique_ptr<ChunkEngine>)> wrap();
};

class WatchedEngine final : public ChunkEngine {
 public:
  WatchedEngine(std::unique_ptr<ChunkEngine> engine, Watch& watch) : engine_(std::move(engine)), watch_(watch) {}
  void submit(const Chunk& asked) override {
    Chunk less = asked;
    if (watch_.piece > 0) less.bytes = std::min(asked.bytes, watch_.piece);
    errors_[static_cast<std::size_t>(asked.slot)] = watch_.error ? watch_.error(asked) : 0;
    writes_[static_cast<std::size_t>(asked.slot)] = asked.writes;
    ++(asked.writes ? watch_.writes : watch_.reads);
    watch_.most = std::max(watch_.most, ++watch_.under_way);
    engine_->submit(less);
  }
  bool take(Done& done, bool wait) override {
    if (!engine_->take(done, wait)) return false;
    --watch_.under_way;
    const auto slot = static_cast<std::size_t>(done.slot);
    if (errors_[slot] != 0) done.moved = -errors_[slot];
    if (done.moved > 0)
      (writes_[slot] ? watch_.bytes_written : watch_.bytes_read) += static_cast<std::uint64_t>(done.moved);
    return true;
  }
  std::string name() const override { return engine_->name(); }

 private:
  std::unique_ptr<ChunkEngine> engine_;
  Watch& watch_;
  int errors_[64] = {};
  bool writes_[64] = {};
};

inline std::function<std::unique_ptr<ChunkEngine>(std::unique_ptr<ChunkEngine>)> Watch::wrap() {
  return
      [this](std::unique_ptr<ChunkEngine> engine) { return std::make_unique<WatchedEngine>(std::move(engine), *this); };
}

}  // namespace sestina::test
