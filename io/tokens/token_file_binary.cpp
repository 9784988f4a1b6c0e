// llm.c .bin files and .npy files, raw or with NumPy's header.
#include <algorithm>
#include <cctype>
#include <utility>

#include "io/store/input_file.hpp"
#include "io/tokens/token_file.hpp"
#include "io/tokens/token_file_forms.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

// The header of llm.c: 256 i32, of which the first three are magic, version and number of tokens.
constexpr std::size_t llmc_header = 1024;
constexpr std::int32_t llmc_gpt2 = 20240520, llmc_llama3 = 20240801, llmc_evaluation = 20240522;

TokenPart llmc_part(const std::string& path, const std::shared_ptr<OpenFiles>& files) {
  const auto file = std::make_shared<FileBytes>(path, files);
  refuse_foreign(*file, path);
  if (file->size() < llmc_header)
    fail(ExitCode::bad_data, "{}: {} bytes, the header has {}", path, file->size(), llmc_header);
  std::int32_t head[3];
  file->read(0, sizeof head, head);
  const auto [magic, version, count] = head;
  if (magic == llmc_evaluation)
    fail(ExitCode::bad_data, "{}: is an evaluation file of llm.c, not a stream of tokens", path);
  if (magic != llmc_gpt2 && magic != llmc_llama3)
    fail(ExitCode::bad_data, "{}: magic number {}, allowed: {} (GPT-2, u16), {} (Llama-3, u32)", path, magic, llmc_gpt2,
         llmc_llama3);
  const int expected = magic == llmc_gpt2 ? 1 : 7;
  if (version != expected)
    fail(ExitCode::bad_data, "{}: version {}, allowed with this magic number: {}", path, version, expected);
  const TokenType type = magic == llmc_gpt2 ? TokenType::u16 : TokenType::u32;
  if (count <= 0) fail(ExitCode::bad_data, "{}: header says {} tokens, need at least 1", path, count);
  const std::uint64_t tokens = static_cast<std::uint64_t>(count), need = llmc_header + tokens * width(type);
  if (file->size() != need)
    fail(ExitCode::bad_data, "{}: {} bytes, the {} tokens of its header need {}", path, file->size(), tokens, need);
  return {path, file, llmc_header, tokens, type};
}

// Returns the value after 'key': in the Python dictionary of a NumPy header, without spaces; "" when it is not there.
std::string header_value(std::string_view header, std::string_view key) {
  std::string text;
  std::copy_if(header.begin(), header.end(), std::back_inserter(text),
               [](unsigned char c) { return !std::isspace(c); });
  const std::size_t at = text.find(fmt::format("'{}':", key));
  if (at == std::string::npos) return "";
  const std::size_t begin = at + key.size() + 3;
  const std::size_t end = text[begin] == '(' ? text.find(')', begin) + 1 : text.find_first_of(",}", begin);
  return text.substr(begin, end - begin);
}

// Reads the dictionary of NumPy's format, which stands after 6 bytes of magic, two of version and its length (u16 in
// version 1, else u32), and finds where the numbers begin.
std::pair<std::string, std::uint64_t> numpy_header(const std::string& path, const StoredBytes& file) {
  constexpr std::uint32_t most = 1 << 20;
  const std::uint64_t size = file.size();
  const std::size_t prefix = size > 6 && file.text(6, 1)[0] == 1 ? 10 : 12;
  std::uint32_t length = 0;
  if (size >= prefix) file.read(8, prefix - 8, &length);
  if (size < prefix || length > size - prefix)
    fail(ExitCode::bad_data, "{}: NumPy header is truncated ({} bytes)", path, size);
  if (length > most) fail(ExitCode::bad_data, "{}: NumPy header of {} bytes, allowed are {}", path, length, most);
  return {file.text(prefix, length), prefix + length};
}

