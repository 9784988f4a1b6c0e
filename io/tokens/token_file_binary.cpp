// llm.c .bin files and .npy files, raw or with NumPy's header.
#include <algorithm>
#include <cctype>
#include <cstring>

#include "io/store/mapped_file.hpp"
#include "io/tokens/token_file_flat.hpp"
#include "io/tokens/token_file_forms.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

// llm.c: 256 i32, of which the first three are magic, version and number of tokens.
constexpr std::size_t llmc_header = 1024;
constexpr std::int32_t llmc_gpt2 = 20240520, llmc_llama3 = 20240801, llmc_evaluation = 20240522;

TokenPart llmc_part(const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  if (file->size() < llmc_header)
    fail(ExitCode::bad_data, "{}: {} bytes, the header has {}", path, file->size(), llmc_header);
  std::int32_t head[3];
  std::memcpy(head, file->data(), sizeof head);
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
  return {path, file, file->data() + llmc_header, tokens, type};
}

// The value behind 'key': in the Python dictionary of a NumPy header, without spaces; "" when it is not there.
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

// NumPy's format: 6 bytes of magic, two of version, header length (u16 in version 1, else u32), a Python dictionary.
TokenPart numpy_part(const std::string& path, const std::shared_ptr<MappedFile>& file) {
  const std::string_view image = file->view();
  const std::size_t prefix = image.size() > 6 && image[6] == 1 ? 10 : 12;
  std::uint32_t length = 0;
  if (image.size() >= prefix) std::memcpy(&length, image.data() + 8, prefix - 8);
  if (image.size() < prefix || length > image.size() - prefix)
    fail(ExitCode::bad_data, "{}: NumPy header is truncated ({} bytes)", path, image.size());
  const std::string_view header = image.substr(prefix, length);
  const std::string type = header_value(header, "descr"), shape = header_value(header, "shape");
  constexpr std::pair<const char*, TokenType> types[] = {
      {"'<u2'", TokenType::u16}, {"'<u4'", TokenType::u32}, {"'<i4'", TokenType::i32}};
  const auto* found =
      std::find_if(std::begin(types), std::end(types), [&](const auto& entry) { return type == entry.first; });
  if (found == std::end(types)) fail(ExitCode::bad_data, "{}: NumPy type {}, allowed: '<u2', '<u4', '<i4'", path, type);
  if (shape.size() < 4 || shape.find_first_not_of("0123456789", 1) != shape.size() - 2 || !shape.ends_with(",)") ||
      shape.size() > 22)
    fail(ExitCode::bad_data, "{}: NumPy shape {}, allowed is one dimension, (N,)", path, shape);
  const std::uint64_t tokens = std::stoull(shape.substr(1)), bytes = image.size() - prefix - length;
  if (tokens > bytes || tokens * width(found->second) != bytes)
    fail(ExitCode::bad_data, "{}: {} bytes after the header, shape {} of {} needs {}", path, bytes, shape, type,
         tokens * width(found->second));
  return {path, file, file->data() + prefix + length, tokens, found->second};
}

// A u32 file read as u16 has a zero in every second place.
bool every_second_zero(const TokenPart& part) {
  if (part.count < 8 || part.count % 2 != 0) return false;
  std::uint16_t any = 0, value;
  for (std::uint64_t i = 1; i < part.count && any == 0; i += 2) {
    std::memcpy(&value, part.data + 2 * i, sizeof value);
    any |= value;
  }
  return any == 0;
}

// Raw numbers name no type: it is the narrowest that holds the vocabulary, as their writers choose it.
TokenPart raw_part(const std::string& path, const std::shared_ptr<MappedFile>& file, std::int64_t vocab_size) {
  const TokenType type = vocab_size > 65536 ? TokenType::u32 : TokenType::u16;
  if (file->size() % width(type) != 0)
    fail(ExitCode::bad_data, "{}: {} bytes, raw {} tokens (vocabulary of {}) need a multiple of {}", path, file->size(),
         name(type), vocab_size, width(type));
  const TokenPart part{path, file, file->data(), file->size() / width(type), type};
  if (type == TokenType::u16 && every_second_zero(part))
    fail(ExitCode::bad_data, "{}: every second u16 token is 0: is u32, allowed for a vocabulary of {} is u16", path,
         vocab_size);
  return part;
}

TokenPart npy_part(const std::string& path, std::int64_t vocab_size) {
  const auto file = std::make_shared<MappedFile>(path);
  return file->view().starts_with("\x93NUMPY") ? numpy_part(path, file) : raw_part(path, file, vocab_size);
}

}  // namespace

std::unique_ptr<TokenSource> open_llmc(const std::string& path, std::int64_t vocab_size, std::int64_t end_of_document) {
  std::vector<TokenPart> parts;
  for (const auto& file : list_token_files(path, ".bin")) check_tokens(parts.emplace_back(llmc_part(file)), vocab_size);
  return std::make_unique<FlatTokens>(std::move(parts), end_of_document, "llm.c");
}

std::unique_ptr<TokenSource> open_npy(const std::string& path, std::int64_t vocab_size, std::int64_t end_of_document) {
  std::vector<TokenPart> parts;
  for (const auto& file : list_token_files(path, ".npy"))
    check_tokens(parts.emplace_back(npy_part(file, vocab_size)), vocab_size);
  return std::make_unique<FlatTokens>(std::move(parts), end_of_document, "npy");
}

}  // namespace sestina
