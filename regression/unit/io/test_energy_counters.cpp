// Trees of files in powercap's form: several packages, parts of them, a platform, counters that start again.
#include "io/report/energy.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

using test::TemporaryFolder;

constexpr std::uint64_t most = 262143328850;  // as a server's package says

class Energy : public testing::Test {
 protected:
  void zone(const std::string& zone, const std::string& name, std::uint64_t microjoules) {
    std::filesystem::create_directories(folder_ / zone);
    std::ofstream(folder_ / zone + "/name") << name << '\n';
    std::ofstream(folder_ / zone + "/max_energy_range_uj") << most << '\n';
    set(zone, microjoules);
  }
  void set(const std::string& zone, std::uint64_t microjoules) {
    std::ofstream(folder_ / zone + "/energy_uj") << microjoules << '\n';
  }
  EnergyCounters::Options options() const { return {folder_.path()}; }
  TemporaryFolder folder_;
};

TEST_F(Energy, IsTheSumOfPackagesAndTheirMemory) {
  zone("intel-rapl:0", "package-0", 1'000'000);
  zone("intel-rapl:0:0", "core", 5);
  zone("intel-rapl:0:1", "dram", 100);
  zone("intel-rapl:1", "package-1", 2'000'000);
  zone("intel-rapl:2", "psys", 7);
  zone("intel-rapl-mmio:0", "package-0", 1'000'000);
  zone("dtpm", "package-0", 1);
  EnergyCounters counters(options());
  ASSERT_TRUE(counters.known());
  EXPECT_FALSE(counters.take_joules().has_value());
  set("intel-rapl:0", 4'000'000);
  set("intel-rapl:0:0", 900'000'000);  // in the package's count
  set("intel-rapl:0:1", 500'100);
  set("intel-rapl:1", 2'250'000);
  set("intel-rapl:2", 900'000'000);  // holds the packages
  set("intel-rapl-mmio:0", 900'000'000);
  EXPECT_DOUBLE_EQ(counters.take_joules().value(), 3 + 0.5 + 0.25);
  EXPECT_EQ(counters.take_joules().value(), 0);
}

TEST_F(Energy, CountersStartAgain) {
  zone("intel-rapl:0", "package-0", most - 1'500'000);
  EnergyCounters counters(options());
  counters.take_joules();
  set("intel-rapl:0", 500'000);
  EXPECT_DOUBLE_EQ(counters.take_joules().value(), 2);
}

TEST_F(Energy, WithoutCountersNothingIsKnown) {
  EnergyCounters none({folder_ / "not_there"}), empty(options());
  for (EnergyCounters* counters : {&none, &empty}) {
    EXPECT_FALSE(counters->known());
    EXPECT_FALSE(counters->take_joules().has_value());
    EXPECT_FALSE(counters->take_joules().has_value());
  }
}

TEST_F(Energy, IsToldByDomain) {
  zone("intel-rapl:0", "package-0", 1);
  zone("intel-rapl:0:1", "dram", 1);
  zone("intel-rapl:1", "package-1", 1);
  EnergyCounters counters(options());
  EXPECT_EQ(counters.domains(), "package read (2 counters), dram read (1 counter), device not counted (none is used)");
  counters.take();
  set("intel-rapl:0", 2'000'001);
  set("intel-rapl:0:1", 500'001);
  set("intel-rapl:1", 1'000'001);
  const Joules joules = counters.take();
  EXPECT_DOUBLE_EQ(joules.package.value(), 3);
  EXPECT_DOUBLE_EQ(joules.memory.value(), 0.5);
  EXPECT_DOUBLE_EQ(joules.all.value(), 3.5);
  EXPECT_FALSE(joules.device.has_value());
}

// What may not be read says so with its reason, and leaves the other domain its numbers but no sum.
TEST_F(Energy, ADomainThatCannotBeReadSaysWhy) {
  zone("intel-rapl:0", "package-0", 1);
  zone("intel-rapl:0:1", "dram", 1);
  const std::string file = folder_ / "intel-rapl:0/energy_uj";
  std::filesystem::remove(file);
  std::filesystem::create_symlink(file, file);  // not even root opens a link to itself
  EnergyCounters counters(options());
  EXPECT_EQ(counters.domains(), "package not read (" + file + ": " + std::strerror(ELOOP) +
                                    "), dram read (1 counter), device not counted (none is used)");
  counters.take();
  set("intel-rapl:0:1", 1'000'001);
  const Joules joules = counters.take();
  EXPECT_FALSE(joules.package.has_value());
  EXPECT_DOUBLE_EQ(joules.memory.value(), 1);
  EXPECT_FALSE(joules.all.has_value());
}

TEST_F(Energy, CountersThatAreNotThereSayWhere) {
  const std::string nowhere = folder_ / "not_there";
  EXPECT_EQ(EnergyCounters({nowhere}).domains(), "package not counted (no counter in " + nowhere +
                                                     "), dram not counted (no counter in " + nowhere +
                                                     "), device not counted (none is used)");
}

// A part of the sum would be taken for the whole.
TEST_F(Energy, APackageThatCannotBeReadMakesAllUnknown) {
  zone("intel-rapl:0", "package-0", 1);
  zone("intel-rapl:1", "package-1", 1);
  std::filesystem::remove(folder_ / "intel-rapl:1/energy_uj");
  EXPECT_FALSE(EnergyCounters(options()).known());
}

TEST_F(Energy, AReadingThatFailsIsAGapOfTwoIntervals) {
  zone("intel-rapl:0", "package-0", 1);
  EnergyCounters counters(options());
  counters.take_joules();
  std::ofstream(folder_ / "intel-rapl:0/energy_uj") << "";
  EXPECT_FALSE(counters.take_joules().has_value());
  set("intel-rapl:0", 2'000'000);
  EXPECT_FALSE(counters.take_joules().has_value());
  set("intel-rapl:0", 3'000'000);
  EXPECT_DOUBLE_EQ(counters.take_joules().value(), 1);
}

}  // namespace
}  // namespace sestina
