#include "regression/unit/allocation_counter.hpp"

#include <dlfcn.h>
#include <execinfo.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

constexpr int depth = 24, kept = 8;

struct Counts {
  bool armed = false;
  std::int64_t heap = 0, kokkos = 0;
  const void *caller = nullptr, *handle = nullptr;  // the last one; the one that is left out
  std::array<std::array<void*, depth>, kept> stacks;
  std::array<int, kept> frames;
};
thread_local Counts counts;

// Libraries that work for whoever calls them: the caller behind them is the one that counts.
bool transparent(const char* library) {
  for (const char* name : {"libstdc++", "libfmt", "libspdlog", "libc.so", "libasan", "libubsan"})
    if (std::strstr(library, name)) return true;
  return false;
}

// True when the innermost caller outside those libraries is this program itself. `caller` is the address that operator
// new returns to: what lies before it on the stack differs between compilers and sanitizers.
bool ours(void* const* stack, int frames, const void* caller) {
  Dl_info self, info;
  if (!dladdr(reinterpret_cast<void*>(&transparent), &self)) return true;
  int i = 0;
  while (i < frames && stack[i] != caller) ++i;
  for (; i < frames; ++i) {
    if (!dladdr(stack[i], &info) || !info.dli_fname) return true;
    if (!transparent(info.dli_fname)) return info.dli_fbase == self.dli_fbase;
  }
  return true;
}

__attribute__((noinline)) void note(const void* caller) {
  if (!counts.armed || caller == counts.handle) return;
  counts.caller = caller;
  counts.armed = false;  // what follows may allocate
  std::array<void*, depth> stack;
  const int frames = backtrace(stack.data(), depth);
  if (ours(stack.data(), frames, caller)) {
    if (counts.heap < kept) {
      counts.stacks[counts.heap] = stack;
      counts.frames[counts.heap] = frames;
    }
    ++counts.heap;
  }
  counts.armed = true;
}

void* allocate(const void* caller, std::size_t bytes) {
  note(caller);
  void* memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (!memory) throw std::bad_alloc();
  return memory;
}

void* allocate(const void* caller, std::size_t bytes, std::align_val_t alignment) {
  note(caller);
  const auto unit = static_cast<std::size_t>(alignment);
  void* memory = std::aligned_alloc(unit, (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit);
  if (!memory) throw std::bad_alloc();
  return memory;
}

template <class... Args>
__attribute__((always_inline)) inline void* allocate_or_null(Args... args) noexcept {
  try {
    return allocate(args...);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void count_kokkos(Kokkos::Tools::SpaceHandle, const char*, const void*, std::uint64_t) {
  if (counts.armed) ++counts.kokkos;
}

// A Kokkos with the deprecated code of its fourth version has a static concurrency() of the default instance, of which
// a policy makes a handle whenever it chooses its chunks: 16 bytes of the heap for each kernel, which nothing of ours
// can prevent. This is where Kokkos calls operator new for such a handle; null in other versions, which make none.
template <class Exec>
const void* place_of_handles() {
  if constexpr (requires { Exec::concurrency(); }) {
    counts.armed = true;
    const Exec handle;
    counts.armed = false;
    return counts.caller;
  }
  return nullptr;
}

}  // namespace

void* operator new(std::size_t n) { return allocate(__builtin_return_address(0), n); }
void* operator new[](std::size_t n) { return allocate(__builtin_return_address(0), n); }
void* operator new(std::size_t n, std::align_val_t a) { return allocate(__builtin_return_address(0), n, a); }
void* operator new[](std::size_t n, std::align_val_t a) { return allocate(__builtin_return_address(0), n, a); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return allocate_or_null(__builtin_return_address(0), n);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return allocate_or_null(__builtin_return_address(0), n);
}
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate_or_null(__builtin_return_address(0), n, a);
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate_or_null(__builtin_return_address(0), n, a);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }

namespace sestina {

AllocationCounter::AllocationCounter() {
  std::array<void*, 1> first;
  backtrace(first.data(), 1);  // loads the unwinder, which allocates
  counts.handle = nullptr;
  counts.handle = place_of_handles<Kokkos::DefaultHostExecutionSpace>();
  Kokkos::Tools::Experimental::set_allocate_data_callback(count_kokkos);
  counts.heap = counts.kokkos = 0;
  counts.armed = true;
}

AllocationCounter::~AllocationCounter() {
  counts.armed = false;
  Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr);
}

std::int64_t AllocationCounter::heap() const { return counts.heap; }
std::int64_t AllocationCounter::kokkos() const { return counts.kokkos; }

std::string AllocationCounter::places() const {
  const bool armed = counts.armed;
  counts.armed = false;
  std::string text;
  for (int i = 0; i < std::min<std::int64_t>(counts.heap, kept); ++i) {
    char** names = backtrace_symbols(counts.stacks[i].data(), counts.frames[i]);
    for (int f = 2; names && f < counts.frames[i]; ++f)
      text += std::string(names[f]) + (f + 1 < counts.frames[i] ? " < " : "\n");
    std::free(names);
  }
  counts.armed = armed;
  return text;
}

}  // namespace sestina
