#include "io/tokens/token_file_forms.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/base/error.hpp"
#include "kernels/base/threads.hpp"

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

constexpr std::size_t block = 4096;  // tokens that are read at once: 32 KiB at most

// Calls use(values, how many, index of the first) for blocks of tokens [begin, end) as they are stored.
template <class T, class Use>
void for_blocks(const TokenPart& part, std::uint64_t begin, std::uint64_t end, const Use& use) {
  T values[block];
  while (begin < end) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(block, end - begin));
    part.bytes->read(part.begin + begin * sizeof(T), count * sizeof(T), values);
    use(values, count, begin);
    begin += count;
  }
}

// Makes one pass without branches, which the compiler vectorises: a negative id is a large unsigned one.
template <class T>
bool all_below(const T* values, std::size_t count, std::uint64_t limit) {
  using Unsigned = std::make_unsigned_t<T>;
  const auto bound = static_cast<Unsigned>(limit);
  unsigned bad = 0;
  for (std::size_t i = 0; i < count; ++i) bad |= static_cast<Unsigned>(values[i]) >= bound;
  return bad == 0;
}

template <class T>
void check_ids(const TokenPart& part, std::uint64_t vocabulary) {
  const auto most = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
  if (std::is_unsigned_v<T> && vocabulary > most) return;
  const std::uint64_t limit = std::is_signed_v<T> ? std::min(vocabulary, most + 1) : vocabulary;
  const auto check = [&](const T* values, std::size_t count, std::uint64_t first) {
    if (all_below(values, count, limit)) return;
    for (std::size_t i = 0; i < count; ++i)
      if (static_cast<std::make_unsigned_t<T>>(values[i]) >= limit)
        fail(ExitCode::bad_data, "{}: token {} has id {}, allowed are 0 to {} (vocabulary of {})", part.path, first + i,
             +values[i], vocabulary - 1, vocabulary);
  };
  parallel_chunks(part.count, check_chunk, 0,
                  [&](std::uint64_t begin, std::uint64_t end) { for_blocks<T>(part, begin, end, check); });
}

}  // namespace

void widen(const TokenPart& part, std::uint64_t begin, std::size_t count, std::int32_t* out) {
  with_type(part.type, [&](auto zero) {
    for_blocks<decltype(zero)>(part, begin, begin + count, [&](const auto* values, std::size_t n, std::uint64_t first) {
      std::transform(values, values + n, out + (first - begin), [](auto id) { return static_cast<std::int32_t>(id); });
    });
  });
  const auto valid = [&](std::int32_t id) { return id >= 0 && id < part.limit; };
  if (const std::int32_t* odd = std::find_if_not(out, out + count, valid); odd != out + count)
    fail(ExitCode::input_missing, "{}: token {} has id {} now: the file was written again since it was opened",
         part.path, begin + static_cast<std::uint64_t>(odd - out), *odd);
}

void check_tokens(TokenPart& part, std::int64_t vocab_size) {
  if (part.count == 0) fail(ExitCode::bad_data, "{}: holds no tokens", part.path);
  const std::uint64_t limit = vocab_size > 0 ? static_cast<std::uint64_t>(vocab_size) : std::uint64_t{1} << 31;
  with_type(part.type, [&](auto zero) { check_ids<decltype(zero)>(part, limit); });
  part.limit = static_cast<std::int64_t>(limit);
}

bool are_ids(TokenPart part, std::int64_t vocab_size) {
  try {
    check_tokens(part, vocab_size);
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_data) throw;
    return false;
  }
  return true;
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
        for_blocks<T>(part, begin - first - 1, last - first - 1, [&](const T* values, std::size_t n, std::uint64_t at) {
          for (std::size_t i = 0; i < n; ++i)
            if (static_cast<std::int64_t>(values[i]) == end_of_document_) out.push_back(first + at + i + 1);
        });
      });
    begin = last;
  }
}

std::string FlatTokens::description() const {
  return fmt::format("{} {}: {} tokens{}", form_, parts_.front().path, size(),
                     parts_.size() > 1 ? fmt::format(" in {} files", parts_.size()) : "");
}

}  // namespace sestina
