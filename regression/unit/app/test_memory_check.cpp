// Whether a run fits into what there is; on a device with its own memory, into both.
#include <gtest/gtest.h>

#include "app/start/memory_check.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

RankMemory gigabytes(std::size_t each, std::size_t checkpoint) {
  RankMemory memory;
  ModelSize& size = memory.size;
  size.weights = size.gradients = size.optimizer = size.activations = each * 1000000000;
  memory.checkpoint = checkpoint;
  return memory;
}

std::string refusal(const RankMemory& memory, std::uint64_t host, std::uint64_t device) {
  try {
    require_memory(memory, {"this machine", host}, {"the device", device});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::unavailable);
    return error.what();
  }
  return "";
}

TEST(MemoryCheck, HostHoldsTheRunAndTheCheckpointCopy) {
  EXPECT_EQ(refusal(gigabytes(1, 1000000000), 5000000000, 0), "");
  EXPECT_EQ(refusal(gigabytes(1, 1000000000), 0, 0), "") << "nothing known about the machine";
  const std::string said = refusal(gigabytes(1, 1000000000), 4999999999, 0);
  EXPECT_NE(said.find("needs 5.00 GB of memory, this machine has 5.00 GB available"), std::string::npos) << said;
}

TEST(MemoryCheck, DeviceHoldsTheRunAndTheHostTheCheckpointCopy) {
  EXPECT_EQ(refusal(gigabytes(1, 1000000000), 1000000000, 4000000000), "");
  const std::string device = refusal(gigabytes(1, 1000000000), 1000000000, 3000000000);
  EXPECT_NE(device.find("needs 4.00 GB of memory, the device has 3.00 GB available"), std::string::npos) << device;
  const std::string host = refusal(gigabytes(1, 1000000000), 500000000, 4000000000);
  EXPECT_NE(host.find("needs 1.00 GB of memory, this machine has 0.50 GB available"), std::string::npos) << host;
}

TEST(MemoryCheck, WorkersOfADeviceTakeHostMemory) {
  RankMemory memory = gigabytes(1, 1000000000);
  memory.workers = 2000000000;
  EXPECT_EQ(refusal(memory, 3000000000, 4000000000), "");
  const std::string said = refusal(memory, 2999999999, 4000000000);
  EXPECT_NE(said.find("refresh workers 2.00, checkpoint copy 1.00"), std::string::npos) << said;
}

TEST(MemoryCheck, TiersOfADeviceTakeHostMemory) {
  RankMemory memory = gigabytes(1, 1000000000);
  memory.host_tier = 2000000000;
  EXPECT_EQ(refusal(memory, 3000000000, 4000000000), "");
  const std::string said = refusal(memory, 2999999999, 4000000000);
  EXPECT_NE(said.find("on the host, preconditioners 2.00"), std::string::npos) << said;
}

}  // namespace
}  // namespace sestina
