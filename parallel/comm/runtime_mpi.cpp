// Ranks over MPI. Only non-blocking calls of the library are used, and every wait polls them: so a wait can end with a
// message when another rank is lost, and a rank that waits gives its core to those that work.
#include <mpi.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstring>
#include <utility>

#include "kernels/base/exit_handler.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/poll.hpp"
#include "parallel/comm/roll_call_mpi.hpp"
#include "parallel/comm/runtime.hpp"
#include "parallel/library/counted_bytes_mpi.hpp"
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace sestina {
namespace {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ExitCode::unavailable, "MPI: {}: {}", what, text);
}

// Names the ranks that are lost, where that is known; else those that a wait knows.
std::string lost_or(const std::string& waited_for) {
  const std::string silent = roll_call().silent();
  return silent.empty() ? waited_for : silent;
}

void wait_for(MPI_Request& request, const char* name) {
  const auto done = [&] {
    int flag = 0;
    check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), name);
    return flag != 0;
  };
  poll_until(name, done, [] { return lost_or("the other ranks"); });
}

MPI_Op operation(Reduction reduction) {
  return reduction == Reduction::sum ? MPI_SUM : reduction == Reduction::max ? MPI_MAX : MPI_MIN;
}

// Makes a type for the blocks of a message, relative to its first block: libraries that read device memory tell it by
// the address they are given. Counts of MPI are ints, so long stretches are cut into pages.
class BlockType {
 public:
  explicit BlockType(const std::vector<Block>& blocks) {
    std::vector<int> lengths;
    std::vector<MPI_Aint> places;
    std::vector<MPI_Datatype> types;
    for (const Block& block : blocks) {
      if (block.bytes() == 0) continue;
      if (first_ == nullptr) first_ = block.data;
      MPI_Aint place = 0, origin = 0;
      MPI_Get_address(block.data, &place);
      MPI_Get_address(first_, &origin);
      lengths.push_back(1);
      places.push_back(MPI_Aint_diff(place, origin));
      types.push_back(rows_type(block));
    }
    MPI_Type_create_struct(mpi_count(types.size(), "blocks of a message"), lengths.data(), places.data(), types.data(),
                           &type_);
    MPI_Type_commit(&type_);
    for (MPI_Datatype& part : types) MPI_Type_free(&part);
  }
  ~BlockType() { MPI_Type_free(&type_); }
  BlockType(const BlockType&) = delete;
  BlockType& operator=(const BlockType&) = delete;
  void* first() const { return first_; }
  MPI_Datatype get() const { return type_; }

 private:
  static MPI_Datatype rows_type(const Block& block) {
    if (block.rows == 1 || block.stride == block.row_bytes) return bytes_type(block.bytes());
    MPI_Datatype row = bytes_type(block.row_bytes), type;
    MPI_Type_create_hvector(mpi_count(block.rows, "rows of a block"), 1, static_cast<MPI_Aint>(block.stride), row,
                            &type);
    MPI_Type_free(&row);
    return type;
  }

  void* first_ = nullptr;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

class MpiExchange final : public Exchange {
 public:
  MpiExchange(const char* name, MPI_Comm comm, int tag, std::vector<Message> sends, std::vector<Message> receives)
      : name_(name) {
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    for (Message& message : receives) add(std::move(message), comm, rank, tag, false);
    for (Message& message : sends) add(std::move(message), comm, rank, tag, true);
    SESTINA_REQUIRE(own_send_.empty() == own_receive_.empty(), "{}: half a message to oneself", name);
  }
  ~MpiExchange() override {
    for (MPI_Request& request : requests_)
      if (!active_) MPI_Request_free(&request);  // a request under way is left to the end of the process
  }
  void start() override {
    SESTINA_REQUIRE(!active_, "{}: started twice", name_);
    active_ = true;
    if (!requests_.empty()) check(MPI_Startall(count(), requests_.data()), name_);
    if (!own_send_.empty()) copy_blocks(own_send_, own_receive_);
  }
  bool test() override {
    if (!active_) return true;
    int flag = 1;
    if (!requests_.empty()) check(MPI_Testall(count(), requests_.data(), &flag, MPI_STATUSES_IGNORE), name_);
    if (flag != 0) active_ = false;
    return flag != 0;
  }
  void finish() override {
    poll_until(
        name_, [this] { return test(); }, [this] { return lost_or(missing()); });
  }

