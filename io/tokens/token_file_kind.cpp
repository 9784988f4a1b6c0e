#include "io/tokens/token_file.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/tokenizer/tokenizer_text.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace {

using namespace std::string_view_literals;

constexpr std::size_t head_bytes = 512;
constexpr std::string_view unpack("unpack it first"), to_lines("write its text as JSONL, one {\"text\": ...} a line"),
    fetch("fetch the file itself with git lfs pull"), other("give its text as a file of its own");

// These bytes are from the formats' own specifications; each is too long, or too odd, to begin a text or tokens by
// chance.
struct Magic {
  std::size_t at;
  std::string_view bytes;
  FileKind kind;
};
constexpr Magic magics[] = {
    {0, "\xFD\x37zXZ\0"sv, {"xz data", unpack}},
    {0, "LZIP\1"sv, {"lzip data", unpack}},
    {0, "\x89LZO\0"sv, {"lzop data", unpack}},
    {0, "\x04\x22\x4D\x18"sv, {"lz4 data", unpack}},
    {0, "\x02\x21\x4C\x18"sv, {"lz4 data", unpack}},
    {0, "\xFF\x06\0\0sNaPpY"sv, {"snappy data", unpack}},
    {0, "\x28\xB5\x2F\xFD"sv, {"zstd data", unpack}},
    {0, "PK\3\4"sv, {"a zip archive", unpack}},
    {0, "PK\5\6"sv, {"an empty zip archive", unpack}},
    {0, "7z\xBC\xAF\x27\x1C"sv, {"a 7z archive", unpack}},
    {0, "Rar!\x1A\7"sv, {"a rar archive", unpack}},
    {257, "ustar\0"sv, {"a tar archive", unpack}},
    {257, "ustar  \0"sv, {"a tar archive", unpack}},
    {0, "ARROW1\0\0"sv, {"an Arrow file", to_lines}},
    {0, "Obj\1"sv, {"an Avro file", to_lines}},
    {0, "\x89HDF\r\n\x1A\n"sv, {"an HDF5 file", to_lines}},
    {0, "\x93NUMPY"sv, {"a NumPy array", "tokens are read with format = \"npy\""}},
    {0, "SQLite format 3\0"sv, {"an SQLite database", to_lines}},
    {0, "%PDF-1."sv, {"a PDF file", other}},
    {0, "%PDF-2."sv, {"a PDF file", other}},
    {0,
     "\x7F"
     "ELF"sv,
     {"a program", other}},
    {0, "\x89PNG\r\n\x1A\n"sv, {"a PNG image", other}},
    {0, "\xFF\xD8\xFF"sv, {"a JPEG image", other}},
};
// Used only where text is expected: tokens may begin so.
constexpr Magic marks[] = {
    {0, "MMIDIDX\0\0"sv, {"an index of Megatron", "format = \"megatron\" reads it with the .bin next to it"}},
    {0, "\x1F\x9D"sv, {"data of compress (.Z)", unpack}},
    {0, "\xFF\xFF\xFF\xFF"sv, {"an Arrow stream", to_lines}},
    {0, "\xFF\xFE\0\0"sv, {"text in UTF-32", "write it as UTF-8, for instance with iconv -f UTF-32 -t UTF-8"}},
    {0, "\0\0\xFE\xFF"sv, {"text in UTF-32", "write it as UTF-8, for instance with iconv -f UTF-32 -t UTF-8"}},
    {0, "\xFF\xFE"sv, {"text in UTF-16", "write it as UTF-8, for instance with iconv -f UTF-16 -t UTF-8"}},
    {0, "\xFE\xFF"sv, {"text in UTF-16", "write it as UTF-8, for instance with iconv -f UTF-16 -t UTF-8"}},
};

template <std::size_t n>
FileKind find(const Magic (&list)[n], std::string_view head) {
  for (const Magic& magic : list)
    if (head.size() > magic.at && head.substr(magic.at).starts_with(magic.bytes)) return magic.kind;
  return {};
}

// RFC 1952: magic, the one method, no reserved flags, and values of the two bytes that say level and system which are
// in use. Strict, because two bytes alone may be a token.
bool has_gzip_header(std::string_view head) {
  if (head.size() < 10 || !head.starts_with("\x1F\x8B\x08")) return false;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(head[i]); };
  const bool level = byte(8) == 0 || byte(8) == 2 || byte(8) == 4, system = byte(9) <= 13 || byte(9) == 255;
  return byte(3) < 32 && level && system;
}

bool is_bzip2(std::string_view head) {
  return head.starts_with("BZh") && head.size() >= 10 &&
         (head.substr(4, 6) == "1AY&SY" || head.substr(4, 6) == "\x17rE8P\x90");
}

// A pointer has at most 1024 bytes, by the specification of Git LFS.
bool is_lfs_pointer(std::string_view head, std::uint64_t size) {
  return size <= 1024 && head.starts_with("version ") && head.find("\noid ") != head.npos &&
         (head.find("git-lfs") < 64 || head.find("git-media") < 64 || head.find("hawser") < 64);
}

// True for the number of a frame to be skipped, which zstd and lz4 have in common.
bool is_skippable(std::string_view head) {
  return head.size() >= 8 && (head[0] & '\xF0') == '\x50' && head.substr(1, 3) == "\x2A\x4D\x18";
}

