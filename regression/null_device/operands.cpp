// Calls of libraries of algebra: what they are given is checked as they check it, and told (NULL_DEVICE_RECORDS), one
// line of JSON for calls that have everything in common:
//
//   {"call": NAME, "stream": NUMBER, sizes and facts..., "A": {"type": T, "rows": R, "cols": C, "ld": L,
//    "align": BYTES, "batch": COUNT, "stride": ELEMENTS, "in": LABEL}, ..., "calls": HOW OFTEN}
//
// align is the largest power of two, up to 256, that every pointer of the operand is a multiple of; "in" is the label
// of its allocation.
#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "device.hpp"

namespace null_device {
namespace {

std::map<std::string, unsigned long long>& records() {
  static auto* const all = new std::map<std::string, unsigned long long>;  // told after destructors of statics
  return *all;
}

long long element(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F:
      return 8;
    case CUDA_R_32F:
    case CUDA_R_32I:
      return 4;
    case CUDA_R_16BF:
    case CUDA_R_16F:
      return 2;
    default:
      return 1;
  }
}

std::string type_name(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F:
      return "fp64";
    case CUDA_R_32F:
      return "fp32";
    case CUDA_R_32I:
      return "int32";
    case CUDA_R_16BF:
      return "bf16";
    case CUDA_R_16F:
      return "fp16";
    default:
      return std::to_string(static_cast<int>(type));
  }
}

int alignment(std::uintptr_t bits) { return static_cast<int>((bits | 256u) & -(bits | 256u)); }
int alignment(const Operand& x) {
  const auto bits = reinterpret_cast<std::uintptr_t>(x.at);
  return alignment(x.count > 1 ? bits | static_cast<std::uintptr_t>(x.stride * element(x.type)) : bits);
}

std::uintptr_t row_bytes(const Operand& x) { return static_cast<std::uintptr_t>(x.leading * element(x.type)); }

bool is_empty(const Operand& x) { return x.rows <= 0 || x.cols <= 0 || x.count <= 0; }
long long elements(const Operand& x) { return (x.count - 1) * x.stride + (x.cols - 1) * x.leading + x.rows; }
std::intptr_t begin(const Operand& x) { return reinterpret_cast<std::intptr_t>(x.at); }
std::intptr_t end(const Operand& x) { return begin(x) + elements(x) * element(x.type); }

// Whether two operands have a place in common. Of one matrix they may be rows that do not meet.
bool meet(const Operand& x, const Operand& y) {
  if (is_empty(x) || is_empty(y) || end(x) <= begin(y) || end(y) <= begin(x)) return false;
  if (x.count > 1 || y.count > 1 || x.leading != y.leading || element(x.type) != element(y.type)) return true;
  const Operand &first = begin(x) <= begin(y) ? x : y, &second = begin(x) <= begin(y) ? y : x;
  const long long row = (begin(second) - begin(first)) / element(x.type) % x.leading;
  return row < first.rows || row + second.rows > x.leading;
}

// Whether matrices of a batch meet: they lie one after another, or next to each other in the rows of a wider one.
bool meet_in_batch(const Operand& x) {
  if (x.count <= 1 || is_empty(x)) return false;
  const bool apart = x.stride >= (x.cols - 1) * x.leading + x.rows;
  const bool side_by_side = x.stride >= x.rows && (x.count - 1) * x.stride + x.rows <= x.leading;
  return !apart && !side_by_side;
}

}  // namespace

LibraryCall::LibraryCall(const std::string& name, cudaStream_t stream) : name_(name) {
  count("library", name);
  const auto at = std::find(dev().streams.begin(), dev().streams.end(), &stream_of(stream));
  record_ = "\"call\": \"" + name + "\", \"stream\": " + std::to_string(at - dev().streams.begin());
  if (at == dev().streams.end()) refuse("a stream that there is not");
  ++stream_of(stream).kernels;  // its work comes before and after other work as a kernel's does
}

void LibraryCall::refuse(const std::string& why) {
  problem(name_ + ": " + why);
  good_ = false;
}

