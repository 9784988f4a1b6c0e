// What a data file is by its bytes, whatever it is called. All errors are Error(input_missing): name, what it is, what
// to do. No Kokkos.
#pragma once
#include <string>
#include <string_view>

#include "io/store/digest.hpp"
#include "io/store/stored_bytes.hpp"

namespace sestina {

// "xz data", "a Parquet file", "a Git LFS pointer" ..., and what to do about it; empty for what is not known, as text
// and plain numbers. Looks at the beginning and the end of a file.
struct FileKind {
  std::string_view name, help;
};
FileKind kind_of(const StoredBytes&);

// Packed text that is read: gzip, and zstd also where a frame to be skipped comes first.
bool is_gzip(std::string_view head);
bool is_zstd(std::string_view head);

// Refuses a file of a known kind where numbers are expected.
void refuse_foreign(const StoredBytes&, const std::string& path);
// The same where text is expected, and text in UTF-16 or UTF-32.
void refuse_non_text(const StoredBytes&, const std::string& path);
// The same, zero bytes, and whatever is no UTF-8, which is named with its place. poll: called every few megabytes.
void require_utf8(const StoredBytes&, const std::string& path, const Poll& poll = {});

// The mark of UTF-8, which belongs to no document.
constexpr std::string_view utf8_mark("\xEF\xBB\xBF");

// What a file of JSON holds by its first lines: objects, each on one; an array; one object, on one line or over
// several. Whatever is no JSON counts as lines.
enum class JsonValues { lines, array, one, spread };
JsonValues json_values(std::string_view text);
// Refuses an array, and an object over several lines.
void require_json_lines(std::string_view text, const std::string& path);

}  // namespace sestina
