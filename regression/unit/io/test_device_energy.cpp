// Energy of devices from a library that stands for NVML (fake_nvml): sums, devices that ranks share, failures, and
// none.
#include "io/report/energy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

constexpr const char *first = "00000000:3B:00.0", *second = "00000000:AF:00.0";

class DeviceJoules : public testing::Test {
 protected:
  DeviceJoules() { ::setenv("FAKE_NVML", folder_.path().c_str(), 1); }
  ~DeviceJoules() override { ::unsetenv("FAKE_NVML"); }
  void set(std::string id, const std::string& millijoules) {
    std::replace(id.begin(), id.end(), ':', '_');
    std::ofstream(folder_ / id) << millijoules << '\n';
  }
  void zone(std::uint64_t microjoules) {
    const std::string zone = folder_ / "power/intel-rapl:0";
    std::filesystem::create_directories(zone);
    std::ofstream(zone + "/name") << "package-0\n";
    std::ofstream(zone + "/max_energy_range_uj") << 262143328850 << '\n';
    std::ofstream(zone + "/energy_uj") << microjoules << '\n';
  }
  // The library lies next to the program.
  static DeviceEnergy::Options devices(std::vector<std::string> ids) {
    return {std::move(ids), std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libfake_nvml.so"};
  }
  test::TemporaryFolder folder_;
};

TEST_F(DeviceJoules, AreTheSumOfDevicesEachCountedOnce) {
  set(first, "1000");
  set(second, "50000");
  DeviceEnergy energy(devices({first, second, first, ""}));  // two ranks on one device, one on none
  ASSERT_TRUE(energy.used());
  ASSERT_TRUE(energy.known());
  EXPECT_FALSE(energy.take_joules().has_value());
  set(first, "3500");
  set(second, "50250");
  EXPECT_DOUBLE_EQ(energy.take_joules().value(), 2.5 + 0.25);
  EXPECT_EQ(energy.take_joules().value(), 0);
}

TEST_F(DeviceJoules, AreNotKnownWhereAReadingFailsOrTheCounterWentBack) {
  set(first, "1000");
  DeviceEnergy energy(devices({first}));
  energy.take_joules();
  set(first, "broken");
  EXPECT_FALSE(energy.take_joules().has_value());
  set(first, "2000");
  EXPECT_FALSE(energy.take_joules().has_value());  // of two readings one failed
  set(first, "2500");
  EXPECT_DOUBLE_EQ(energy.take_joules().value(), 0.5);
  set(first, "10");  // the driver was loaded again
  EXPECT_FALSE(energy.take_joules().has_value());
}

TEST_F(DeviceJoules, AreNotKnownWithoutTheLibraryOrADevice) {
  set(first, "1000");
  const DeviceEnergy unused(devices({"", ""})), none({{first}, folder_ / "no_such_library.so"}),
      missing(devices({first, second}));
  EXPECT_FALSE(unused.used());
  for (const DeviceEnergy* energy : {&none, &missing}) {
    EXPECT_TRUE(energy->used());
    EXPECT_FALSE(energy->known());
  }
}

TEST_F(DeviceJoules, AreAddedToThoseOfProcessors) {
  set(first, "1000");
  zone(1'000'000);
  EnergyCounters both({folder_ / "power", devices({first})}), alone({"", devices({first})}),
      unanswered({folder_ / "power", devices({first, second})}), host({folder_ / "power", {}});
  for (EnergyCounters* counters : {&both, &alone, &unanswered, &host}) counters->take_joules();
  set(first, "2000");
  zone(4'000'000);
  const Joules joules = both.take();
  EXPECT_DOUBLE_EQ(joules.all.value(), 1 + 3);
  EXPECT_DOUBLE_EQ(joules.device.value(), 1);
  EXPECT_DOUBLE_EQ(joules.package.value(), 3);
  EXPECT_NE(both.domains().find("device read (1 counter)"), std::string::npos);
  EXPECT_NE(unanswered.domains().find(std::string("device not read (device ") + second + " does not tell"),
            std::string::npos);
  EXPECT_DOUBLE_EQ(alone.take_joules().value(), 1);
  EXPECT_DOUBLE_EQ(host.take_joules().value(), 3);
  EXPECT_FALSE(unanswered.known());
  EXPECT_FALSE(unanswered.take_joules().has_value());  // processors would be the smaller part
}

}  // namespace
}  // namespace sestina
