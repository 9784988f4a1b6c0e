#include "io/tokens/token_file_flat.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/base/error.hpp"
#include "kernels/base/quiet_threads.hpp"

namespace sestina {
namespace {

constexpr std::uint64_t check_chunk = std::uint64_t{1} << 22;  // tokens

// Calls work(T{}) with a value of the part's element type.
template <class Work>
void with_type(TokenType type, const Work& work) {
  switch (type) {
    case TokenType::u8:
      return work(std::uint8_t{});
    case TokenType::i8:
      return work(std::int8_t{});
    case TokenType::u16:
      return work(std::uint16_t{});
    case TokenType::i16:
      return work(std::int16_t{});
    case TokenType::u32:
      return work(std::uint32_t{});
    case TokenType::i32:
      return work(std::int32_t{});
    case TokenType::i64:
      return work(std::int64_t{});
  }
}

template <class T>
T load(const std::byte* data, std::uint64_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

// One pass without branches, which the compiler vectorises: a negative id is a large unsigned one.
template <class T>
bool all_below(const std::byte* data, std::uint64_t begin, std::uint64_t end, std::uint64_t limit) {
  using Unsigned = std::make_unsigned_t<T>;
  if (limit > std::numeric_limits<Unsigned>::max()) return true;
  const auto bound = static_cast<Unsigned>(limit);
  unsigned bad = 0;
  for (std::uint64_t i = begin; i < end; ++i) bad |= static_cast<Unsigned>(load<T>(data, i)) >= bound;
  return bad == 0;
}

template <class T>
void check_ids(const TokenPart& part, std::uint64_t limit) {
  const auto check = [&](std::uint64_t begin, std::uint64_t end) {
    if (all_below<T>(part.data, begin, end, limit)) return;
    for (std::uint64_t i = begin; i < end; ++i) {
      const T id = load<T>(part.data, i);
      if (static_cast<std::make_unsigned_t<T>>(id) >= limit)
        fail(ExitCode::bad_data, "{}: token {} has id {}, allowed are 0 to {} (vocabulary of {})", part.path, i, +id,
             limit - 1, limit);
    }
  };
  parallel_chunks(part.count, check_chunk, 0, check);
}

}  // namespace

void widen(const TokenPart& part, std::uint64_t begin, std::size_t count, std::int32_t* out) {
  with_type(part.type, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(load<T>(part.data, begin + i));
  });
}

void check_tokens(const TokenPart& part, std::int64_t vocab_size) {
  if (part.count == 0) fail(ExitCode::bad_data, "{}: holds no tokens", part.path);
  if (part.type == TokenType::u16 && vocab_size > 65536)
    fail(ExitCode::bad_data, "{}: tokens are u16, the vocabulary of {} needs 32 bits: made with another tokenizer?",
         part.path, vocab_size);
  const std::uint64_t limit = vocab_size > 0 ? static_cast<std::uint64_t>(vocab_size) : std::uint64_t{1} << 31;
  with_type(part.type, [&](auto zero) { check_ids<decltype(zero)>(part, limit); });
}

FlatTokens::FlatTokens(std::vector<TokenPart> parts, std::int64_t end_of_document, std::string form)
    : parts_(std::move(parts)), begins_{0}, end_of_document_(end_of_document), form_(std::move(form)) {
  SESTINA_REQUIRE(!parts_.empty(), "a source has parts");
  for (const TokenPart& part : parts_) begins_.push_back(begins_.back() + part.count);
}

std::size_t FlatTokens::part_of(std::uint64_t token) const {
  return static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), token) - begins_.begin()) - 1;
}

void FlatTokens::read(std::uint64_t begin, std::size_t count, std::int32_t* out) const {
  SESTINA_REQUIRE(begin + count <= size(), "tokens {} to {} of {}", begin, begin + count, size());
  for (std::size_t p = part_of(begin); count > 0; ++p) {
    const auto here = static_cast<std::size_t>(std::min<std::uint64_t>(count, begins_[p + 1] - begin));
    widen(parts_[p], begin - begins_[p], here, out);
    begin += here;
    out += here;
    count -= here;
  }
}

void FlatTokens::document_starts(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& out) const {
  out.clear();
  end = std::min(end, size());
  for (std::size_t p = begin < end ? part_of(begin) : 0; begin < end; ++p) {
    const TokenPart& part = parts_[p];
    const std::uint64_t first = begins_[p], last = std::min(end, begins_[p + 1]);
    if (begin == first) out.push_back(begin++);
    if (end_of_document_ >= 0)
      with_type(part.type, [&](auto zero) {
        using T = decltype(zero);
        for (std::uint64_t i = begin; i < last; ++i)
          if (static_cast<std::int64_t>(load<T>(part.data, i - first - 1)) == end_of_document_) out.push_back(i);
      });
    begin = last;
  }
}

std::string FlatTokens::description() const {
  return fmt::format("{} {}: {} tokens{}", form_, parts_.front().path, size(),
                     parts_.size() > 1 ? fmt::format(" in {} files", parts_.size()) : "");
}

}  // namespace sestina
