#include "io/store/retry.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace sestina {

bool may_pass(int error) {
  for (const int passing : {EINTR, EAGAIN, ENOSPC, EDQUOT, ESTALE, ETIMEDOUT})
    if (error == passing) return true;
  return false;
}

double retry_seconds() {
  constexpr double most = 60;  // then the run ends with io_error, or does without what was to be written
  const char* text = std::getenv("SESTINA_RETRY_SECONDS");
  if (text == nullptr) return most;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  return end != text && seconds >= 0 ? std::min(seconds, most) : most;
}

bool Retry::again(int error) {
  using namespace std::chrono;
  constexpr auto pause = milliseconds(20);
  if (!may_pass(error)) {
    errno = error;
    return false;
  }
  const double bound = std::min(most_, retry_seconds());
  if (!started_) end_ = steady_clock::now() + duration_cast<steady_clock::duration>(duration<double>(bound));
  started_ = true;
  const bool time_left = steady_clock::now() < end_;
  if (time_left && error != EINTR) {
    if (!said_) spdlog::warn("{}: {}; retrying for at most {} s", what_, std::strerror(error), bound);
    said_ = true;
    std::this_thread::sleep_for(std::min<steady_clock::duration>(pause, end_ - steady_clock::now()));
  }
  errno = error;
  return time_left;
}

bool write_all(Retry& retry, int file, const void* data, std::size_t& bytes, std::int64_t offset) {
  constexpr std::size_t most = std::size_t{1} << 30;  // one call moves less than 2 GiB
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const std::size_t count = std::min(bytes, most);
    const ssize_t done = offset < 0 ? ::write(file, from, count) : ::pwrite(file, from, count, offset);
    if (done < 0 && retry.again(errno)) continue;
    if (done < 0) return false;
    if (done == 0 && !retry.again(EAGAIN)) return false;
    from += done;
    bytes -= static_cast<std::size_t>(done);
    if (offset >= 0) offset += done;
  }
  return true;
}

bool write_all(const std::string& what, int file, const void* data, std::size_t bytes, std::int64_t offset) {
  Retry retry(what);
  return write_all(retry, file, data, bytes, offset);
}

bool reserve_all(const std::string& what, int file, std::uint64_t bytes) {
  if (bytes == 0) return true;
  if (retried(what, [&] { return ::fallocate(file, 0, 0, static_cast<off_t>(bytes)); }) == 0) return true;
  return errno != ENOSPC && errno != EDQUOT && errno != EFBIG && errno != EIO;
}

}  // namespace sestina
