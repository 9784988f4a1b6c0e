// The run directory: lock, refusal of what cannot be written. Fault case 25.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "app/start/run_dir.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

class RunDirTest : public testing::Test {
 protected:
  void SetUp() override { path_ = testing::TempDir() + "sestina_run_" + std::to_string(getpid()); }
  void TearDown() override { std::filesystem::remove_all(path_); }
  std::string path_;
};

std::string refusal(const std::string& path) {
  try {
    RunDir run(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::cannot_create);
    return error.what();
  }
  return "";
}

TEST_F(RunDirTest, IsMadeWithItsParentsAndHoldsTheDeck) {
  unsetenv("HOME");  // nothing here needs one
  const RunDir run(path_ + "/a/b");
  run.write_deck("[run]\n");
  run.write_deck("[run]\nsteps = 1\n");
  std::ifstream file(path_ + "/a/b/deck.resolved.toml");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "[run]\nsteps = 1\n");
  EXPECT_FALSE(std::filesystem::exists(path_ + "/a/b/deck.resolved.toml.tmp"));
}

TEST_F(RunDirTest, SecondRunIsRefusedAndTheFirstIsNamed) {
  setenv("SLURM_JOB_ID", "4711", 1);
  auto first = std::make_unique<RunDir>(path_);
  unsetenv("SLURM_JOB_ID");
  for (int i = 0; i < 2; ++i) {  // a refused one must not take the lock away
    const std::string message = refusal(path_);
    EXPECT_NE(message.find("another run is using it"), std::string::npos) << message;
    EXPECT_NE(message.find("process " + std::to_string(getpid())), std::string::npos) << message;
    EXPECT_NE(message.find("job 4711"), std::string::npos) << message;
  }
  first.reset();
  EXPECT_EQ(refusal(path_), "");
}

TEST_F(RunDirTest, LockEndsWithItsProcess) {
  const pid_t child = fork();
  if (child == 0) {
    new RunDir(path_);  // never destroyed: the process is killed
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(refusal(path_), "");
}

int held_code(const RunDir& run) {
  try {
    run.require_held();
  } catch (const Error& error) {
    return static_cast<int>(error.code());
  }
  return 0;
}

TEST_F(RunDirTest, NoticesThatItsLockWasMovedAway) {
  const int io_error = static_cast<int>(ExitCode::io_error);
  const RunDir run(path_);
  EXPECT_EQ(held_code(run), 0);
  std::filesystem::remove(path_ + "/lock");
  EXPECT_EQ(held_code(run), io_error);
  EXPECT_NE(refusal(path_).find("another run"), std::string::npos);  // the folder itself is locked too
  EXPECT_TRUE(std::filesystem::exists(path_ + "/lock"));             // of the one that was refused
  EXPECT_EQ(held_code(run), io_error);
}

TEST_F(RunDirTest, NoticesThatTheFolderWasMovedAway) {
  const int io_error = static_cast<int>(ExitCode::io_error);
  const RunDir run(path_);
  std::filesystem::rename(path_, path_ + "-elsewhere");
  EXPECT_EQ(held_code(run), io_error);
  {
    const RunDir other(path_);  // another folder: the two do not meet
    EXPECT_EQ(held_code(run), io_error);
    EXPECT_EQ(held_code(other), 0);
  }
  std::filesystem::remove_all(path_ + "-elsewhere");
}

TEST_F(RunDirTest, RefusesWhatCannotBeWritten) {
  EXPECT_NE(refusal("/proc/sestina").find("cannot be created"), std::string::npos);
  EXPECT_NE(refusal("/dev/null/run").find("cannot be created"), std::string::npos);
  std::ofstream(path_).put('x');
  EXPECT_NE(refusal(path_).find("run directory"), std::string::npos);
  std::filesystem::remove(path_);
  if (geteuid() != 0) {  // root writes everywhere
    std::filesystem::create_directory(path_);
    std::filesystem::permissions(path_, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    EXPECT_NE(refusal(path_).find("cannot be written"), std::string::npos);
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
}

}  // namespace
}  // namespace sestina
