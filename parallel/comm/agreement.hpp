// How ranks of a group find out together whether one of them failed. No Kokkos.
#pragma once
#include <functional>
#include <utility>

#include "kernels/base/error.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// An Error that all ranks have agreed on: the first one reports it, all exit with its code.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Fails on all ranks, for what all of them have found out: one report, one code.
template <class... Args>
[[noreturn]] void fail_on_all(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw AgreedError(code, fmt::format(format, std::forward<Args>(args)...));
}

// f on every rank; when it fails on any, the lowest failing rank's Error is thrown on all of them, as an AgreedError,
// and names that rank unless all failed in the same way. For phases in which a rank may fail by itself while others
// would wait for it. The first rank calls the roll: a rank that does not come is named.
void agree(Communicator&, const std::function<void()>& f);

// Every other rank sends the first one a byte, and gets one back. Error(unavailable) names a rank that did not come.
void call_roll(Communicator&, const char* name);

}  // namespace sestina