[[noreturn]] void refuse(const FileKind& kind, std::string_view wanted, const std::string& path) {
  fail(ExitCode::input_missing, "{}: is {}, not {}: {}", path, kind.name, wanted, kind.help);
}

std::string head_of(const StoredBytes& file) {
  return file.text(0, static_cast<std::size_t>(std::min<std::uint64_t>(head_bytes, file.size())));
}

std::size_t length_by_lead(unsigned char lead) { return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

// Returns the number of bytes at the end that begin a character which does not end there.
std::size_t open_end(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte >= 0xC0) return length_by_lead(byte) > back ? back : 0;
  }
  return 0;
}

std::size_t first_invalid(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const std::size_t length = lead < 0x80 ? 1 : length_by_lead(lead);
    if (!is_valid_utf8(text.substr(at, length))) break;
    at += length;
  }
  return at;
}

void require_utf8_block(std::string_view block, std::uint64_t begin, const std::string& path) {
  if (const std::size_t zero = block.find('\0'); zero != block.npos)
    fail(ExitCode::input_missing, "{}: is not text: byte {} is zero (binary data, or UTF-16 without a mark)", path,
         begin + zero);
  if (is_valid_utf8(block)) return;
  const std::size_t at = first_invalid(block);
  fail(ExitCode::input_missing,
       "{}: is not UTF-8 text: 0x{:02X} at byte {}; write it as UTF-8, for instance with iconv -f LATIN1 -t UTF-8",
       path, static_cast<unsigned char>(block[at]), begin + at);
}

}  // namespace

bool is_gzip(std::string_view head) { return head.starts_with("\x1F\x8B"); }

bool is_zstd(std::string_view head) {
  while (is_skippable(head)) {
    const auto byte = [&](std::size_t i) { return std::uint64_t{static_cast<unsigned char>(head[i])}; };
    const std::uint64_t whole = 8 + (byte(4) | byte(5) << 8 | byte(6) << 16 | byte(7) << 24);
    if (whole >= head.size()) return true;
    head.remove_prefix(static_cast<std::size_t>(whole));
  }
  return head.starts_with("\x28\xB5\x2F\xFD");
}

FileKind kind_of(const StoredBytes& file) {
  const std::string head = head_of(file);
  if (const FileKind kind = find(magics, head); !kind.name.empty()) return kind;
  if (has_gzip_header(head)) return {"gzip data", unpack};
  if (is_bzip2(head)) return {"bzip2 data", unpack};
  if (is_lfs_pointer(head, file.size())) return {"a Git LFS pointer", fetch};
  if (file.size() >= 8) {
    const std::string tail = file.text(file.size() - 4, 4);
    const bool parquet = head.starts_with("PAR1") && tail == "PAR1",
               sealed = head.starts_with("PARE") && tail == "PARE";
    if (parquet || sealed) return {"a Parquet file", to_lines};
  }
  return {};
}

void refuse_foreign(const StoredBytes& file, const std::string& path) {
  if (const FileKind kind = kind_of(file); !kind.name.empty()) refuse(kind, "tokens", path);
}

void refuse_non_text(const StoredBytes& file, const std::string& path) {
  FileKind kind = kind_of(file);
  const std::string head = head_of(file);
  if (kind.name.empty()) kind = find(marks, head);
  if (!kind.name.empty()) refuse(kind, "UTF-8 text", path);
  if (head.find('\0') != head.npos) require_utf8_block(head, 0, path);
}

void require_utf8(const StoredBytes& file, const std::string& path, const Poll& poll) {
  constexpr std::size_t block_bytes = std::size_t{1} << 22;
  refuse_non_text(file, path);
  std::string block;
  for (std::uint64_t begin = 0; begin < file.size();) {
    if (poll) poll();
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(block_bytes, file.size() - begin));
    block.resize(count);
    file.read(begin, count, block.data());
    const bool last = begin + count == file.size();
    if (!last) block.resize(count - open_end(block));
    require_utf8_block(block, begin, path);
    begin += block.size();
  }
}

JsonValues json_values(std::string_view text) {
  constexpr std::string_view blank(" \t\r\n");
  const auto line_at = [&](std::size_t from) {
    const std::size_t begin = std::min(text.find_first_not_of(blank, from), text.size());
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  if (text.starts_with(utf8_mark)) text.remove_prefix(utf8_mark.size());
  const std::string_view first = line_at(0);
  if (first.starts_with('[')) return JsonValues::array;
  if (!first.starts_with('{')) return JsonValues::lines;
  const std::string_view second = line_at(static_cast<std::size_t>(first.data() - text.data()) + first.size());
  const bool whole = nlohmann::json::accept(first);
  if (second.empty()) return whole ? JsonValues::one : JsonValues::lines;
  return whole || second.starts_with('{') ? JsonValues::lines : JsonValues::spread;
}

void require_json_lines(std::string_view text, const std::string& path) {
  const JsonValues values = json_values(text);
  if (values == JsonValues::array)
    fail(ExitCode::input_missing,
         "{}: is a JSON array, not JSONL: write one object a line, for instance with jq -c '.[]'", path);
  if (values == JsonValues::spread)
    fail(ExitCode::input_missing,
         "{}: is a JSON object over several lines, not JSONL: write each object on one line, for instance with jq -c .",
         path);
}

}  // namespace sestina
