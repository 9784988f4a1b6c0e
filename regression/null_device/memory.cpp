// The device's memory, what is copied to and from it, and streams as queues of copies that the host has not waited for.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.hpp"

namespace null_device {

std::size_t number(const char* name, std::size_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 0) : otherwise;
}

Device::Device() {
  file = memfd_create("null_device", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) std::perror("null_device: memory"), std::abort();
  const auto map = [&](int access) {
    return static_cast<char*>(mmap(nullptr, size, access, MAP_SHARED | MAP_NORESERVE, file, 0));
  };
  base = map(PROT_NONE);
  shadow = map(PROT_READ | PROT_WRITE);
  if (base == MAP_FAILED || shadow == MAP_FAILED) std::perror("null_device: memory"), std::abort();
  holes[0] = size;
}
Device& dev() {
  static Device* device = new Device;
  return *device;
}

void count(const char* kind, const std::string& name, std::size_t bytes) {
  const std::string of = kind;
  const bool recorded = dev().recording != nullptr && (of == "launch" || of == "kernel" || of == "library");
  Count& c = dev().counts[recorded ? "recorded " + of : of][name];
  ++c.calls;
  c.bytes += bytes;
}
cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void problem(const std::string& text) {
  Count& c = dev().counts["problem"][text];
  if (c.calls++ == 0) {
    std::fprintf(stderr, "null_device: %s\n", text.c_str());
    backtrace_to_stderr();
  }
  if (dev().strict) std::abort();
}

std::pair<const char*, Allocation*> find(const void* at) {
  auto next = dev().memory.upper_bound(static_cast<const char*>(at));
  if (next == dev().memory.begin()) return {nullptr, nullptr};
  --next;
  if (static_cast<const char*>(at) >= next->first + std::max<std::size_t>(next->second.bytes, 1))
    return {nullptr, nullptr};
  return {next->first, &next->second};
}
bool in_arena(const void* at) { return at >= dev().base && at < dev().base + dev().size; }
std::string label_of(const void* at) {
  const auto found = find(at).second;
  return !found ? "(no allocation)" : found->label.empty() ? "(no label)" : found->label;
}
char* reach(const void* at, std::size_t bytes, const char* what) {
  char* address = static_cast<char*>(const_cast<void*>(at));
  const auto [begin, allocation] = find(at);
  if (!in_arena(at) && !is_managed(at)) return address;
  if (bytes && (!allocation || address + bytes > begin + allocation->bytes))
    problem(std::string(what) + ": " + std::to_string(bytes) + " bytes at " +
            (allocation ? "byte " + std::to_string(address - begin) + " of " + std::to_string(allocation->bytes) +
                              ", \"" + label_of(at) + "\""
                        : std::string("device memory that is not allocated")));
  return in_arena(at) ? dev().shadow + (address - dev().base) : address;
}

cudaError_t allocate(void** out, std::size_t bytes, const char* call) {
  start();
  Lock lock(dev().mutex);
  *out = nullptr;
  count("allocation", bytes ? call : std::string(call) + " of 0 bytes", bytes);
  if (bytes == 0) return cudaSuccess;
  refuse_while_recording(call);
  const std::size_t need = (bytes + 4095) / 4096 * 4096 + 4096;  // and a page that belongs to nobody
  for (auto hole = dev().holes.begin(); hole != dev().holes.end(); ++hole) {
    if (hole->second < need) continue;
    const auto [offset, length] = *hole;
    dev().holes.erase(hole);
    if (length > need) dev().holes[offset + need] = length - need;
    *out = dev().base + offset;
    dev().memory[dev().base + offset] = {bytes, cudaMemoryTypeDevice, ""};
    if (dev().fill) std::memset(dev().shadow + offset, dev().fill, bytes);
    dev().in_use += bytes;
    dev().peak = std::max(dev().peak, dev().in_use);
    return cudaSuccess;
  }
  return result(cudaErrorMemoryAllocation);
}

