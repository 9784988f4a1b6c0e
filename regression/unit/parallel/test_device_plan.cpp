// What a rank that computes on a device keeps there, in host memory and on NVMe.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/memory/device_store.hpp"
#include "core/memory/state_field.hpp"
#include "parallel/exchange/rank_memory.hpp"
#include "plan_rig.hpp"

namespace sestina {
namespace {

// With a device, workers read copies of snapshots in host memory, and their results lie there, with the bases that they
// start from.
TEST(MakePlan, WorkersOfADeviceAreCountedOnTheHost) {
  constexpr int on_device = 0, one_thread = 1;
  for (const char* kind : {"soap", "shampoo", "galore"}) {
    Options options = plan_options(small_model(), kind, 1);
    const RankMemory inlined = rank_memory(make_plan(options), on_device)[0];
    EXPECT_EQ(inlined.workers, 0u) << kind;
    options.optimizer.refresh.workers = 1;
    options.optimizer.matrix->refresh_staleness = 3;
    const Plan plan = make_plan(options);
    const RankMemory host = rank_memory(plan, one_thread)[0], device = rank_memory(plan, on_device)[0];
    std::size_t results = 0, copies = 0, snapshots = 0;
    for (const TensorSpec& spec : plan.stages[0].specs) {
      if (spec.is_vector() || !plan.stages[0].is_matrix(static_cast<int>(&spec - plan.stages[0].specs.data())))
        continue;
      const RefreshNeeds needs = refresh_needs(*options.optimizer.matrix, static_cast<std::size_t>(spec.rows),
                                               static_cast<std::size_t>(spec.cols));
      results += needs.results + needs.orders;
      copies += needs.copies;
      for (const FieldSize& field : find_matrix_kind(kind)->state(*options.optimizer.matrix, spec.rows, spec.cols))
        if (field.name.find("snapshot") != std::string::npos) snapshots += bytes_of(field);
    }
    EXPECT_EQ(host.workers, 0u) << kind;
    EXPECT_GE(device.workers, results + copies) << kind;  // and scratch of the largest job
    EXPECT_EQ(host.size.optimizer - device.size.optimizer, results) << kind;
    EXPECT_EQ(copies, snapshots) << kind;
    EXPECT_EQ(device.on_host(), device.checkpoint + device.workers) << kind;
  }
}

// Copies of factors are packed: what lies in the state, what lies on the host of a device, and what goes there.
TEST(MakePlan, SnapshotsArePackedAndHalfAsLargeInBf16) {
  constexpr int on_device = 0;
  for (const char* kind : {"soap", "shampoo", "kl-soap"}) {
    Options options = plan_options(small_model(), kind, 1);
    options.optimizer.refresh.workers = 1;
    options.optimizer.matrix->refresh_staleness = 3;
    const auto packed_bytes = [&options, kind](std::size_t width) {
      std::size_t bytes = 0;
      for (const FieldSize& field : find_matrix_kind(kind)->state(*options.optimizer.matrix, 48, 32))
        if (field.name.find("snapshot") != std::string::npos) bytes += bytes_of(field);
      EXPECT_EQ(bytes, width * (48 * 49 / 2 + 32 * 33 / 2)) << kind;
      EXPECT_EQ(refresh_needs(*options.optimizer.matrix, 48, 32).copies, bytes) << kind;
      return rank_memory(make_plan(options), on_device)[0];
    };
    const RankMemory wide = packed_bytes(4);
    options.optimizer.matrix->snapshot_bf16 = true;
    const RankMemory narrow = packed_bytes(2);
    EXPECT_LT(narrow.size.optimizer, wide.size.optimizer) << kind;
    EXPECT_EQ(wide.workers - narrow.workers, wide.size.optimizer - narrow.size.optimizer) << kind;
    EXPECT_LT(narrow.refresh_moved, wide.refresh_moved) << kind;
  }
}

// With a device factors and bases of SOAP leave its memory, in pieces of 2 MiB, and lie in the host's; on a host
// "host" and "unified" change nothing.
TEST(MakePlan, TiersOfADeviceAreCountedOnTheHost) {
  constexpr int on_device = 0, one_thread = 1;
  Options options = plan_options(small_model(), "soap", 1);
  options.optimizer.matrix->refresh_every = 10;
  const RankMemory plain = rank_memory(make_plan(options), on_device)[0];
  const std::size_t on_host = rank_memory(make_plan(options), one_thread)[0].total();
  std::size_t squares = 0, places = 0, largest = 0, matrices = 0;
  double moved = 0;
  const Plan plan = make_plan(options);
  for (const TensorSpec& spec : plan.stages[0].specs) {
    if (!plan.stages[0].is_matrix(static_cast<int>(&spec - plan.stages[0].specs.data()))) continue;
    ++matrices;
    std::size_t update = 0;
    for (const FieldSize& field : find_matrix_kind("soap")->state(*options.optimizer.matrix, spec.rows, spec.cols))
      if (field.use != FieldUse::always) {
        squares += bytes_of(field);
        moved += static_cast<double>(bytes_of(field)) * (field.use == FieldUse::result ? 1.1 : 2);
        places += whole_pages(bytes_of(field));
        update += whole_device_pages(bytes_of(field));
      }
    largest = std::max(largest, update);
  }
  ASSERT_GT(matrices, 3u);

  options.optimizer.matrix->tier = Tier::host;
  const RankMemory host = rank_memory(make_plan(options), on_device)[0];
  EXPECT_EQ(host.host_tier, places);
  EXPECT_EQ(host.nvme, 0u);
  EXPECT_NEAR(host.link_moved, moved, 1e-9 * moved) << "factors come and go, bases go when they are new";
  EXPECT_EQ(host.size.optimizer, plain.size.optimizer - squares + 3 * largest) << "one in use, one coming, one going";
  EXPECT_EQ(host.on_host(), host.checkpoint + host.host_tier);
  EXPECT_EQ(rank_memory(make_plan(options), one_thread)[0].host_tier, 0u);

  // Unified memory is memory of the host, of which pages are asked for on the device; what comes goes back too.
  options.optimizer.matrix->tier = Tier::unified;
  const RankMemory unified = rank_memory(make_plan(options), on_device)[0];
  EXPECT_EQ(unified.host_tier, host.host_tier);
  EXPECT_EQ(unified.nvme, 0u);
  EXPECT_EQ(unified.size.optimizer, host.size.optimizer);
  EXPECT_EQ(unified.link_moved, 2 * static_cast<double>(squares));
  EXPECT_EQ(rank_memory(make_plan(options), one_thread)[0].host_tier, 0u);
  EXPECT_EQ(rank_memory(make_plan(options), one_thread)[0].total(), on_host) << "a host has no other memory";
  options.optimizer.matrix->tier = Tier::host;

  options.optimizer.refresh.device_bytes = std::int64_t{1} << 40;
  const RankMemory roomy = rank_memory(make_plan(options), on_device)[0];
  EXPECT_GT(roomy.size.optimizer, plain.size.optimizer) << "whole pieces of memory, for good";
  options.optimizer.refresh.device_bytes = 0;

  options.optimizer.matrix->tier = Tier::nvme;
  const RankMemory nvme = rank_memory(make_plan(options), on_device)[0];
  EXPECT_EQ(nvme.nvme, places);
  EXPECT_EQ(nvme.link_moved, host.link_moved);
  EXPECT_GT(nvme.nvme_moved, 0.99 * nvme.link_moved) << "the same, in whole pages";
  EXPECT_LT(nvme.nvme_moved, nvme.link_moved + static_cast<double>(places)) << "bases are written when they are new";
  EXPECT_EQ(nvme.size.optimizer, host.size.optimizer);
  EXPECT_GT(nvme.host_tier, store_buffer_bytes(options.optimizer.refresh.queue_depth)) << "buffers on the way";

  // A save copies what lies in memory, and has pieces of the rest on their way.
  EXPECT_EQ(host.checkpoint, plain.checkpoint);
  EXPECT_EQ(nvme.checkpoint, plain.checkpoint - squares + field_stream_bytes);
  EXPECT_EQ(nvme.saved, plain.checkpoint);
  const RankMemory at_once = rank_memory(make_plan(options), on_device, false)[0];
  EXPECT_EQ(at_once.checkpoint, field_stream_bytes) << "checkpoint.async = false";
  EXPECT_EQ(at_once.saved, plain.checkpoint);
}

}  // namespace
}  // namespace sestina
