// Errors of the file system that may pass by themselves: the call is made again, for a limited time. One way for all
// that write (metrics, log, checkpoints, exports). No Kokkos.
#pragma once
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <system_error>

namespace sestina {

// EINTR, EAGAIN, ENOSPC, EDQUOT, ESTALE, ETIMEDOUT.
bool may_pass(int error);

// Seconds for which one call is made again: SESTINA_RETRY_SECONDS of the environment (>= 0), 60 without it.
double retry_seconds();

class Retry {
 public:
  // what: for the one line in the log, usually a path; must outlive this. most: a bound below retry_seconds().
  explicit Retry(const std::string& what, double most = 1e9) : what_(what), most_(most) {}
  // After a call that failed with `error`: true when it is to be made again, after a pause. errno is `error`
  // afterwards.
  bool again(int error);
  void went_well() { started_ = false; }  // the calls' time starts over at the next error, which the log is not told
  void say_nothing() { said_ = true; }    // where the log itself cannot be written

 private:
  const std::string& what_;
  double most_;
  bool said_ = false, started_ = false;
  std::chrono::steady_clock::time_point end_;
};

// The result of a call of the system, -1 with errno once it has failed for good.
template <class Call>
auto retried(const std::string& what, const Call& call) {
  Retry retry(what);
  auto result = call();
  while (result < 0 && retry.again(errno)) result = call();
  return result;
}

// The same for calls of std::filesystem, which give an error code.
template <class Call>
std::error_code retried_code(const std::string& what, const Call& call) {
  Retry retry(what);
  std::error_code error = call();
  while (error && retry.again(error.value())) error = call();
  return error;
}

// Writes all of it, at `offset` or, below 0, where the file stands. False with errno, and what is left in `bytes`.
bool write_all(Retry&, int file, const void* data, std::size_t& bytes, std::int64_t offset = -1);
// The same with a Retry of its own.
bool write_all(const std::string& what, int file, const void* data, std::size_t bytes, std::int64_t offset = -1);

// Makes a file at least so long and asks the file system for room for all of it, so that a full disk is found before
// anything is written. False with errno when the disk has none; true, and nothing is done, where it cannot be asked.
bool reserve_all(const std::string& what, int file, std::uint64_t bytes);

}  // namespace sestina
