#include "parallel/comm/agreement.hpp"

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "kernels/base/failure.hpp"

namespace sestina {
namespace {

// An outcome as text that travels: "" for success, else code and message.
std::string outcome_of(const std::function<void()>& f) {
  try {
    f();
    return "";
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    return fmt::format("{} {}", static_cast<int>(failure.code), failure.message);
  }
}

[[noreturn]] void throw_outcome(const std::string& outcome, const std::string& whose) {
  int code = 0;
  const auto end = std::from_chars(outcome.data(), outcome.data() + outcome.size(), code).ptr;
  throw AgreedError(static_cast<ExitCode>(code), whose + std::string(end + 1));
}

}  // namespace

void agree(Communicator& group, const std::function<void()>& f) {
  if (group.size() == 1) return f();
  const std::string mine = outcome_of(f);
  call_roll(group, "agreement");
  const std::vector<std::string> outcomes = group.all_gather(mine);
  const bool equal = std::all_of(outcomes.begin(), outcomes.end(), [&](const auto& o) { return o == outcomes[0]; });
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    if (!outcomes[r].empty()) throw_outcome(outcomes[r], equal ? "" : fmt::format("rank {}: ", r));
}

void call_roll(Communicator& group, const char* name) {
  const bool first = group.rank() == 0;
  std::vector<char> words(static_cast<std::size_t>(group.size()));
  std::vector<Message> peers;
  for (int peer = first ? 1 : 0; peer < (first ? group.size() : 1); ++peer)
    peers.push_back({peer, {block_of(&words[static_cast<std::size_t>(peer)], 1)}});
  const std::vector<Message> none;
  for (const bool to_first : {true, false}) {
    const bool sends = to_first != first;
    const auto exchange = group.make_exchange(name, sends ? peers : none, sends ? none : peers);
    exchange->start();
    exchange->finish();
  }
}

}  // namespace sestina
