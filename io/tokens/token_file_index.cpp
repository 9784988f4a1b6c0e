#include "io/tokens/token_file_forms.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::string_view magic("MMIDIDX\0\0", 9);
constexpr std::size_t header_bytes = 34;  // magic, u64 version, u8 type, u64 sequences, u64 document entries

template <class T>
T load(const StoredBytes& image, std::uint64_t table, std::uint64_t index = 0) {
  T value;
  image.read(table + index * sizeof(T), sizeof(T), &value);
  return value;
}

// Reads a table from its first entry to its last, a block at a time.
template <class T>
class Column {
 public:
  Column(const StoredBytes& image, std::uint64_t table, std::uint64_t count)
      : image_(image), table_(table), count_(count) {}
  T next() {
    constexpr std::uint64_t block = 4096;
    if (at_ == held_.size()) {
      held_.resize(static_cast<std::size_t>(std::min(block, count_ - read_)));
      image_.read(table_ + read_ * sizeof(T), held_.size() * sizeof(T), held_.data());
      read_ += held_.size();
      at_ = 0;
    }
    return held_[at_++];
  }

 private:
  const StoredBytes& image_;
  std::uint64_t table_, count_, read_ = 0;
  std::size_t at_ = 0;
  std::vector<T> held_;
};

TokenType type_of(std::uint8_t code, const std::string& where) {
  switch (code) {
    case 1:
      return TokenType::u8;
    case 2:
      return TokenType::i8;
    case 3:
      return TokenType::i16;
    case 4:
      return TokenType::i32;
    case 5:
      return TokenType::i64;
    case 8:
      return TokenType::u16;
    default:
      fail(ExitCode::bad_data,
           "{}: type code {} at byte 17, allowed for tokens: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16", where, code);
  }
}

// Reads the tables after the header, of which the last one (modes, of multimodal files) is optional; returns its
// length.
void check_size(const StoredBytes& image, std::uint64_t sequences, std::uint64_t entries, const std::string& where) {
  const std::uint64_t room = image.size() - header_bytes;
  if (sequences > room / 12 || entries > room / 8)
    fail(ExitCode::bad_data, "{}: {} sequences and {} document entries do not fit into {} bytes", where, sequences,
         entries, image.size());
  const std::uint64_t need = header_bytes + 12 * sequences + 8 * entries;
  if (image.size() != need && image.size() != need + sequences)
    fail(ExitCode::bad_data, "{}: {} bytes, {} sequences and {} document entries need {}", where, image.size(),
         sequences, entries, need);
  Column<char> modes(image, need, image.size() - need);
  for (std::uint64_t i = need; i < image.size(); ++i)
    if (modes.next() != 0) fail(ExitCode::bad_data, "{}: has modes of multimodal data, only text is allowed", where);
}

// Checks that sequences lie in the .bin back to back: monotone, inside, without holes or overlaps. Returns the bytes
// that they take.
std::uint64_t check_sequences(Column<std::int32_t> lengths, Column<std::int64_t> pointers, std::uint64_t sequences,
                              std::uint64_t element, std::uint64_t bin_bytes, const std::string& where) {
  std::uint64_t end = 0;
  for (std::uint64_t i = 0; i < sequences; ++i) {
    const std::int32_t length = lengths.next();
    const std::int64_t pointer = pointers.next();
    if (length < 0) fail(ExitCode::bad_data, "{}: sequence {} has length {}, allowed is 0 or more", where, i, length);
    if (pointer < 0 || static_cast<std::uint64_t>(pointer) != end)
      fail(ExitCode::bad_data, "{}: sequence {} begins at byte {} of the .bin, the one before ends at {}", where, i,
           pointer, end);
    const std::uint64_t bytes = static_cast<std::uint64_t>(length) * element;
    if (bytes > bin_bytes - end)
      fail(ExitCode::bad_data, "{}: sequence {} ends at byte {}, beyond the .bin of {} bytes", where, i, end + bytes,
           bin_bytes);
    end += bytes;
  }
  return end;
}

