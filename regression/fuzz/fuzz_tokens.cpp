// Input: a letter for the format (m: Megatron, l: llm.c, n: npy, t: text, j, g, z: JSONL as it is, by gzip, by zstd),
// u32 size of a first file (.idx, of Megatron alone), that file, the file with the tokens. They are written to a folder
// and opened as training does: refused with Error(bad_data), or Error(input_missing) for what is another kind of file,
// or every token lies in the vocabulary and documents ascend.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "io/tokens/token_file.hpp"
#include "kernels/base/error.hpp"
#include "regression/fuzz/scratch.hpp"

namespace {

using Format = sestina::DataSource::Format;
constexpr std::int64_t kVocabulary = 256;

void read_all(const sestina::DataSource& form) {
  const auto source = sestina::open_source(form, nullptr, kVocabulary, 0);
  constexpr std::size_t kMost = 1000;
  std::vector<std::int32_t> tokens(kMost);
  for (std::uint64_t begin = 0; begin < source->size(); begin += kMost) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kMost, source->size() - begin));
    source->read(begin, count, tokens.data());
    for (std::size_t i = 0; i < count; ++i) {
      if (tokens[i] < 0 || tokens[i] >= kVocabulary) std::abort();
    }
  }
  std::vector<std::uint64_t> starts;
  source->document_starts(0, source->size(), starts);
  if (!std::is_sorted(starts.begin(), starts.end())) std::abort();
  if (starts.empty() || starts.front() != 0 || starts.back() >= source->size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const sestina::fuzz::Scratch folder;
  const char letter = sestina::fuzz::take(input, 1).front();
  const std::string_view first = sestina::fuzz::take(input, sestina::fuzz::take_number(input, 4));
  sestina::DataSource form;
  form.invalid_limit = 0.5;
  if (letter == 'm') {
    form.format = Format::megatron;
    folder.write("tokens.idx", first);
    folder.write("tokens.bin", input);
    form.path = folder / "tokens";
  } else {
    form.format = letter == 'l'   ? Format::llmc
                  : letter == 'n' ? Format::npy
                  : letter == 't' ? Format::text
                                  : Format::jsonl;
    form.path = folder.write(letter == 'l'   ? "tokens.bin"
                             : letter == 'n' ? "tokens.npy"
                             : letter == 't' ? "tokens.txt"
                             : letter == 'g' ? "tokens.jsonl.gz"
                             : letter == 'z' ? "tokens.jsonl.zst"
                                             : "tokens.jsonl",
                             input);
  }
  try {
    read_all(form);
  } catch (const sestina::Error& error) {
    if (error.code() != sestina::ExitCode::bad_data && error.code() != sestina::ExitCode::input_missing) std::abort();
  }
  return 0;
}
