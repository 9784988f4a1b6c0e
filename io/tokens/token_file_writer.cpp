#include <limits>
#include <vector>

#include "io/store/output_file.hpp"
#include "io/tokens/token_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

struct MegatronWriter::State {
  std::string prefix;
  std::int64_t vocab_size;
  bool narrow;  // u16, else i32
  OutputFile bin;
  std::vector<std::int32_t> lengths;
  std::vector<std::uint16_t> narrowed;
  State(const std::string& prefix_, std::int64_t vocab_size_)
      : prefix(prefix_), vocab_size(vocab_size_), narrow(vocab_size_ < 65500), bin(prefix_ + ".bin") {}
};

MegatronWriter::MegatronWriter(const std::string& prefix, std::int64_t vocab_size)
    : state_(std::make_unique<State>(prefix, vocab_size)) {}
MegatronWriter::~MegatronWriter() = default;

void MegatronWriter::add_document(const std::int32_t* tokens, std::size_t count) {
  if (count == 0) return;
  State& state = *state_;
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    fail(ExitCode::bad_data, "{}: document {} has {} tokens, the format allows {}", state.prefix, state.lengths.size(),
         count, std::numeric_limits<std::int32_t>::max());
  for (std::size_t i = 0; i < count; ++i)
    SESTINA_REQUIRE(tokens[i] >= 0 && tokens[i] < state.vocab_size, "token {} of {}", tokens[i], state.vocab_size);
  if (state.narrow) {
    state.narrowed.assign(tokens, tokens + count);
    state.bin.write(state.narrowed.data(), count * sizeof(std::uint16_t));
  } else {
    state.bin.write(tokens, count * sizeof(std::int32_t));
  }
  state.lengths.push_back(static_cast<std::int32_t>(count));
}

// Every document is one sequence. The .idx is renamed last: without it there is no pair.
void MegatronWriter::finish() {
  State& state = *state_;
  const auto documents = static_cast<std::uint64_t>(state.lengths.size());
  OutputFile idx(state.prefix + ".idx");
  const auto put = [&](auto value) { idx.write(&value, sizeof value); };
  idx.write(std::string_view("MMIDIDX\0\0", 9));
  put(std::uint64_t{1});
  put(static_cast<std::uint8_t>(state.narrow ? 8 : 4));
  put(documents);
  put(documents + 1);
  idx.write(state.lengths.data(), documents * sizeof(std::int32_t));
  std::int64_t pointer = 0;
  for (const std::int32_t length : state.lengths) {
    put(pointer);
    pointer += std::int64_t{length} * (state.narrow ? 2 : 4);
  }
  for (std::uint64_t d = 0; d <= documents; ++d) put(static_cast<std::int64_t>(d));
  state.bin.commit();
  idx.commit();
}

}  // namespace sestina
