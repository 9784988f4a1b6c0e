// Exchanges of device memory, through NCCL where each rank has a device of its own, and over the host.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>

#include "parallel/comm/device_communicator.hpp"
#include "regression/unit/mpi/ranks.hpp"

namespace sestina {
namespace {

// Integers in device memory.
class DeviceInts {
 public:
  explicit DeviceInts(std::size_t n) : n_(n) {
    check(n > 0 ? cudaMalloc(reinterpret_cast<void**>(&data_), bytes()) : cudaSuccess);
  }
  ~DeviceInts() { cudaFree(data_); }
  DeviceInts(const DeviceInts&) = delete;
  DeviceInts& operator=(const DeviceInts&) = delete;
  int* data() const { return data_; }
  std::size_t bytes() const { return n_ * sizeof(int); }
  void write(const std::vector<int>& values) { check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyDefault)); }
  std::vector<int> read() const {
    std::vector<int> values(n_);
    check(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDefault));
    return values;
  }

 private:
  static void check(cudaError_t error) { EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }
  std::size_t n_;
  int* data_ = nullptr;
};
using Buffers = std::vector<std::unique_ptr<DeviceInts>>;

using Maker = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)>;
class DeviceExchange : public testing::TestWithParam<Maker> {
 protected:
  std::unique_ptr<Communicator> group_ = GetParam()(world().split(0, world().rank()));
  const int n_ = world().size(), me_ = world().rank();
};

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Ranks: DeviceExchange 1 2 4

// Rank a sends to b, itself among them, a * (b + 1) values that lie in every second place (so rank 0 sends nothing),
// and one more that lies alone; in one piece they arrive. Rounds, because staging memory is used again.
TEST_P(DeviceExchange, CarriesUnevenStridedBlocksAgainAndAgain) {
  Buffers out, in;
  std::vector<Message> sends, receives;
  for (int peer = 0; peer < n_; ++peer) {
    const std::size_t values = at(me_ * (peer + 1)), arriving = at(peer * (me_ + 1));
    out.push_back(std::make_unique<DeviceInts>(2 * values + 1));
    in.push_back(std::make_unique<DeviceInts>(arriving + (peer > 0 ? 1 : 0)));
    int* from = out.back()->data();
    sends.push_back({peer, {{from, values, sizeof(int), 2 * sizeof(int)}}});
    if (me_ > 0) sends.back().blocks.push_back(block_of(from + 2 * values, sizeof(int)));
    receives.push_back({peer, {block_of(in.back()->data(), in.back()->bytes())}});
  }
  const auto exchange = group_->make_exchange("uneven", sends, receives);
  EXPECT_TRUE(exchange->test());
  for (int round = 0; round < 3; ++round) {
    for (int peer = 0; peer < n_; ++peer) {
      std::vector<int> values(out[at(peer)]->bytes() / sizeof(int), -7);
      for (std::size_t i = 0; i < values.size(); i += 2) values[i] = 1000 * round + 100 * me_ + peer;
      out[at(peer)]->write(values);
      in[at(peer)]->write(std::vector<int>(in[at(peer)]->bytes() / sizeof(int), -1));
    }
    exchange->start();
    if (round == 1)
      while (!exchange->test()) {
      }
    exchange->finish();
    for (int peer = 0; peer < n_; ++peer)
      for (const int value : in[at(peer)]->read()) EXPECT_EQ(value, 1000 * round + 100 * peer + me_);
  }
}

