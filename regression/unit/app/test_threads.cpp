// How many threads a rank takes, from what it is told: first a flag, then the deck, OMP_NUM_THREADS, Slurm's cores of a
// task; else the cores that it may use.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "app/start/kokkos_session.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

class Threads : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      unsetenv(name);
    }
    cores_ = session_threads(0, {}, 1);
  }
  void TearDown() override {
    for (const char* name : {"OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"}) {
      unsetenv(name);
      if (before_.contains(name)) setenv(name, before_[name].c_str(), 1);
    }
  }
  int cores_ = 0;

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(Threads, FollowTheCoresOfASlurmTask) {
  setenv("SLURM_CPUS_PER_TASK", std::to_string(cores_ + 5).c_str(), 1);
  EXPECT_EQ(session_threads(0, {}, 1), cores_ + 5);
  EXPECT_EQ(session_threads(0, {}, 4), cores_ + 5);  // each rank's own, whoever else sees these cores
}

TEST_F(Threads, LeaveCoresToRefreshWorkers) {
  setenv("SLURM_CPUS_PER_TASK", "6", 1);
  EXPECT_EQ(session_threads(0, {}, 1, 2), 4);
  EXPECT_EQ(session_threads(0, {}, 1, 9), 1);
  EXPECT_EQ(session_threads(5, {}, 1, 2), 5);  // what is said is said
}

TEST_F(Threads, FollowWhatTheUserSaysFirst) {
  setenv("SLURM_CPUS_PER_TASK", std::to_string(cores_ + 5).c_str(), 1);
  setenv("OMP_NUM_THREADS", std::to_string(cores_ + 6).c_str(), 1);
  EXPECT_EQ(session_threads(0, {}, 1), cores_ + 6);
  EXPECT_EQ(session_threads(cores_ + 7, {}, 1), cores_ + 7);
  EXPECT_EQ(session_threads(cores_ + 7, {"--kokkos-num-threads=1"}, 1), 1);
}

TEST_F(Threads, AreTheCoresWhereSlurmSaysNoNumber) {
  for (const char* text : {"", "0", "-3", "many"}) {
    setenv("SLURM_CPUS_PER_TASK", text, 1);
    EXPECT_EQ(session_threads(0, {}, 1), cores_) << text;
  }
}

TEST_F(Threads, HaveALimit) {
  setenv("SLURM_CPUS_PER_TASK", "100000", 1);
  EXPECT_LE(session_threads(0, {}, 1), 512);
  setenv("OMP_NUM_THREADS", "100000", 1);
  EXPECT_THROW(session_threads(0, {}, 1), Error);
}

}  // namespace
}  // namespace sestina