 private:
  int count() const { return mpi_count(requests_.size(), "messages of an exchange"); }
  void add(Message message, MPI_Comm comm, int rank, int tag, bool out) {
    if (message.bytes() == 0) return;
    if (message.peer == rank) {
      (out ? own_send_ : own_receive_) = std::move(message.blocks);
      return;
    }
    MPI_Request request;
    const BlockType type(message.blocks);
    if (out)
      check(MPI_Send_init(type.first(), 1, type.get(), message.peer, tag, comm, &request), name_);
    else
      check(MPI_Recv_init(type.first(), 1, type.get(), message.peer, tag, comm, &request), name_);
    requests_.push_back(request);
    peers_.push_back(message.peer);
  }
  // Returns the ranks whose part is not complete.
  std::string missing() {
    std::vector<int> late;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      int flag = 1;
      MPI_Request_get_status(requests_[i], &flag, MPI_STATUS_IGNORE);
      if (flag == 0 && std::find(late.begin(), late.end(), peers_[i]) == late.end()) late.push_back(peers_[i]);
    }
    return fmt::format("rank {} of the group", fmt::join(late, ", "));
  }

  const char* name_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;  // by request
  std::vector<Block> own_send_, own_receive_;
  bool active_ = false;
};

class MpiAllGather final : public Exchange {
 public:
  MpiAllGather(const char* name, MPI_Comm comm, const void* mine, std::size_t bytes, void* all)
      : name_(name), comm_(comm), mine_(mine), bytes_(bytes), all_(all) {}
  void start() override {
    check(MPI_Iallgather(mine_, bytes_.count(), bytes_.type(), all_, bytes_.count(), bytes_.type(), comm_, &request_),
          name_);
  }
  bool test() override {
    int flag = 0;
    check(MPI_Test(&request_, &flag, MPI_STATUS_IGNORE), name_);
    return flag != 0;
  }
  void finish() override { wait_for(request_, name_); }

 private:
  const char* name_;
  MPI_Comm comm_;
  const void* mine_;
  CountedBytes bytes_;
  void* all_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

// Owns its communicator.
class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_rank(comm, &rank_);
    MPI_Comm_size(comm, &size_);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    started_.reserve(2 * static_cast<std::size_t>(size_));
    peers_.reserve(started_.capacity());
  }
  ~MpiCommunicator() override { MPI_Comm_free(&comm_); }
  int size() const override { return size_; }
  int rank() const override { return rank_; }

  void barrier() override {
    MPI_Request request;
    check(MPI_Ibarrier(comm_, &request), "barrier");
    wait_for(request, "barrier");
  }
  void all_reduce(double* data, std::size_t n, Reduction reduction) override {
    constexpr std::size_t most = INT_MAX;
    for (std::size_t done = 0; done < n || n == 0; done += most) {  // a sum of none is a meeting all the same
      MPI_Request request;
      const int count = static_cast<int>(std::min(most, n - done));
      check(MPI_Iallreduce(MPI_IN_PLACE, data + done, count, MPI_DOUBLE, operation(reduction), comm_, &request),
            "all_reduce");
      wait_for(request, "all_reduce");
      if (n == 0) break;
    }
  }
  void broadcast(void* data, std::size_t bytes, int root) override {
    MPI_Request request;
    const CountedBytes counted(bytes);
    check(MPI_Ibcast(data, counted.count(), counted.type(), root, comm_, &request), "broadcast");
    wait_for(request, "broadcast");
  }
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    MPI_Request request;
    const CountedBytes counted(bytes);
    check(MPI_Iallgather(mine, counted.count(), counted.type(), all, counted.count(), counted.type(), comm_, &request),
          "all_gather");
    wait_for(request, "all_gather");
  }
  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    const int tag = 1 + exchanges_++ % 32000;
    return std::make_unique<MpiExchange>(name, comm_, tag, std::move(sends), std::move(receives));
  }
  std::unique_ptr<Exchange> make_all_gather(const char* name, const void* mine, std::size_t bytes, void* all) override {
    return std::make_unique<MpiAllGather>(name, comm_, mine, bytes, all);
  }
  void send(int peer, const void* data, std::size_t bytes) override {
    if (bytes == 0) return;
    started_.push_back(MPI_REQUEST_NULL);
    peers_.push_back(peer);
    const CountedBytes counted(bytes);
    check(MPI_Isend(data, counted.count(), counted.type(), peer, 0, comm_, &started_.back()), "send");
  }
  void receive(int peer, void* data, std::size_t bytes) override {
    if (bytes == 0) return;
    started_.push_back(MPI_REQUEST_NULL);
    peers_.push_back(peer);
    const CountedBytes counted(bytes);
    check(MPI_Irecv(data, counted.count(), counted.type(), peer, 0, comm_, &started_.back()), "receive");
  }
  void wait(const char* name) override {
    const auto done = [&] {
      int flag = 0;
      check(MPI_Testall(mpi_count(started_.size(), "single messages"), started_.data(), &flag, MPI_STATUSES_IGNORE),
            name);
      return flag != 0;
    };
    poll_until(name, done, [this] { return lost_or(fmt::format("rank {} of the group", fmt::join(peers_, ", "))); });
    started_.clear();
    peers_.clear();
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    MPI_Comm part;
    check(MPI_Comm_split(comm_, color, key, &part), "split");
    return std::make_unique<MpiCommunicator>(part);
  }
  std::unique_ptr<Communicator> split_by_node() override {
    MPI_Comm part;
    check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &part), "split_by_node");
    return std::make_unique<MpiCommunicator>(part);
  }

 private:
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1, exchanges_ = 0;
  std::vector<MPI_Request> started_;
  std::vector<int> peers_;  // by request
};

