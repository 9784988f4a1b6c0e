#include "parallel/stage/exchange_rate.hpp"

#include "core/dispatch.hpp"
#include "kernels/base/threads.hpp"
#include "parallel/comm/device_communicator.hpp"

namespace sestina {
namespace {

constexpr double giga = 1e9;

template <class Exec>
double time_exchange(const Exec& exec, Communicator& world) {
  constexpr std::size_t bytes = std::size_t{16} << 20;
  constexpr int rounds = 8;
  std::unique_ptr<Communicator> group = world.split(0, world.rank());
  if (!is_host<Exec>) group = on_device(std::move(group));
  const Kokkos::View<char*, typename Exec::memory_space> out("sestina::rate", bytes), in("sestina::rate", bytes);
  exec.fence();
  const int n = group->size(), next = (group->rank() + 1) % n, before = (group->rank() + n - 1) % n;
  const auto exchange = group->make_exchange("measured exchange", {{next, {block_of(out.data(), bytes)}}},
                                             {{before, {block_of(in.data(), bytes)}}});
  double start = 0;
  for (int round = -1; round < rounds; ++round) {  // the first round sets up
    exchange->start();
    exchange->finish();
    if (round >= 0) continue;
    group->barrier();
    start = now_seconds();
  }
  return static_cast<double>(rounds) * static_cast<double>(bytes) / giga / (now_seconds() - start);
}

}  // namespace

double exchange_gbs(RunOptions::Space space, Communicator& world) {
  return dispatch(space, TrainOptions::Precision::fp32,
                  [&](const auto& exec, auto) { return time_exchange(exec, world); });
}

}  // namespace sestina
