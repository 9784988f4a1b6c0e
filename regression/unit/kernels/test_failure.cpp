// The one error path: which exit code and message an exception becomes.
#include "kernels/base/error.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <new>
#include <system_error>

namespace sestina {
namespace {

TEST(Failure, ErrorsAreAsTheyAre) {
  const Failure failure = failure_of(Error(ExitCode::bad_data, "here: out of memory"));
  EXPECT_EQ(failure.code, ExitCode::bad_data);
  EXPECT_EQ(failure.message, "here: out of memory");
}

// However the libraries below say it.
TEST(Failure, MemoryAndThreadsThatTheSystemRefusesAreUnavailable) {
  const std::error_code no_thread = std::make_error_code(std::errc::resource_unavailable_try_again);
  const std::bad_alloc refused;
  const std::bad_array_new_length too_long;
  const std::system_error thread(no_thread, "thread");
  const std::runtime_error view("Kokkos failed to allocate memory for label \"w\".  Allocation using MemorySpace ...");
  const std::runtime_error primitive("could not create a primitive: out_of_memory");
  for (const std::exception* error :
       std::initializer_list<const std::exception*>{&refused, &too_long, &thread, &view, &primitive}) {
    const Failure failure = failure_of(*error);
    EXPECT_EQ(failure.code, ExitCode::unavailable) << error->what();
    EXPECT_EQ(failure.message.find("out of memory: the system gives no more"), 0u) << failure.message;
  }
}

TEST(Failure, TheMessageNamesTheLimitOfTheProcess) {
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const struct rlimit small { rlim_t{3} << 40, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &small), 0);
  const Failure failure = failure_of(std::bad_alloc());
  ::setrlimit(RLIMIT_AS, &before);
  EXPECT_NE(failure.message.find("ulimit -v allows this process 3145728 MiB"), std::string::npos) << failure.message;
}

TEST(Failure, AllElseIsInternal) {
  EXPECT_EQ(failure_of(std::runtime_error("surprise")).code, ExitCode::internal);
  EXPECT_EQ(failure_of(std::system_error(std::make_error_code(std::errc::bad_message), "x")).code, ExitCode::internal);
}

}  // namespace
}  // namespace sestina
