// What control groups of either version and limits of the process leave of a machine's memory.
#include "app/start/memory_check.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30, tib = gib << 10;

// A machine with 64 GiB, or as much, and its process in the groups that the lines say.
struct Machine {
  explicit Machine(const std::string& lines, std::uint64_t memory = 64 * gib) {
    test::write_bytes(folder / "proc/meminfo",
                      fmt::format("MemTotal: 99999999 kB\nMemAvailable: {} kB\n", memory / 1024));
    test::write_bytes(folder / "proc/self/cgroup", lines);
    test::write_bytes(folder / "proc/self/status", "VmSize: 1048576 kB\nVmData: 524288 kB\n");
  }
  void set(const std::string& file, const std::string& text) const {
    test::write_bytes(folder / ("groups/" + file), text);
  }
  void set(const std::string& file, std::uint64_t bytes) const { set(file, std::to_string(bytes) + "\n"); }
  MemoryShare share(int sharers = 1, int threads = 1) const {
    return available_memory(sharers, threads, {folder / "proc", folder / "groups"});
  }

  test::TemporaryFolder folder;
};

TEST(AvailableMemory, IsTheMachinesWhereNothingLimitsIt) {
  const Machine machine("0::/user.slice/session.scope\n");
  EXPECT_EQ(machine.share().bytes, 64 * gib);
  EXPECT_EQ(machine.share().name, "this machine");
  EXPECT_EQ(machine.share(4).bytes, 16 * gib);
  machine.set("user.slice/memory.max", "max\n");
  machine.set("user.slice/memory.current", 63 * gib);
  EXPECT_EQ(machine.share().bytes, 64 * gib);
  EXPECT_EQ(available_memory(1, 1, {machine.folder / "none", machine.folder / "none"}).bytes, 0u) << "unknown";
}

TEST(AvailableMemory, IsWhatAGroupLeavesAndPagesOfFilesCanGo) {
  const Machine machine("0::/job/step\n");
  machine.set("job/step/memory.max", 8 * gib);
  EXPECT_EQ(machine.share().bytes, 8 * gib);
  machine.set("job/step/memory.current", 3 * gib);
  EXPECT_EQ(machine.share().bytes, 5 * gib);
  machine.set("job/step/memory.stat", "anon 1\ninactive_file 1073741824\nactive_file 1073741824\nslab 7\n");
  EXPECT_EQ(machine.share().bytes, 7 * gib);
  EXPECT_EQ(machine.share(2).bytes, 7 * gib / 2);
  EXPECT_NE(machine.share().name.find("job/step/memory.max"), std::string::npos) << machine.share().name;
}

// The smallest of all parents, whether the process sees them by their names or, in a container, its own as the root.
TEST(AvailableMemory, ParentsCount) {
  const Machine machine("0::/job/step/task\n");
  machine.set("job/step/task/memory.max", "max\n");
  machine.set("job/step/memory.max", 8 * gib);
  machine.set("job/memory.max", 6 * gib);
  machine.set("job/memory.current", 2 * gib);
  EXPECT_EQ(machine.share().bytes, 4 * gib);
  machine.set("memory.max", 3 * gib);
  EXPECT_EQ(machine.share().bytes, 3 * gib);
  const Machine inside("0::/\n"), elsewhere("0::/docker/0123\n");
  for (const Machine* container : {&inside, &elsewhere}) {
    container->set("memory.max", gib);
    EXPECT_EQ(container->share().bytes, gib);
  }
}

TEST(AvailableMemory, VersionOneAndBothAtOnce) {
  const Machine machine("12:cpu,cpuacct:/job\n4:memory:/job/step\n1:name=systemd:/job\n0::/job\n");
  machine.set("memory/memory.limit_in_bytes", 9223372036854771712);  // its word for none
  EXPECT_EQ(machine.share().bytes, 64 * gib);
  machine.set("memory/job/memory.limit_in_bytes", 8 * gib);
  machine.set("memory/job/memory.usage_in_bytes", 4 * gib);
  machine.set("memory/job/memory.stat", "inactive_file 5\ntotal_inactive_file 1073741824\ntotal_active_file 0\n");
  EXPECT_EQ(machine.share().bytes, 5 * gib);
  machine.set("unified/job/memory.max", 2 * gib);
  EXPECT_EQ(machine.share().bytes, 2 * gib);
  machine.set("cpu/job/memory.limit_in_bytes", 1);  // no controller of memory
  EXPECT_EQ(machine.share().bytes, 2 * gib);
}

TEST(AvailableMemory, AGroupThatIsFullLeavesOneByteNotAnUnknownNumber) {
  const Machine machine("0::/job\n");
  machine.set("job/memory.max", gib);
  machine.set("job/memory.current", 2 * gib);
  EXPECT_EQ(machine.share().bytes, 1u);
}

// Of each process by itself, however many share the machine.
// Limits of so many TiB, because a process under AddressSanitizer holds about 20 TiB of addresses.
TEST(AvailableMemory, LimitsOfTheProcessCount) {
  const Machine machine("0::/job\n", 64 * tib);
  for (const auto& [resource, left, name] :
       {std::tuple(RLIMIT_AS, 40 * tib - gib - (gib / 1024) * 160, "this process (ulimit -v)"),
        std::tuple(RLIMIT_DATA, 40 * tib - gib / 2, "this process (ulimit -d)")}) {
    struct rlimit before {};
    ASSERT_EQ(::getrlimit(resource, &before), 0);
    const struct rlimit small { 40 * tib, before.rlim_max };
    ASSERT_EQ(::setrlimit(resource, &small), 0);
    const MemoryShare one = machine.share(), two = machine.share(2), many = machine.share(1, 16);
    ::setrlimit(resource, &before);
    EXPECT_EQ(one.bytes, left);
    EXPECT_EQ(one.name, name);
    EXPECT_EQ(many.bytes, resource == RLIMIT_AS ? left - 15 * (gib / 128) : left) << "stacks of threads";
    EXPECT_EQ(two.bytes, 32 * tib) << "two have half of the machine each, which is less";
  }
}

}  // namespace
}  // namespace sestina