volatile std::sig_atomic_t leave_code = 0;  // the exit code of a process that hangs in MPI_Finalize, for its handler

// One process starts MPI once at most, and has one run at a time.
struct Session {
  MPI_Comm given = MPI_COMM_NULL;  // given by whoever started the run
  bool ours = false;               // MPI was started for it
};
Session& session() {
  static Session only;
  return only;
}

// Takes the MPI that the host program started, or starts it; then takes the communicator that the program gives.
void start_mpi() {
  int provided = 0, ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0) fail(ExitCode::unavailable, "MPI has ended in this process and cannot start again");
  session().ours = !ranks::running();
  // Only the main thread calls MPI; others run at the same time.
  if (session().ours)
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init");
  else
    check(MPI_Query_thread(&provided), "MPI_Query_thread");
  if (provided < MPI_THREAD_FUNNELED && !session().ours)
    fail(ExitCode::unavailable,
         "MPI was started for one thread; Sestina has several: start it with MPI_THREAD_FUNNELED");
}

// Ends all ranks, where the host program has set no handler that does something else.
void abort_ranks(int code) {
  // A launcher that is ending already may never answer: this rank then ends by itself.
  constexpr unsigned seconds = 10;
  std::signal(SIGALRM, SIG_DFL);
  alarm(seconds);
  MPI_Abort(session().given, code);
}

}  // namespace

namespace ranks {

bool available() { return true; }

std::string library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text);
  return version.substr(0, version.find_first_of(",\n"));
}

bool reads_device_memory() {
#ifdef MPIX_CUDA_AWARE_SUPPORT
  int started = 0;
  MPI_Initialized(&started);
  return started != 0 ? MPIX_Query_cuda_support() == 1 : MPIX_CUDA_AWARE_SUPPORT == 1;
#else
  return false;
#endif
}

bool running() {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

std::unique_ptr<Communicator> start(const RankSource& source, double timeout, const std::function<int()>& give_up) {
  const StartGuard guard(timeout, give_up);
  start_mpi();
  session().given = MPI_Comm_f2c(static_cast<MPI_Fint>(source.communicator()));
  if (session().ours) MPI_Comm_set_errhandler(session().given, MPI_ERRORS_RETURN);
  prctl(PR_SET_TIMERSLACK, 1);  // pauses between polls end on time, not 50 us later
  roll_call().start(session().given);
  wait_limit().overdue = [] { roll_call().answer(); };
  MPI_Comm own;  // messages of ours never meet those of the host program
  check(MPI_Comm_dup(session().given, &own), "MPI_Comm_dup");
  return std::make_unique<MpiCommunicator>(own);
}

void stop(int code) {
  if (!session().ours) return roll_call().end();
  leave_code = code;
  struct sigaction action = {};
  action.sa_handler = [](int) { leave_process(leave_code); };
  sigaction(SIGALRM, &action, nullptr);
  alarm(static_cast<unsigned>(std::clamp(wait_limit().seconds, 1.0, 1e9)));
  roll_call().end();
  MPI_Finalize();
  alarm(0);
}

void abort(int code) { leave_process(code, abort_ranks); }

}  // namespace ranks
}  // namespace sestina