// The same blocks to all ranks; they arrive in columns of a matrix. Two exchanges are under way at a time.
TEST_P(DeviceExchange, GathersIntoColumnsTwoAtATime) {
  constexpr int rows = 37, width = 3;
  const std::size_t stride = at(n_ * width) * sizeof(int);
  DeviceInts own[2] = {DeviceInts(2 * rows * width), DeviceInts(2 * rows * width)};
  DeviceInts all[2] = {DeviceInts(at(rows * n_ * width)), DeviceInts(at(rows * n_ * width))};
  std::unique_ptr<Exchange> exchanges[2];
  for (int e = 0; e < 2; ++e) {
    std::vector<int> values(2 * rows * width, -1);  // every second row is sent
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < width; ++c) values[at(2 * r * width + c)] = 10000 * e + 1000 * me_ + width * r + c;
    own[e].write(values);
    std::vector<Message> sends, receives;
    for (int peer = 0; peer < n_; ++peer) {
      sends.push_back({peer, {{own[e].data(), rows, width * sizeof(int), 2 * width * sizeof(int)}}});
      receives.push_back({peer, {{all[e].data() + peer * width, rows, width * sizeof(int), stride}}});
    }
    exchanges[e] = group_->make_exchange("columns", sends, receives);
  }
  for (auto& exchange : exchanges) exchange->start();
  for (auto& exchange : exchanges) exchange->finish();
  for (int e = 0; e < 2; ++e) {
    const std::vector<int> values = all[e].read();
    for (int r = 0; r < rows; ++r)
      for (int peer = 0; peer < n_; ++peer)
        for (int c = 0; c < width; ++c)
          ASSERT_EQ(values[at((r * n_ + peer) * width + c)], 10000 * e + 1000 * peer + width * r + c);
  }
}

TEST_P(DeviceExchange, TakesHostMemoryOnEitherSide) {
  const int next = (me_ + 1) % n_, last = (me_ + n_ - 1) % n_;
  std::vector<int> host_out = {me_, me_ + 10, me_ + 20}, host_in(4, -1);
  DeviceInts device_out(1), device_in(4);
  device_out.write({me_ + 30});
  const std::vector<Block> mixed = {block_of(host_out.data(), 3 * sizeof(int)),
                                    block_of(device_out.data(), sizeof(int))};
  const auto to_device =
      group_->make_exchange("to device", {{next, mixed}}, {{last, {block_of(device_in.data(), device_in.bytes())}}});
  to_device->start();
  to_device->finish();
  const std::vector<int> expected = {last, last + 10, last + 20, last + 30};
  EXPECT_EQ(device_in.read(), expected);
  const auto to_host = group_->make_exchange("to host", {{next, {block_of(device_in.data(), device_in.bytes())}}},
                                             {{last, {block_of(host_in.data(), 4 * sizeof(int))}}});
  to_host->start();
  to_host->finish();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(host_in[at(i)], (me_ + 2 * n_ - 2) % n_ + 10 * i);
}

TEST_P(DeviceExchange, SendsSingleMessages) {
  DeviceInts out(5), in(at(5 * n_));
  for (int round = 0; round < 2; ++round) {
    out.write(std::vector<int>(5, 10 * round + me_));
    in.write(std::vector<int>(at(5 * n_), -1));
    std::vector<int> host(at(n_), -1);
    for (int peer = 0; peer < n_; ++peer) {
      if (peer == me_) continue;
      group_->receive(peer, in.data() + 5 * peer, 5 * sizeof(int));
      group_->send(peer, out.data(), 5 * sizeof(int));
      group_->receive(peer, &host[at(peer)], sizeof(int));
      group_->send(peer, &me_, sizeof(int));
      group_->send(peer, out.data(), 0);
    }
    group_->wait("all to all");
    const std::vector<int> values = in.read();
    for (int peer = 0; peer < n_; ++peer) {
      EXPECT_EQ(host[at(peer)], peer == me_ ? -1 : peer);
      for (int i = 0; i < 5; ++i) EXPECT_EQ(values[at(5 * peer + i)], peer == me_ ? -1 : 10 * round + peer);
    }
  }
}

TEST_P(DeviceExchange, SplitsAndReducesHostMemory) {
  const auto half = group_->split(me_ % 2, me_);
  EXPECT_EQ(half->size(), (n_ + 1 - me_ % 2) / 2);
  double count = 1;
  half->all_reduce(&count, 1, Reduction::sum);
  EXPECT_EQ(count, half->size());
  DeviceInts from(3), to(3);
  from.write({me_, me_, me_});
  const auto self = half->make_exchange("self", {{half->rank(), {block_of(from.data(), from.bytes())}}},
                                        {{half->rank(), {block_of(to.data(), to.bytes())}}});
  self->start();
  self->finish();
  EXPECT_EQ(to.read(), from.read());
}

INSTANTIATE_TEST_SUITE_P(, DeviceExchange, testing::Values(Maker(on_device), Maker(through_host)),
                         [](const auto& info) { return info.index == 0 ? "library" : "host"; });

}  // namespace
}  // namespace sestina
