#include "app/start/stop.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>

#include "kernels/base/exit_handler.hpp"

namespace sestina {
namespace {

// These are all that a handler may touch. One process has one set of handlers, so these are one per process too.
volatile std::sig_atomic_t came[NSIG] = {};  // by number of the signal
volatile std::sig_atomic_t save_signal = 0;
volatile std::sig_atomic_t interrupts = 0;

const std::vector<int> stop_signals = {SIGTERM, SIGUSR1, SIGUSR2, SIGALRM};  // signals that a deck may choose

void on_stop(int signal) { came[signal] = 1; }
void on_save(int) { save_signal = 1; }
void on_interrupt(int signal) {
  if (interrupts != 0) return leave_process(static_cast<int>(ExitCode::interrupted));
  interrupts = 1;
  came[signal] = 1;
  static constexpr char message[] = "\nsestina: stopping; press Ctrl-C again to exit at once\n";
  const int saved = errno;
  [[maybe_unused]] const auto written = write(STDERR_FILENO, message, sizeof message - 1);
  errno = saved;
}

int number_of(const std::string& name) {
  if (name == "USR1") return SIGUSR1;
  if (name == "USR2") return SIGUSR2;
  if (name == "ALRM") return SIGALRM;
  SESTINA_REQUIRE(name == "TERM", "signal {}", name);
  return SIGTERM;
}
std::string name_of(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? name : std::to_string(signal);
}

// Handlers run on a stack of their own: oneDNN's compiled products keep a pointer into their work space in the stack
// pointer, and the kernel would write a signal's frame over what lies below it. The stack is given to the calling
// thread, which is the only one that takes signals; it is never freed, since a handler may run until the process ends.
void give_own_stack() {
  constexpr long handler = 1 << 16;  // in addition to what the kernel saves of this processor's registers
  static const auto bytes = static_cast<std::size_t>(std::max(sysconf(_SC_MINSIGSTKSZ), 0L) + handler);
  static void* const memory = std::malloc(bytes);
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = bytes;
  if (memory != nullptr) sigaltstack(&stack, nullptr);
}

void install(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

// Returns the seconds of a clock that no one can set; it runs on while the machine sleeps, as a batch system's limit
// does.
double boot_seconds() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Returns the start of this process on that clock: field 22 of /proc/self/stat, counted after the name in parentheses.
double process_start() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');
  if (name_end == text.npos) return boot_seconds();
  constexpr int start_field = 22, first_field_behind_name = 3;
  std::size_t at = name_end + 2;
  for (int field = first_field_behind_name; field < start_field && at != 0; ++field) at = text.find(' ', at) + 1;
  unsigned long long ticks = 0;
  if (at == 0 || std::from_chars(text.data() + at, text.data() + text.size(), ticks).ec != std::errc())
    return boot_seconds();
  return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

constexpr double forever = std::numeric_limits<double>::infinity();

double deadline_of(double walltime) {
  if (walltime > 0) return process_start() + walltime;
  const char* text = std::getenv("SLURM_JOB_END_TIME");  // seconds since 1970
  long long end = 0;
  if (!text || std::from_chars(text, text + std::strlen(text), end).ec != std::errc() || end <= 0) return forever;
  return boot_seconds() + static_cast<double>(end) - static_cast<double>(std::time(nullptr));
}

// Returns true when the file was there; removes it, so that it counts once.
bool take(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return false;
  if (!std::filesystem::remove(path, error) && error)
    fail(ExitCode::io_error, "{}: cannot be removed after use: {}", path.string(), error.message());
  return true;
}

}  // namespace

void catch_signals() {
  give_own_stack();
  for (const int signal : stop_signals) install(signal, on_stop);
  install(SIGINT, on_interrupt);
  install(SIGHUP, on_save);
}

void release_signals() {
  const bool hung_up = save_signal != 0;
  save_signal = 0;
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGINT, SIGHUP}) {
    install(signal, SIG_DFL);
    if (came[signal] != 0 || (signal == SIGHUP && hung_up)) raise(signal);
  }
}

Stop::Stop(double walltime) : signals_(stop_signals), deadline_(deadline_of(walltime)) {
  signals_.push_back(SIGINT);
  catch_signals();
}

void Stop::set_up(const RunOptions& run, const std::string& run_dir, bool first) {
  stop_file_ = run_dir + "/STOP";
  checkpoint_file_ = run_dir + "/CHECKPOINT";
  looks_for_files_ = first;
  deadline_ = deadline_of(run.walltime);
  catch_signals();  // catches them again, because libraries have started meanwhile
  signals_ = {SIGINT};
  for (const auto& name : run.stop_signals) signals_.push_back(number_of(name));
  for (const int signal : stop_signals) {
    if (std::find(signals_.begin(), signals_.end(), signal) != signals_.end()) continue;
    install(signal, SIG_DFL);
    if (came[signal] != 0) raise(signal);
  }
}

Stop::~Stop() {
  for (const int signal : stop_signals) {
    install(signal, SIG_IGN);
    came[signal] = 0;
  }
  install(SIGHUP, SIG_IGN);
  install(SIGINT, SIG_DFL);
  came[SIGINT] = 0;
  save_signal = 0;
  interrupts = 0;
}

bool Stop::told_to_stop(double reserve) {
  if (!reason_.empty()) return true;  // a stop is never taken back
  if (boot_seconds() + reserve >= deadline_) reason_ = "wall time";
  for (const int signal : signals_)
    if (came[signal] != 0) reason_ = "signal " + name_of(signal);
  return !reason_.empty();
}

Stop::Vote Stop::poll(double reserve) {
  if (told_to_stop(reserve)) return Vote::stop;
  const double now = boot_seconds();
  const bool save_asked = save_signal != 0;
  save_signal = 0;
  bool save_file = false;
  constexpr double file_interval = 0.25;  // seconds between looks at the run directory, which may be far away
  if (looks_for_files_ && now >= next_look_) {
    next_look_ = now + file_interval;
    if (take(stop_file_)) reason_ = "STOP file";
    save_file = take(checkpoint_file_);
  }
  if (!reason_.empty()) return Vote::stop;
  return save_asked || save_file ? Vote::save : Vote::go_on;
}

std::string Stop::reason() const { return reason_; }

double Stop::seconds_left() const { return deadline_ - boot_seconds(); }

}  // namespace sestina
