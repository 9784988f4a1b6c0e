// What is told: the report at the end, and where the program stood when something went wrong.
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/auxv.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.hpp"

namespace null_device {

void backtrace_to_stderr() {
  void* frames[64];
  const int n = backtrace(frames, 64);
  Dl_info program = {}, at = {};
  dladdr(reinterpret_cast<void*>(getauxval(AT_ENTRY)), &program);
  std::string command = "addr2line -Cfsp -e /proc/" + std::to_string(getpid()) + "/exe";
  for (int i = 0; i < n; ++i)
    if (dladdr(frames[i], &at) && at.dli_fbase == program.dli_fbase) {
      char text[32];
      std::snprintf(text, sizeof text, " %#tx", static_cast<char*>(frames[i]) - static_cast<char*>(at.dli_fbase) - 1);
      command += text;
    }
  if (std::system((command + " | cut -c1-250 | sed 's/^/    /' >&2").c_str()) != 0) backtrace_symbols_fd(frames, n, 2);
}

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string plain = status == 0 ? text : name;
  std::free(text);
  return plain;
}

std::string path_of_rank(const char* variable) {
  std::string path = std::getenv(variable) ? std::getenv(variable) : "";
  for (const char* rank : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (!path.empty() && std::getenv(rank)) return path + "." + std::getenv(rank);
  return path;
}

void report() {
  Lock lock(dev().mutex);
  write_records();
  const std::string path = path_of_rank("NULL_DEVICE_REPORT");
  std::FILE* out = path.empty() ? stderr : std::fopen(path.c_str(), "w");
  if (!out) return;
  for (const auto& [at, a] : dev().memory)
    if (a.label != "symbol" && a.label != "registered") {
      Count& c = dev().counts["leak"][place(at) + ": " + label_of(at)];
      ++c.calls;
      c.bytes += a.bytes;
    }
  add_leaks_of_mapped_memory();
  add_peak_of_managed_memory();
  std::fprintf(out, "# kind\tname\tcalls\tbytes\n");
  for (const auto& [kind, names] : dev().counts) {
    Count sum;
    std::vector<std::pair<std::string, Count>> sorted(names.begin(), names.end());
    std::stable_sort(sorted.begin(), sorted.end(), [](auto& x, auto& y) { return x.second.calls > y.second.calls; });
    for (const auto& [name, c] : sorted) sum.calls += c.calls, sum.bytes += c.bytes;
    std::fprintf(out, "total\t%s\t%llu\t%llu\n", kind.c_str(), sum.calls, sum.bytes);
    if (kind == "kernel" && sorted.size() > 40) sorted.resize(40);
    for (const auto& [name, c] : sorted)
      std::fprintf(out, "%s\t%s\t%llu\t%llu\n", kind.c_str(), kind == "kernel" ? demangled(name).c_str() : name.c_str(),
                   c.calls, c.bytes);
  }
  std::fprintf(out, "peak\tdevice bytes\t1\t%zu\npeak\tpinned and managed bytes\t1\t%zu\n", dev().peak,
               dev().pinned_peak);
  dev().counts.erase("leak");
  dev().counts.erase("peak");
  if (out != stderr) std::fclose(out);
}

namespace {

void on_signal(int signal, siginfo_t* info, void* context) {
  // A call of address 0 leaves nothing to unwind: step back into the caller.
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (signal == SIGSEGV && registers[REG_RIP] == 0) {
    std::fprintf(stderr, "null_device: call of a null function pointer\n");
    registers[REG_RIP] = *reinterpret_cast<greg_t*>(registers[REG_RSP]);
    registers[REG_RSP] += sizeof(greg_t);
    backtrace_to_stderr();
    ++dev().counts["problem"]["call of a null function pointer"].calls;
    report();
    _exit(139);
  }
  if (signal == SIGSEGV && in_arena(info->si_addr)) {
    const auto [begin, allocation] = find(info->si_addr);
    char text[400];
    std::snprintf(text, sizeof text, "host code touches device memory: byte %td of \"%s\"",
                  begin ? static_cast<char*>(info->si_addr) - begin : 0, label_of(info->si_addr).c_str());
    ++dev().counts["problem"][text].calls;
    std::fprintf(stderr, "null_device: %s\n", text);
  } else {
    ++dev().counts["problem"][signal == SIGSEGV ? "segmentation fault" : "abort"].calls;
  }
  backtrace_to_stderr();
  report();
  sigaction(signal, signal == SIGSEGV ? &dev().old_segv : &dev().old_abort, nullptr);
  if (signal == SIGABRT) raise(SIGABRT);  // else: again at the same instruction
}

}  // namespace

void start() {
  static const bool once = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &dev().old_segv);
    sigaction(SIGABRT, &action, &dev().old_abort);
    return true;
  }();
  (void)once;
}

}  // namespace null_device

__attribute__((destructor)) static void at_exit() { null_device::report(); }