void drain_all() {
  for (Stream* stream : dev().streams) {
    drain(*stream, stream->end());
    join(dev().waited, order_of(*stream));
  }
}

void join(Order& order, const Order& other) {
  for (const auto& [stream, kernels] : other) order[stream] = std::max(order[stream], kernels);
}

Order order_of(const Stream& stream) {
  Order order = stream.after;
  order[&stream] = stream.kernels;
  return order;
}

// A message reads and writes what kernels make and read, and a copy to the host reads it, in a stream of its own.
void require_order(cudaStream_t stream, const char* call) {
  Order order = order_of(stream_of(stream));
  join(order, dev().waited);
  for (const Stream* other : dev().streams)
    if (order[other] < other->kernels)
      return problem(std::string(call) + " is not after the kernels of another stream");
}

void require_order_since(const Order& then, cudaStream_t stream, const char* call) {
  Order order = order_of(stream_of(stream));
  join(order, dev().waited);
  bool any = false;
  for (const auto& [other, kernels] : then) {
    any = any || kernels > 0;
    if (kernels > 0 && order[other] >= kernels) return;
  }
  if (any) problem(std::string(call) + " is not after what used memory that is mapped");
}

cudaError_t release(void* at, const char* call) {
  Lock lock(dev().mutex);
  if (!at) return cudaSuccess;
  count("free", call);
  if (!std::strstr(call, "Async")) drain_all();
  const auto found = dev().memory.find(static_cast<char*>(at));
  if (found == dev().memory.end() || !in_arena(at)) {
    problem(std::string(call) + " of something else");
    return result(cudaErrorInvalidValue);
  }
  std::size_t offset = static_cast<char*>(at) - dev().base, length = (found->second.bytes + 4095) / 4096 * 4096 + 4096;
  fallocate(dev().file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(length));
  dev().in_use -= found->second.bytes;
  dev().memory.erase(found);
  auto next = dev().holes.lower_bound(offset);
  if (next != dev().holes.end() && next->first == offset + length)
    length += next->second, next = dev().holes.erase(next);
  if (next != dev().holes.begin() && std::prev(next)->first + std::prev(next)->second == offset)
    std::prev(next)->second += length;
  else
    dev().holes[offset] = length;
  return cudaSuccess;
}

cudaError_t allocate_host(void** out, std::size_t bytes, cudaMemoryType type, const char* call) {
  Lock lock(dev().mutex);
  count("allocation", call, bytes);
  *out = std::aligned_alloc(4096, (bytes + 4096) / 4096 * 4096);
  std::memset(*out, dev().fill, bytes);
  dev().memory[static_cast<char*>(*out)] = {bytes, type, ""};
  dev().pinned += bytes;
  dev().pinned_peak = std::max(dev().pinned_peak, dev().pinned);
  return cudaSuccess;
}
cudaError_t release_host(void* at, const char* call) {
  Lock lock(dev().mutex);
  if (!at) return cudaSuccess;
  count("free", call);
  drain_all();
  const auto found = dev().memory.find(static_cast<char*>(at));
  if (found == dev().memory.end() || in_arena(at)) {
    problem(std::string(call) + " of something else");
    return result(cudaErrorInvalidValue);
  }
  dev().pinned -= found->second.bytes;
  dev().memory.erase(found);
  std::free(at);
  return cudaSuccess;
}

Stream& stream_of(cudaStream_t stream) { return stream ? *reinterpret_cast<Stream*>(stream) : *dev().streams[0]; }

void drain(Stream& stream, std::size_t end) {
  while (stream.done < end && !stream.queue.empty()) {
    Pending entry = std::move(stream.queue.front());
    stream.queue.pop_front();
    ++stream.done;
    if (entry.other) {
      drain(*entry.other, entry.other_end);
    } else if (entry.to_host) {
      std::memcpy(entry.host, entry.data.data(), entry.data.size());
    } else if (std::memcmp(entry.host, entry.data.data(), entry.data.size()) != 0) {
      problem("pinned host memory changed while a copy from it was under way: " + entry.label);
    }
  }
}

