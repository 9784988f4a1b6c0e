// TensorBoard event files: framed protobuf records, written without TensorFlow. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace sestina {

// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), as RFC 3720, appendix B.4.
std::uint32_t crc32c(std::string_view bytes);

// Record: u64 length, u32 masked CRC of it, data, u32 masked CRC of the data, little-endian; mask = rotate right by 15,
// plus 0xA282EAD8. Data: Event {1: double wall_time, 2: int64 step, 3: string file_version, 5: Summary {1: Value {1:
// string tag, 2: float simple_value}}}. Buffers are reused: after the first event of a kind none is allocated.
class TensorBoardFile {
 public:
  // Creates <folder>/events.out.tfevents.<unix time>.<host>.<pid>.<n>; Error(cannot_create).
  explicit TensorBoardFile(const std::string& folder);
  ~TensorBoardFile();
  TensorBoardFile(const TensorBoardFile&) = delete;
  TensorBoardFile& operator=(const TensorBoardFile&) = delete;

  void begin(std::int64_t step);
  void scalar(std::string_view tag, double value);
  bool end();  // writes the event; false when the disk refuses it
  const std::string& path() const { return path_; }

 private:
  bool write_record(std::string_view data);
  std::string path_, event_, summary_, value_, record_;
  int file_ = -1;
  bool good_ = true;  // the last record could be written
};

}  // namespace sestina
