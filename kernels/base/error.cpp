#include "kernels/base/error.hpp"

#include <sys/resource.h>

#include <array>
#include <new>
#include <string_view>
#include <system_error>

namespace sestina {

namespace {

// Returns whether the exception means that memory ran out. Kokkos::View, oneDNN and std::thread throw no
// std::bad_alloc.
bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (const auto* system = dynamic_cast<const std::system_error*>(&error))
    return system->code() == std::errc::not_enough_memory ||
           system->code() == std::errc::resource_unavailable_try_again;
  const std::string_view text = error.what();
  static constexpr std::array words = {"failed to allocate", "std::bad_alloc", "out of memory", "out_of_memory"};
  for (const std::string_view word : words)
    if (text.find(word) != std::string_view::npos) return true;
  return false;
}

// Returns "; ulimit -v allows this process 781 MiB" for each limit that is set, or "" where nothing limits this
// process.
std::string limits() {
  struct Limit {
    decltype(RLIMIT_AS) resource;
    const char* name;
  };
  std::string text;
  for (const Limit& limit : {Limit{RLIMIT_AS, "ulimit -v"}, Limit{RLIMIT_DATA, "ulimit -d"}}) {
    struct rlimit now {};
    if (::getrlimit(limit.resource, &now) == 0 && now.rlim_cur != RLIM_INFINITY)
      text += fmt::format("; {} allows this process {} MiB", limit.name, now.rlim_cur >> 20);
  }
  return text;
}

}  // namespace

Failure failure_of(const std::exception& error) noexcept {
  try {
    if (const auto* ours = dynamic_cast<const Error*>(&error)) return {ours->code(), ours->what()};
    if (!is_out_of_memory(error)) return {ExitCode::internal, error.what()};
    return {ExitCode::unavailable,
            fmt::format("out of memory: the system gives no more ({}){}", error.what(), limits())};
  } catch (...) {  // there is no memory for the message either: this short one lies in the string itself
    return {is_out_of_memory(error) ? ExitCode::unavailable : ExitCode::internal, "out of memory"};
  }
}

}  // namespace sestina
