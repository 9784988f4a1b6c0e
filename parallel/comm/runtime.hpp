// The processes of a run: one by itself, or the ranks that a launcher (mpirun, srun) started. One process without a
// launcher never starts MPI. No Kokkos.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "kernels/base/error.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// The number of tasks that a launcher says it started, and the variable that says so; 1 and "" without a launcher.
struct Launch {
  int tasks = 1;
  std::string variable;
};
Launch find_launch();

// The communicator on which a run works, given by whoever starts it: app/start/all_ranks.hpp, or the program's own
// (parallel/comm/ranks_of_mpi.hpp). It must outlive the run, which works on a duplicate of it. Without one the run is
// this process by itself.
struct RankSource {
  std::function<long()> communicator;  // MPI_Comm_c2f of it; asked once MPI has started, and no header needs mpi.h
  bool every_task = true;              // every task of the launch is in it; if not, the launcher is another MPI's
};

class Runtime {
 public:
  // Starts MPI where a launcher started more than one task; an MPI that the program has started itself is used as it
  // is, and neither started nor ended here. Error(unavailable) when the tasks do not find each other (another MPI's
  // launcher, or a program without MPI): each would take itself for the whole run. start_timeout: seconds that any wait
  // for other ranks may take until set_timeout(). While MPI starts, nothing can be polled: a process that waits in it
  // for longer ends there, and soon after give_up() returns an exit code other than 0.
  Runtime(const RankSource&, double start_timeout, const std::function<int()>& give_up = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Communicator& world() { return *world_; }
  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }
  bool is_first() const { return rank() == 0; }
  int node_ranks() const { return node_ranks_; }  // ranks that share this node's cores
  bool is_first_of_node() const { return node_rank_ == 0; }
  void set_start_timeout(double seconds);
  void begin_phase(const char* name);  // begins a phase of the start-up, which waits that fail name
  void set_timeout(double seconds);    // the start-up is over; waits name their own purpose from now on

  // Calls agree() of communicator.hpp with all ranks.
  void together(const std::function<void()>& f);
  // Begins a phase and runs f in it with together(): a rank may fail by itself. `name` must outlive the phase.
  void phase(const char* name, const std::function<void()>& f);

  // Meets all ranks for the last time, with the exit code on which all have agreed. Error(unavailable) names the rank
  // that did not come.
  void end(int code);

  // Ends all ranks at once with this code; on one rank, and where a handler is set that returns
  // (kernels/base/exit_handler.hpp), returns.
  void abort(ExitCode);

 private:
  void start_ranks(const RankSource&, double start_timeout, const std::function<int()>& give_up);
  void require_every_task(const Launch&);

  std::unique_ptr<Communicator> world_;
  bool started_ = false;  // MPI is started, by this run or before it
  int node_ranks_ = 1, node_rank_ = 0, end_code_ = static_cast<int>(ExitCode::internal);
};

// These functions are of the twin that knows MPI (runtime_mpi.cpp), or says that this build has none
// (runtime_alone.cpp).
namespace ranks {
bool available();            // this build has MPI
std::string library();       // "Open MPI v4.1.4", or "none"
bool reads_device_memory();  // that library takes pointers of CUDA
bool running();              // MPI has been started in this process, by whomever, and has not ended
// Calls MPI_Init if MPI is not running, and returns the group of the given communicator. give_up: see Runtime.
std::unique_ptr<Communicator> start(const RankSource&, double timeout, const std::function<int()>& give_up);
void stop(int code);   // MPI_Finalize, if start() has begun it; a process that hangs in it ends with this code
void abort(int code);  // MPI_Abort, or the handler of kernels/base/exit_handler.hpp
}  // namespace ranks

// The place of a rank in the grid dp x tp (x pp), and its groups. Ranks are numbered tensor-parallel first, so that a
// tensor-parallel group lies on one node where it fits: rank = (stage * dp + dp_rank) * tp + tp_rank.
struct ProcessGrid {
  int dp = 1, tp = 1, dp_rank = 0, tp_rank = 0;
  std::unique_ptr<Communicator> dp_group;  // same shards, other samples; ordered by dp_rank
  std::unique_ptr<Communicator> tp_group;  // same samples, other shards; ordered by tp_rank
};

// Requires each `group` of ranks that follow one another to have one instruction set: others give other bits.
// Error(bad_deck) on all ranks, "KEY: got SET on rank 0 and SET on rank r, which give other bits, allowed ALLOWED".
void require_one_instruction_set(Communicator&, int group, const std::string& key, const std::string& allowed);

// Makes the grid of one pipeline stage; world.size() must be dp * tp. node_size: see nodes.hpp; the data-parallel
// groups, which span nodes, work in two levels. device: the groups exchange device memory (device_communicator.hpp).
ProcessGrid make_grid(Communicator& world, int dp, int tp, int node_size, bool device);

}  // namespace sestina