TokenPart numpy_part(const std::string& path, const std::shared_ptr<const StoredBytes>& file) {
  const auto [header, begin] = numpy_header(path, *file);
  const std::string type = header_value(header, "descr"), shape = header_value(header, "shape");
  constexpr std::pair<const char*, TokenType> types[] = {
      {"'|u1'", TokenType::u8},  {"'|i1'", TokenType::i8},  {"'<u2'", TokenType::u16}, {"'<i2'", TokenType::i16},
      {"'<u4'", TokenType::u32}, {"'<i4'", TokenType::i32}, {"'<u8'", TokenType::i64}, {"'<i8'", TokenType::i64}};
  const auto* found =
      std::find_if(std::begin(types), std::end(types), [&](const auto& entry) { return type == entry.first; });
  if (found == std::end(types))
    fail(ExitCode::bad_data, "{}: NumPy type {}, allowed are integers of 1, 2, 4 or 8 bytes, as '<u2' or '<i4'", path,
         type);
  if (shape.size() < 4 || shape.find_first_not_of("0123456789", 1) != shape.size() - 2 || !shape.ends_with(",)") ||
      shape.size() > 22)
    fail(ExitCode::bad_data, "{}: NumPy shape {}, allowed is one dimension, (N,)", path, shape);
  const std::uint64_t tokens = std::stoull(shape.substr(1)), bytes = file->size() - begin;
  if (tokens > bytes || tokens * width(found->second) != bytes)
    fail(ExitCode::bad_data, "{}: {} bytes after the header, shape {} of {} needs {}", path, bytes, shape, type,
         tokens * width(found->second));
  return {path, file, begin, tokens, found->second};
}

// A u32 file read as u16 has a zero in every second place.
bool every_second_zero(const TokenPart& part) {
  if (part.count < 8 || part.count % 2 != 0) return false;
  constexpr std::size_t block = 4096;
  std::int32_t ids[block];
  for (std::uint64_t begin = 0; begin < part.count; begin += block) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(block, part.count - begin));
    widen(part, begin, count, ids);
    for (std::size_t i = 1; i < count; i += 2)
      if (ids[i] != 0) return false;
  }
  return true;
}

// Raw numbers name no type. The type is the narrowest that holds the vocabulary, as most writers choose it, where the
// file agrees: u32 where every second u16 is zero, u16 where the numbers are no ids of the vocabulary as u32.
TokenPart raw_part(const std::string& path, const std::shared_ptr<const StoredBytes>& file, std::int64_t vocab_size) {
  const auto as = [&](TokenType type) { return TokenPart{path, file, 0, file->size() / width(type), type}; };
  const TokenPart narrow = as(TokenType::u16), wide = as(TokenType::u32);
  const std::uint64_t size = file->size();
  if (size % width(TokenType::u16) != 0)
    fail(ExitCode::bad_data, "{}: {} bytes, raw tokens (u16, u32) need a multiple of 2", path, size);
  if (size % width(TokenType::u32) != 0) return narrow;
  const bool is_wide = vocab_size > 65536 ? are_ids(wide, vocab_size) : every_second_zero(narrow);
  return is_wide ? wide : narrow;
}

TokenPart npy_part(const std::string& path, std::int64_t vocab_size, const std::shared_ptr<OpenFiles>& files) {
  const auto file = std::make_shared<FileBytes>(path, files);
  constexpr std::string_view numpy("\x93NUMPY");
  if (file->size() >= numpy.size() && file->text(0, numpy.size()) == numpy) return numpy_part(path, file);
  refuse_foreign(*file, path);
  return raw_part(path, file, vocab_size);
}

}  // namespace

std::unique_ptr<TokenSource> open_llmc(const std::string& path, std::int64_t vocab_size, std::int64_t end_of_document) {
  std::vector<TokenPart> parts;
  const auto open = std::make_shared<OpenFiles>();
  for (const auto& file : list_token_files(path, ".bin"))
    check_tokens(parts.emplace_back(llmc_part(file, open)), vocab_size);
  return std::make_unique<FlatTokens>(std::move(parts), end_of_document, "llm.c");
}

std::unique_ptr<TokenSource> open_npy(const std::string& path, std::int64_t vocab_size, std::int64_t end_of_document) {
  std::vector<TokenPart> parts;
  const auto open = std::make_shared<OpenFiles>();
  for (const auto& file : list_token_files(path, ".npy"))
    check_tokens(parts.emplace_back(npy_part(file, vocab_size, open)), vocab_size);
  return std::make_unique<FlatTokens>(std::move(parts), end_of_document, "npy");
}

}  // namespace sestina
