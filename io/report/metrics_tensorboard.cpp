#include "io/report/metrics.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>

#include "io/store/output_file.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/host_name.hpp"

namespace sestina {

namespace {

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U; }

template <class T>
void put_raw(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

enum WireType { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
void put_key(std::string& out, int field, WireType type) {
  put_varint(out, static_cast<std::uint64_t>(field << 3 | type));
}

void put_bytes(std::string& out, int field, std::string_view data) {
  put_key(out, field, WireType::bytes);
  put_varint(out, data.size());
  out += data;
}

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      t[i] = i;
      for (int bit = 0; bit < 8; ++bit) t[i] = t[i] >> 1 ^ (t[i] & 1 ? 0x82F63B78U : 0);
    }
    return t;
  }();
  std::uint32_t crc = ~0U;
  for (unsigned char byte : data) crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF];
  return ~crc;
}

TensorBoardFile::TensorBoardFile(const std::string& folder) {
  for (std::string* buffer : {&event_, &summary_, &value_, &record_})
    buffer->reserve(2048);  // an event has at most about 500
  static std::atomic<int> number{0};
  path_ = fmt::format("{}/events.out.tfevents.{}.{}.{}.{}", folder, static_cast<std::int64_t>(wall_time()), host_name(),
                      ::getpid(), number++);
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) fail(ExitCode::cannot_create, "{}: cannot be created: {}", path_, std::strerror(errno));
  put_key(event_, 1, fixed64);
  put_raw(event_, wall_time());
  put_bytes(event_, 3, "brain.Event:2");
  write_record(event_);
}

TensorBoardFile::~TensorBoardFile() { ::close(file_); }

void TensorBoardFile::begin(std::int64_t step) {
  event_.clear();
  summary_.clear();
  put_key(event_, 1, fixed64);
  put_raw(event_, wall_time());
  put_key(event_, 2, varint);
  put_varint(event_, static_cast<std::uint64_t>(step));
}

void TensorBoardFile::scalar(std::string_view tag, double value) {
  value_.clear();
  put_bytes(value_, 1, tag);
  put_key(value_, 2, fixed32);
  put_raw(value_, static_cast<float>(value));
  put_bytes(summary_, 1, value_);
}

bool TensorBoardFile::end() {
  put_bytes(event_, 5, summary_);
  return write_record(event_);
}

bool TensorBoardFile::write_record(std::string_view data) {
  constexpr double wait = 5;  // seconds for errors that may pass: the run waits meanwhile
  record_.clear();
  put_raw(record_, static_cast<std::uint64_t>(data.size()));
  put_raw(record_, masked_crc(record_));
  record_ += data;
  put_raw(record_, masked_crc(data));
  Retry retry(path_, good_ ? wait : 0);
  std::size_t left = record_.size();
  good_ = write_all(retry, file_, record_.data(), left);
  return good_;
}

}  // namespace sestina