void waited(const char* call) {
  refuse_while_recording(call);
  count("sync", fence_label.empty() ? call : call + (": " + fence_label));
}

std::string place(const void* at) {
  const auto found = find(at).second;
  if (!found) return in_arena(at) ? "device" : "pageable";
  return found->type == cudaMemoryTypeDevice ? "device" : found->type == cudaMemoryTypeHost ? "pinned" : "managed";
}

namespace {

// Kernels count no rows of experts: NULL_DEVICE_ROWS=N,N,... says how many each one has, in 8 bytes.
void say_rows(char* to, std::size_t bytes) {
  const char* text = std::getenv("NULL_DEVICE_ROWS");
  std::vector<long long> rows;
  for (char* end = nullptr; text != nullptr && *text != 0; text = *end == ',' ? end + 1 : end)
    rows.push_back(std::strtoll(text, &end, 10));
  if (bytes == rows.size() * sizeof(long long)) std::memcpy(to, rows.data(), bytes);
}

}  // namespace

cudaError_t copy(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t bytes,
                 std::size_t rows, cudaStream_t stream, bool async, const char* call) {
  Lock lock(dev().mutex);
  if (bytes == 0 || rows == 0) return cudaSuccess;
  const std::string a = place(from), b = place(to);
  const std::size_t to_span = to_stride * (rows - 1) + bytes, from_span = from_stride * (rows - 1) + bytes;
  const std::string way = a + " to " + b;
  const std::string label = copy_label.empty() ? label_of(from) + " -> " + label_of(to) : copy_label;
  count("copy", way + (async ? " (async)" : " (sync)"), bytes * rows);
  if (a != "device" || b != "device") refuse_while_recording(call + (" from " + way));
  count("copy by name", way + ": " + label, bytes * rows);
  if (async && (a == "pageable" || b == "pageable"))
    count("sync", "pageable memory in " + std::string(call) + ": " + label);
  if (!async && (a != "device" || b != "device")) waited(call);
  char *target = reach(to, to_span, call), *source = reach(from, from_span, call);
  if (!async) drain_all();
  const bool out = async && rows == 1 && a == "device" && b == "pinned",
             in = async && rows == 1 && a == "pinned" && b == "device";
  const Allocation* const mapped = find(from).second;
  if (out && mapped && mapped->label == "mapped")
    require_order_since(mapped->kernels, stream, call);
  else if (out)
    require_order(stream, call);
  if (out || in) {
    Pending entry{out ? target : source, out, std::vector<char>(source, source + bytes), label};
    if (out && label_of(from) == "sestina::activations") say_rows(entry.data.data(), bytes);
    if (in) std::memcpy(target, source, bytes);
    if (out) std::memset(target, 0xff, bytes);  // not there yet
    stream_of(stream).queue.push_back(std::move(entry));
    return cudaSuccess;
  }
  for (std::size_t row = 0; row < rows; ++row)
    std::memmove(target + row * to_stride, source + row * from_stride, bytes);
  return cudaSuccess;
}

cudaError_t set(void* at, int value, std::size_t bytes, const char* call) {
  Lock lock(dev().mutex);
  count("memset", call, bytes);
  if (bytes) std::memset(reach(at, bytes, call), value, bytes);
  return cudaSuccess;
}

void* symbol(const void* host) {
  if (const auto known = dev().symbols.find(host); known != dev().symbols.end()) return known->second;
  void* at = nullptr;
  allocate(&at, dev().symbol_bytes[host], "symbol");
  if (at) dev().memory[static_cast<char*>(at)].label = "symbol";
  return dev().symbols[host] = static_cast<char*>(at);
}

}  // namespace null_device
