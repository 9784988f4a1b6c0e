// When to stop: signals, files in the run directory, wall time, second Ctrl-C. Fault cases 3 to 5.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "app/start/stop.hpp"
#include "kernels/base/exit_handler.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {
namespace {

using Vote = Stop::Vote;

class StopTest : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("SLURM_JOB_END_TIME");
    dir_ = testing::TempDir() + "sestina_stop_" + std::to_string(getpid());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string dir_;
  RunOptions run_;
};

// Polls for longer than the interval between looks at the files.
Vote poll_files(Stop& stop) {
  Vote vote = Vote::go_on;
  for (int i = 0; i < 40 && vote == Vote::go_on; ++i) {
    vote = stop.poll(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return vote;
}

// Bytes of its stack that a function has written when the stack is `stack`, filled with a mark before.
std::size_t stack_use(std::vector<unsigned char>& stack, void (*function)()) {
  constexpr unsigned char mark = 0xa5;
  std::fill(stack.begin(), stack.end(), mark);
  ucontext_t here, there;
  getcontext(&there);
  there.uc_stack.ss_sp = stack.data();
  there.uc_stack.ss_size = stack.size();
  there.uc_link = &here;
  makecontext(&there, function, 0);
  swapcontext(&here, &there);
  const auto touched = std::find_if(stack.begin(), stack.end(), [](unsigned char byte) { return byte != mark; });
  return static_cast<std::size_t>(stack.end() - touched);
}

// Compiled products of oneDNN hold a pointer into the heap in the stack pointer: a signal must write nothing there.
TEST_F(StopTest, HandlersLeaveTheStackPointerAlone) {
  std::vector<unsigned char> stack(std::size_t{1} << 18);
  Stop stop(run_, dir_);
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, &before);
  const std::size_t unhandled = stack_use(stack, [] { raise(SIGTERM); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(stop.poll(0), Vote::stop);
  const std::size_t handled = stack_use(stack, [] { raise(SIGTERM); });
  EXPECT_LE(handled, unhandled + 256);  // the saved registers alone are more than 2,000 bytes with AVX-512
}

TEST_F(StopTest, NothingHappens) {
  Stop stop(run_, dir_);
  EXPECT_EQ(stop.poll(1e9), Vote::go_on);
  EXPECT_TRUE(std::isinf(stop.seconds_left()));
}

TEST_F(StopTest, StopSignalsStayStopped) {
  for (const auto& [signal, name] : {std::pair(SIGTERM, "signal TERM"),
                                     {SIGUSR1, "signal USR1"},
                                     {SIGUSR2, "signal USR2"},
                                     {SIGINT, "signal INT"}}) {
    Stop stop(run_, dir_);
    raise(signal);
    EXPECT_EQ(stop.poll(0), Vote::stop);
    EXPECT_EQ(stop.reason(), name);
    EXPECT_EQ(stop.poll(0), Vote::stop);
  }
}

TEST_F(StopTest, SignalsAreChosenByTheDeck) {
  run_.stop_signals = {"ALRM"};
  Stop stop(run_, dir_);
  raise(SIGALRM);
  EXPECT_EQ(stop.poll(0), Vote::stop);
  EXPECT_EQ(stop.reason(), "signal ALRM");
}

TEST_F(StopTest, HangUpSavesOnceAndGoesOn) {
  Stop stop(run_, dir_);
  raise(SIGHUP);
  EXPECT_EQ(stop.poll(0), Vote::save);
  EXPECT_EQ(stop.poll(0), Vote::go_on);
}

TEST_F(StopTest, FilesAreTakenAway) {
  Stop stop(run_, dir_);
  std::ofstream(dir_ + "/CHECKPOINT").put('\n');
  EXPECT_EQ(poll_files(stop), Vote::save);
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/CHECKPOINT"));
  EXPECT_EQ(stop.poll(0), Vote::go_on);
  std::ofstream(dir_ + "/STOP").put('\n');
  EXPECT_EQ(poll_files(stop), Vote::stop);
  EXPECT_EQ(stop.reason(), "STOP file");
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/STOP"));
}

TEST_F(StopTest, FileThatCannotBeRemovedIsAnError) {
  Stop stop(run_, dir_);
  std::filesystem::create_directories(dir_ + "/STOP/inside");  // a folder that is not empty stands for any such file
  try {
    poll_files(stop);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_error);
  }
}

TEST_F(StopTest, WallTimeKeepsTheReserve) {
  run_.walltime = 1000;
  Stop stop(run_, dir_);
  EXPECT_GT(stop.seconds_left(), 0);
  EXPECT_LE(stop.seconds_left(), 1000);
  EXPECT_EQ(stop.poll(10), Vote::go_on);
  EXPECT_EQ(stop.poll(1000), Vote::stop);
  EXPECT_EQ(stop.reason(), "wall time");
}

TEST_F(StopTest, WallTimeCountsFromTheStartOfTheProcess) {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  run_.walltime = 0.25;  // over before the object exists
  Stop stop(run_, dir_);
  EXPECT_EQ(stop.poll(0), Vote::stop);
}

TEST_F(StopTest, BatchSystemsEndIsUsedWithoutAWallTime) {
  setenv("SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 100).c_str(), 1);
  {
    Stop stop(run_, dir_);
    EXPECT_NEAR(stop.seconds_left(), 100, 2);
    EXPECT_EQ(stop.poll(90), Vote::go_on);
    EXPECT_EQ(stop.poll(101), Vote::stop);
  }
  setenv("SLURM_JOB_END_TIME", "soon", 1);
  EXPECT_TRUE(std::isinf(Stop(run_, dir_).seconds_left()));
  unsetenv("SLURM_JOB_END_TIME");
}

TEST_F(StopTest, SecondInterruptLeavesAtOnce) {
  EXPECT_EXIT(
      {
        Stop stop(run_, dir_);
        raise(SIGINT);
        if (stop.poll(0) != Vote::stop) _exit(1);
        raise(SIGINT);
        _exit(2);
      },
      testing::ExitedWithCode(130), "press Ctrl-C again to exit at once");
}

TEST_F(StopTest, SecondInterruptIsLeftToTheHandlerOfAHost) {
  static volatile std::sig_atomic_t code = 0;
  set_exit_handler([](int given) { code = given; });
  {
    Stop stop(run_, dir_);
    raise(SIGINT);
    EXPECT_EQ(code, 0);
    raise(SIGINT);
    EXPECT_EQ(code, static_cast<int>(ExitCode::interrupted));
    EXPECT_EQ(stop.poll(0), Vote::stop);
  }
  set_exit_handler(nullptr);
}

TEST_F(StopTest, SignalsThatCameBeforeCount) {
  catch_signals();
  raise(SIGTERM);
  raise(SIGHUP);
  {
    Stop stop(0);
    EXPECT_TRUE(stop.told_to_stop());
    EXPECT_EQ(stop.reason(), "signal TERM");
    stop.set_up(run_, dir_, true);
    EXPECT_EQ(stop.poll(0), Vote::stop);
  }
  raise(SIGTERM);  // too late: it neither ends the process nor stops what comes after
  catch_signals();
  Stop stop(0);
  EXPECT_FALSE(stop.told_to_stop());
}

TEST_F(StopTest, AWishToSaveOutlivesTheStart) {
  catch_signals();
  raise(SIGHUP);
  Stop stop(0);
  EXPECT_FALSE(stop.told_to_stop());
  stop.set_up(run_, dir_, true);
  EXPECT_EQ(stop.poll(0), Vote::save);
}

TEST_F(StopTest, WhatTheDeckDoesNotCatchTakesItsUsualEffect) {
  EXPECT_EXIT(
      {
        catch_signals();
        Stop stop(0);
        raise(SIGALRM);
        stop.set_up(run_, dir_, true);
        _exit(1);
      },
      testing::KilledBySignal(SIGALRM), "");
  EXPECT_EXIT(
      {
        catch_signals();
        raise(SIGTERM);
        release_signals();
        _exit(1);
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST_F(StopTest, HelperThreadsLeaveSignalsToTheMainThread) {
  Stop stop(run_, dir_);
  bool blocked = false;
  quiet_thread([&] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked = sigismember(&mask, SIGTERM) && sigismember(&mask, SIGINT) && !sigismember(&mask, SIGSEGV);
  }).join();
  EXPECT_TRUE(blocked);
}

}  // namespace
}  // namespace sestina
