// JSONL: one JSON object on each line, one of its members is a document. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sestina {

// What was read, and what of it was no text. Lines of JSONL that are invalid are skipped.
struct TextDefects {
  std::uint64_t lines = 0;         // of JSONL files, without blank ones
  std::uint64_t invalid_utf8 = 0;  // of these lines: bytes that are no UTF-8
  std::uint64_t invalid_json = 0;  // no JSON object
  std::uint64_t without_text = 0;  // no member of that name, or it is no string
  std::uint64_t skipped() const { return invalid_utf8 + invalid_json + without_text; }
  void add(const TextDefects&);
};

// The documents in order, empty ones left out; adds to the counts.
std::vector<std::string> read_json_lines(std::string_view file, const std::string& text_key, int threads, TextDefects&);

// Error(bad_data) when more than `limit` (a share of the lines; ten are allowed anyway, unless it is 0) were skipped;
// Error(input_missing) when most of these are no UTF-8, because then the file is none.
void require_valid_lines(const TextDefects&, double limit, const std::string& where);

std::string to_text(const TextDefects&);  // "3 of 900 lines skipped (...)", "" when there is none

}  // namespace sestina
