// A program of several models: it starts MPI itself, gives half of its ranks to Sestina and works on the others.
//   mpiexec -n 4 hosted halves DECK RUN_DIR   MPI is the program's
//   mpiexec -n 3 hosted late                  Sestina starts MPI, then the program cuts its ranks in two
#include <mpi.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "app/program.hpp"
#include "kernels/base/exit_handler.hpp"
#include "parallel/comm/ranks_of_mpi.hpp"

namespace {

using namespace sestina;

std::atomic<int> left = 0;  // the code that Sestina would have ended this process with
constexpr double timeout = 60;
constexpr int trained = 7;  // a tag

bool holds(bool condition, const char* what) {
  if (!condition) std::fprintf(stderr, "hosted: %s: does not hold\n", what);
  return condition;
}

int rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

bool mpi_lives() {
  int ended = 1;
  MPI_Finalized(&ended);
  return ended == 0;
}

// Ranks 0 and 2: a whole run. Their communicator's errors stay with whoever the program gave them to.
bool train(MPI_Comm half, std::string deck, std::string run_dir) {
  std::vector<std::string> words = {"sestina",          "train",        "-i", std::move(deck), "-d",
                                    std::move(run_dir), "parallel.dp=2"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int code = run_program(static_cast<int>(words.size()), arguments.data(), ranks_of(half));
  MPI_Errhandler handler;
  MPI_Comm_get_errhandler(half, &handler);
  const bool untouched = handler == MPI_ERRORS_ARE_FATAL;
  MPI_Errhandler_free(&handler);
  if (rank_in(half) == 0)
    for (const int other : {1, 3}) MPI_Send(&code, 1, MPI_INT, other, trained, MPI_COMM_WORLD);
  return holds(code == 0, "the run is done") & holds(untouched, "the communicator's errors are handled as before") &
         holds(mpi_lives(), "MPI goes on after the run");
}

// Ranks 1 and 3, until the others have trained: sums of their own, and messages in MPI_COMM_WORLD.
bool work(MPI_Comm half) {
  const int me = rank_in(MPI_COMM_WORLD), other = 4 - me;
  int over = 0;
  bool right = true;
  while (over == 0) {
    int here = 0, sum = 0, got = 0;
    MPI_Iprobe(0, trained, MPI_COMM_WORLD, &here, MPI_STATUS_IGNORE);
    MPI_Allreduce(&here, &over, 1, MPI_INT, MPI_MIN, half);
    MPI_Allreduce(&me, &sum, 1, MPI_INT, MPI_SUM, half);
    MPI_Sendrecv(&me, 1, MPI_INT, other, 0, &got, 1, MPI_INT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    right = right && sum == 4 && got == other;
  }
  int code = 1;
  MPI_Recv(&code, 1, MPI_INT, 0, trained, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return holds(right, "what others compute meanwhile is right") & holds(code == 0, "the others have trained");
}

// A run on these ranks alone, which ends in a way that would end all ranks of the program.
bool sum_and_abort(const RankSource& ranks, int size, double sum_of_ranks) {
  Runtime runtime(ranks, timeout);
  double sum = rank_in(MPI_COMM_WORLD);
  runtime.world().all_reduce(&sum, 1, Reduction::sum);
  left = 0;
  runtime.abort(ExitCode::diverged);
  const int expected = size > 1 ? static_cast<int>(ExitCode::diverged) : 0;
  const bool right = holds(runtime.size() == size, "the run has the ranks that it was given") &
                     holds(sum == sum_of_ranks, "sums are over them") &
                     holds(left == expected, "the handler decides whether ranks end");
  runtime.end(0);
  return right;
}

bool halves(const char* deck, const char* run_dir) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  const int me = rank_in(MPI_COMM_WORLD);
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, me % 2, me, &half);
  bool right = me % 2 == 0 ? train(half, deck, run_dir) : work(half);
  for (int time = 0; time < 2; ++time) right &= sum_and_abort(ranks_of(half), 2, me % 2 == 0 ? 2 : 4);
  right &= holds(mpi_lives(), "MPI goes on after runs");
  int mine = right ? 1 : 0, all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Comm_free(&half);
  MPI_Finalize();
  return all == 1;
}

bool late() {
  static MPI_Comm part = MPI_COMM_NULL;
  const auto cut = [] {
    const int me = rank_in(MPI_COMM_WORLD);
    MPI_Comm_split(MPI_COMM_WORLD, me == 1 ? 1 : 0, me, &part);
    return static_cast<long>(MPI_Comm_c2f(part));
  };
  const bool alone = std::string(std::getenv("OMPI_COMM_WORLD_RANK")) == "1";
  const bool right = sum_and_abort({cut, false}, alone ? 1 : 2, alone ? 1 : 2);
  bool refused = false;
  try {
    const Runtime again({cut, false}, timeout);
  } catch (const Error& error) {
    refused = error.code() == ExitCode::unavailable;
  }
  return holds(!mpi_lives(), "who started MPI ends it") & holds(refused, "MPI does not start twice") & right;
}

}  // namespace

int main(int argc, char** argv) {
  set_exit_handler([](int code) { left = code; });
  const bool right = argc == 4 ? halves(argv[2], argv[3]) : late();
  return right ? 0 : 1;
}