void check_documents(Column<std::int64_t> indices, std::uint64_t entries, std::uint64_t sequences,
                     const std::string& where) {
  if (entries < 2)
    fail(ExitCode::bad_data, "{}: {} document entries, need one more than there are documents, at least 2", where,
         entries);
  std::int64_t before = 0;
  for (std::uint64_t d = 0; d < entries; ++d) {
    const std::int64_t index = indices.next();
    if (index < before || (d == 0 && index != 0) || static_cast<std::uint64_t>(index) > sequences)
      fail(ExitCode::bad_data, "{}: document entry {} is {}, allowed are {} to {}, in ascending order", where, d, index,
           before, d == 0 ? 0 : sequences);
    before = index;
  }
  if (static_cast<std::uint64_t>(before) != sequences)
    fail(ExitCode::bad_data, "{}: the last document entry is {}, must be the number of sequences, {}", where, before,
         sequences);
}

}  // namespace

std::size_t width(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::u16:
    case TokenType::i16:
      return 2;
    case TokenType::u32:
    case TokenType::i32:
      return 4;
    case TokenType::i64:
      return 8;
  }
  return 0;
}

const char* name(TokenType type) {
  constexpr const char* names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "i64"};
  return names[static_cast<int>(type)];
}

std::uint64_t MegatronIndex::document_start(std::uint64_t document) const {
  const auto sequence = load<std::uint64_t>(*image, document_indices, document);
  return sequence >= sequences ? tokens : load<std::uint64_t>(*image, pointers, sequence) / width(type);
}

void MegatronIndex::document_starts(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& out) const {
  out.clear();
  std::uint64_t low = 0;
  for (std::uint64_t high = documents; low < high;) {  // finds the first document that starts at begin or later
    const std::uint64_t middle = low + (high - low) / 2;
    if (document_start(middle) < begin)
      low = middle + 1;
    else
      high = middle;
  }
  for (; low < documents; ++low) {
    const std::uint64_t start = document_start(low);
    if (start >= end) return;
    if (start < begin) continue;                                   // a file that is written again meanwhile
    if (out.empty() || out.back() != start) out.push_back(start);  // empty documents share their start with the next
  }
}

MegatronIndex parse_megatron_index(std::shared_ptr<const StoredBytes> image, std::uint64_t bin_bytes,
                                   const std::string& where) {
  if (image->size() < header_bytes)
    fail(ExitCode::bad_data, "{}: {} bytes, the header has {}", where, image->size(), header_bytes);
  if (image->text(0, magic.size()) != magic)
    fail(ExitCode::bad_data, "{}: does not begin with MMIDIDX and two zero bytes", where);
  const auto version = load<std::uint64_t>(*image, 9);
  if (version != 1) fail(ExitCode::bad_data, "{}: version {}, allowed: 1", where, version);
  MegatronIndex index;
  index.type = type_of(load<std::uint8_t>(*image, 17), where);
  index.sequences = load<std::uint64_t>(*image, 18);
  const auto entries = load<std::uint64_t>(*image, 26);
  check_size(*image, index.sequences, entries, where);
  index.pointers = header_bytes + 4 * index.sequences;
  index.document_indices = index.pointers + 8 * index.sequences;
  check_documents({*image, index.document_indices, entries}, entries, index.sequences, where);
  index.documents = entries - 1;
  const std::uint64_t bytes =
      check_sequences({*image, header_bytes, index.sequences}, {*image, index.pointers, index.sequences},
                      index.sequences, width(index.type), bin_bytes, where);
  if (bytes != bin_bytes)
    fail(ExitCode::bad_data, "{}: sequences take {} bytes, the .bin has {}", where, bytes, bin_bytes);
  index.tokens = bytes / width(index.type);
  index.image = std::move(image);
  return index;
}

MegatronIndex parse_megatron_index(std::string_view image, std::uint64_t bin_bytes, const std::string& where) {
  return parse_megatron_index(std::make_shared<ViewedBytes>(image), bin_bytes, where);
}

}  // namespace sestina
