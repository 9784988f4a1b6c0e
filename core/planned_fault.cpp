#include "core/planned_fault.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::string_view flipped[] = {"gradient", "activation", "weight", "moment", "basis", "message", "checkpoint"};

std::vector<std::string_view> fault_words(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

[[noreturn]] void fail_fault(std::string_view text) {
  fail(ExitCode::usage,
       "SESTINA_FAULT: got {}, allowed flip:WHAT:step=N or flip:WHAT:from=N (WHAT: {}), nan:activation:step=N, each "
       "with :rank=R, a flip with :bits=1 to 32 and :place=P, that of a gradient or an activation with :micro=M",
       text, fmt::join(flipped, ", "));
}

}  // namespace

std::optional<PlannedFault> parse_fault(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const std::vector<std::string_view> words = fault_words(text);
  if (words.size() < 3) fail_fault(text);
  PlannedFault fault;
  fault.what = words[1];
  const bool is_flip = words[0] == "flip";
  if (is_flip ? std::find(std::begin(flipped), std::end(flipped), words[1]) == std::end(flipped)
              : words[0] != "nan" || words[1] != "activation")
    fail_fault(text);
  fault.kind = is_flip ? PlannedFault::Kind::flip : PlannedFault::Kind::nan;
  bool has_updates = false;
  for (std::size_t i = 2; i < words.size(); ++i) {
    const std::size_t equals = std::min(words[i].find('='), words[i].size());
    const std::string_view key = words[i].substr(0, equals),
                           digits = words[i].substr(std::min(equals + 1, words[i].size()));
    std::int32_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0) fail_fault(text);
    if ((key == "step" || (key == "from" && is_flip)) && value > 0 && !has_updates) {
      fault.first = value;
      if (key == "step") fault.last = value;
      has_updates = true;
    } else if (key == "rank") {
      fault.rank = value;
    } else if (key == "bits" && is_flip && 1 <= value && value <= 32) {
      fault.bits = value;
    } else if (key == "place" && is_flip) {
      fault.place = static_cast<std::uint64_t>(value);
    } else if (key == "micro" && is_flip && (fault.what == "gradient" || fault.what == "activation")) {
      fault.micro = value;
    } else {
      fail_fault(text);
    }
  }
  if (!has_updates) fail_fault(text);
  return fault;
}

}  // namespace sestina