void LibraryCall::size(const char* name, long long value) {
  record_ += std::string(", \"") + name + "\": " + std::to_string(value);
  if (value < 0) refuse(std::string(name) + " is below 0");
}

void LibraryCall::fact(const char* name, const std::string& text) {
  record_ += std::string(", \"") + name + "\": \"" + text + "\"";
}

void LibraryCall::operand(const Operand& x) {
  record(x, alignment(x));
  check(x);
}

void LibraryCall::operands(Operand x, const std::vector<const void*>& places) {
  std::uintptr_t bits = 0;
  for (const void* place : places) bits |= reinterpret_cast<std::uintptr_t>(place);
  x.count = static_cast<long long>(places.size());
  x.at = places.empty() ? nullptr : places.front();
  record(x, alignment(bits));
  x.count = 1;
  for (const void* place : places) {
    x.at = place;
    check(x);
  }
}

void LibraryCall::each(const std::vector<Operand>& all) {
  if (all.empty()) return;
  std::uintptr_t bits = 0;
  for (const Operand& x : all) bits |= reinterpret_cast<std::uintptr_t>(x.at) | row_bytes(x);
  Operand first = all.front();
  first.count = static_cast<long long>(all.size());
  record(first, alignment(bits));
  for (const Operand& x : all) check(x);
}

void LibraryCall::list(const char* name, const std::vector<std::vector<long long>>& rows) {
  std::string text;
  for (const auto& row : rows) {
    text += text.empty() ? "[" : ", [";
    for (const long long value : row) text += (text.back() == '[' ? "" : ", ") + std::to_string(value);
    text += "]";
  }
  record_ += std::string(", \"") + name + "\": [" + text + "]";
}

void LibraryCall::record(const Operand& x, int align) {
  const auto say = [](const char* key, long long value) {
    return std::string(", \"") + key + "\": " + std::to_string(value);
  };
  record_ += std::string(", \"") + x.name + "\": {\"type\": \"" + type_name(x.type) + "\"" + say("rows", x.rows) +
             say("cols", x.cols) + say("ld", x.leading) + say("align", align) + say("batch", x.count) +
             say("stride", x.stride) + ", \"in\": \"" + label_of(x.at) + "\"}";
}

void LibraryCall::check(const Operand& x) {
  const std::string name = x.name;
  if (x.leading < std::max(1LL, x.rows)) return refuse("leading dimension of " + name + " below its rows");
  if (is_empty(x)) return;
  if (x.at == nullptr) return refuse(name + " is null");
  if (!in_arena(x.at) && !is_managed(x.at)) return refuse(name + " is not in device memory");
  if (is_managed(x.at)) count_managed_operand(x.at);
  if (x.count > 1 && x.stride < 0) return refuse("stride of " + name + " is below 0");
  if (alignment(x) < element(x.type)) return refuse(name + " is not aligned to its elements");
  if (x.is_result && meet_in_batch(x)) refuse("results of a batch lie in each other");
  for (const Operand& other : given_)
    if ((x.is_result || other.is_result) && meet(x, other)) refuse(name + " lies in " + other.name);
  given_.push_back(x);
  reach(x.at, static_cast<std::size_t>(elements(x) * element(x.type)), (name_ + ", " + name).c_str());
}

void LibraryCall::memory(const char* name, const void* at, long long n, cudaDataType_t type) {
  operand({.name = name, .at = at, .type = type, .rows = n, .cols = 1, .leading = std::max(1LL, n), .is_result = true});
}

bool LibraryCall::end() {
  ++records()[record_];
  return good_;
}

void write_records() {
  const std::string path = path_of_rank("NULL_DEVICE_RECORDS");
  std::FILE* const out = path.empty() ? nullptr : std::fopen(path.c_str(), "w");
  if (out == nullptr) return;
  for (const auto& [record, calls] : records()) std::fprintf(out, "{%s, \"calls\": %llu}\n", record.c_str(), calls);
  std::fclose(out);
}

}  // namespace null_device
