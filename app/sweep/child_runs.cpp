#include "app/sweep/child_runs.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "app/start/run_dir.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {
namespace {

constexpr int handed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

// Keeps signals waiting for sigtimedwait while it lives.
class WaitingSignals {
 public:
  WaitingSignals() {
    sigemptyset(&set_);
    for (const int signal : handed_on) sigaddset(&set_, signal);
    sigaddset(&set_, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~WaitingSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WaitingSignals(const WaitingSignals&) = delete;
  WaitingSignals& operator=(const WaitingSignals&) = delete;
  // Returns the signal that came within a fifth of a second, or 0.
  int next() const {
    timespec wait{};
    wait.tv_nsec = 200'000'000;
    return std::max(0, sigtimedwait(&set_, nullptr, &wait));
  }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t set_{}, before_{};
};

// What a child does between fork and exec: system calls alone. It has a process group of its own, so that Ctrl-C at a
// terminal reaches it once, by its parent.
[[noreturn]] void become(char* const* command, int console, pid_t parent, const sigset_t& signals) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(static_cast<int>(ExitCode::stopped_unsaved));
  if (const int nothing = open("/dev/null", O_RDONLY); nothing > STDIN_FILENO) dup2(nothing, STDIN_FILENO);
  dup2(console, STDOUT_FILENO);
  dup2(console, STDERR_FILENO);
  sigset_t mask = signals;  // what is handed on must reach it, whatever this process blocks or ignores
  for (const int signal : handed_on) {
    sigdelset(&mask, signal);
    std::signal(signal, SIG_DFL);
  }
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  execvp(command[0], command);
  constexpr char text[] = "sestina: error: the program of a run cannot be started\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, sizeof text - 1);
  _exit(static_cast<int>(ExitCode::unavailable));
}

pid_t start_child(const ChildRun& run, const sigset_t& signals) {
  std::error_code error;
  std::filesystem::create_directories(run.dir, error);
  const std::string path = run.dir + "/console.txt";
  const int console = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (console < 0) fail(ExitCode::cannot_create, "{}: cannot be written: {}", path, std::strerror(errno));
  std::vector<std::string> words = run.command;
  std::vector<char*> command;
  for (std::string& word : words) command.push_back(word.data());
  command.push_back(nullptr);
  const pid_t parent = getpid(), child = fork();
  if (child == 0) become(command.data(), console, parent, signals);
  close(console);
  if (child < 0) fail(ExitCode::unavailable, "{}: no process can be started: {}", run.dir, std::strerror(errno));
  return child;
}

// The runs under way and those to come.
class Children {
 public:
  Children(const std::vector<ChildRun>& runs, const sigset_t& signals) : runs_(runs), signals_(signals) {
    for (std::size_t i = runs.size(); i-- > 0;) waiting_.push_back(i);
  }
  ~Children() { tell(SIGTERM); }  // where an error ends all
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  bool any() const { return !pids_.empty(); }
  bool waiting() const { return !waiting_.empty(); }
  void start_none() { waiting_.clear(); }
  void start(std::size_t at_once) {
    for (std::size_t w = waiting_.size(); w-- > 0 && pids_.size() < at_once;) {
      const std::size_t run = waiting_[w];
      if (run_dir_in_use(runs_[run].dir)) continue;
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(w));
      pids_.emplace_back(run, start_child(runs_[run], signals_));
    }
  }
  // Returns a run that has ended and its code.
  std::optional<std::pair<std::size_t, int>> take_ended() {
    for (std::size_t i = 0; i < pids_.size(); ++i) {
      int status = 0;
      const auto [run, pid] = pids_[i];
      if (waitpid(pid, &status, WNOHANG) != pid) continue;
      pids_.erase(pids_.begin() + static_cast<std::ptrdiff_t>(i));
      constexpr int signalled = 128;
      return std::pair(run, WIFEXITED(status) ? WEXITSTATUS(status) : signalled + WTERMSIG(status));
    }
    return std::nullopt;
  }
  void tell(int signal) const {
    for (const auto& [run, pid] : pids_) kill(pid, signal == SIGTERM && runs_[run].launched ? SIGUSR1 : signal);
  }

 private:
  const std::vector<ChildRun>& runs_;
  sigset_t signals_;
  std::vector<std::size_t> waiting_;  // the next one last
  std::vector<std::pair<std::size_t, pid_t>> pids_;
};

}  // namespace

ChildEnds run_children(const std::vector<ChildRun>& runs, int at_once,
                       const std::function<bool(std::size_t, int)>& ended) {
  ChildEnds ends;
  ends.codes.assign(runs.size(), ChildEnds::not_started);
  bind_this_thread(process_cores());  // children inherit the mask, which OpenMP may have narrowed to one core
  const WaitingSignals signals;
  Children children(runs, signals.before());
  while (children.any() || children.waiting()) {
    children.start(static_cast<std::size_t>(std::max(at_once, 1)));
    while (const auto end = children.take_ended()) {
      ends.codes[end->first] = end->second;
      if (!ended(end->first, end->second)) children.start_none();
      if (!ends.stopped) children.start(static_cast<std::size_t>(std::max(at_once, 1)));
    }
    if (!children.any() && !children.waiting()) break;
    const int signal = signals.next();
    if (signal == 0 || signal == SIGCHLD) continue;
    ends.interrupted = ends.interrupted || (ends.stopped && signal == SIGINT);
    ends.stopped = true;
    children.start_none();
    children.tell(ends.interrupted ? SIGKILL : SIGTERM);
  }
  return ends;
}

std::string console_error(const std::string& dir) {
  std::ifstream file(dir + "/console.txt", std::ios::binary);
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (const auto at = line.find("sestina: error: "); at != line.npos) last = line.substr(at + 16);
  return last;
}

}  // namespace sestina
