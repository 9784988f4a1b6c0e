// Device memory through NCCL. Each group has a communicator of NCCL and a stream of its own, on which its exchanges
// follow each other; that order is the same on all ranks, as the order of the calls is. Whatever NCCL enqueues is
// waited for by polling an event; at the run's limit, or on an error, the communicator is aborted, which frees the
// device. What other streams wait for without the host is watched in the same way before they are waited for
// (complete).
#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "parallel/comm/device_communicator.hpp"
#include "parallel/comm/group_nccl.hpp"

namespace sestina {
namespace {

// What a group enqueues in one operation, and how it is waited for.
class NcclOperation : public Exchange {
 public:
  void start() final {
    SESTINA_REQUIRE(!active_, "{}: started twice", name_);
    active_ = true;
    enqueue();
    arrived_.record(nccl_->stream());
  }
  bool test() final {
    if (active_ && nccl_->done(arrived_, name_)) end();
    return !active_;
  }
  void finish() final {
    if (!active_) return;
    nccl_->wait(arrived_, name_, transfers_);
    end();
  }
  void finish_in(Queue queue) final {
    if (ends_on_host() || queue == nullptr) return finish();
    if (std::exchange(active_, false)) nccl_->hold(static_cast<cudaStream_t>(queue), arrived_);
  }

 protected:
  NcclOperation(const char* name, std::shared_ptr<NcclGroup> group) : name_(name), nccl_(std::move(group)) {}
  virtual void enqueue() = 0;
  virtual bool ends_on_host() const { return false; }
  virtual void land() {}  // the host's part of the end

  const char* name_;
  std::shared_ptr<NcclGroup> nccl_;
  std::vector<Transfer> transfers_;  // whom it waits for; none: the whole group

 private:
  void end() {
    active_ = false;
    land();
  }
  CudaEvent arrived_;
  bool active_ = false;
};

class NcclExchange final : public NcclOperation {
 public:
  NcclExchange(const char* name, std::shared_ptr<NcclGroup> group, std::vector<Message> sends,
               std::vector<Message> receives)
      : NcclOperation(name, std::move(group)) {
    std::size_t bytes = 0;
    bool host = false;
    for (Message& message : receives) host |= add(std::move(message), false, bytes);
    for (Message& message : sends) host |= add(std::move(message), true, bytes);
    if (host) {
      apart_ = std::make_unique<Apart>();
      apart_->staging.reserve(bytes);
    } else {
      nccl_->reserve(bytes);
    }
  }

 private:
  void enqueue() override {
    if (apart_) {
      nccl_->hold_after_order(apart_->stream);
      for (const Piece& piece : packs_) pack(piece.blocks, apart_->staging.data() + piece.place, apart_->stream);
      apart_->stream.wait();
      nccl_->enqueue(name_, transfers_, apart_->staging.data());
    } else {
      char* const staging = nccl_->staging();
      for (const Piece& piece : packs_) pack(piece.blocks, staging + piece.place, nccl_->stream());
      nccl_->enqueue(name_, transfers_, staging);
      for (const Piece& piece : unpacks_) unpack(staging + piece.place, piece.blocks, nccl_->stream());
    }
  }
  bool ends_on_host() const override { return apart_ != nullptr; }

  struct Piece {
    std::vector<Block> blocks;
    std::size_t place = 0;  // in the staging memory
  };
  // A stream and staging memory apart, for exchanges with host memory: CUDA copies pageable memory only when all before
  // it on the stream is done, which would be a wait for other ranks without a limit.
  struct Apart {
    CudaStream stream;
    Staging staging{Staging::Place::device};
  };

  // Returns whether the message has blocks in host memory. `bytes`: the staging memory taken so far.
  bool add(Message message, bool out, std::size_t& bytes) {
    Piece piece{without_empty(std::move(message.blocks)), bytes};
    if (piece.blocks.empty()) return false;
    Transfer transfer{message.peer, out, nullptr, bytes, 0};
    for (const Block& block : piece.blocks) transfer.bytes += block.bytes();
    const bool device = all_in_device_memory(piece.blocks);
    if (device && piece.blocks.size() == 1 && is_flat(piece.blocks[0])) {
      transfer.data = piece.blocks[0].data;
    } else {
      std::vector<Piece>& pieces = out ? packs_ : unpacks_;
      const auto same = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& other) {
        return out && same_blocks(other.blocks, piece.blocks);  // the same to several peers: packed once
      });
      if (same != pieces.end()) {
        transfer.place = same->place;
      } else {
        pieces.push_back(std::move(piece));
        bytes += (transfer.bytes + alignment - 1) / alignment * alignment;
      }
    }
    transfers_.push_back(transfer);
    return !device;
  }
  void land() override {
    if (!apart_) return;
    for (const Piece& piece : unpacks_) unpack(apart_->staging.data() + piece.place, piece.blocks, apart_->stream);
    apart_->stream.wait();
  }

  static constexpr std::size_t alignment = 256;
  std::vector<Piece> packs_, unpacks_;
  std::unique_ptr<Apart> apart_;
};

// A sum or a gather of NCCL itself, in place; its calls are those of all ranks together.
class NcclCollective final : public NcclOperation {
 public:
  using Calls = std::function<void(ncclComm_t, cudaStream_t)>;
  NcclCollective(const char* name, std::shared_ptr<NcclGroup> group, Calls calls)
      : NcclOperation(name, std::move(group)), calls_(std::move(calls)) {}

 private:
  void enqueue() override { nccl_->enqueue_all(name_, calls_); }
  Calls calls_;
};

// Returns whether the ranks' parts are equally long and follow each other: what NCCL's collectives of one call take.
bool are_even(const std::vector<Block>& parts) {
  for (std::size_t r = 0; r < parts.size(); ++r)
    if (parts[r].bytes() != parts[0].bytes() || parts[r].bytes() == 0 ||
        parts[r].data != static_cast<char*>(parts[0].data) + r * parts[0].bytes())
      return false;
  return true;
}

bool are_flat_in_device_memory(const std::vector<Block>& blocks) {
  const std::vector<Block> full = without_empty(blocks);
  return std::all_of(full.begin(), full.end(), is_flat) && all_in_device_memory(full);
}

// Returns flat blocks with those joined that follow each other in memory.
std::vector<Block> joined(const std::vector<Block>& blocks) {
  std::vector<Block> list;
  for (const Block& block : without_empty(blocks)) {
    if (!list.empty() && block.data == static_cast<char*>(list.back().data) + list.back().bytes())
      list.back() = block_of(list.back().data, list.back().bytes() + block.bytes());
    else
      list.push_back(block);
  }
  return list;
}

class NcclCommunicator final : public ForwardingCommunicator {
 public:
  explicit NcclCommunicator(std::unique_ptr<Communicator> inner) : ForwardingCommunicator(std::move(inner)) {
    if (size() > 1) connect();  // one rank needs nobody to connect, and hardly ever exchanges
  }

  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    connect();
    return std::make_unique<NcclExchange>(name, nccl_, std::move(sends), std::move(receives));
  }
  std::unique_ptr<Exchange> make_reduce_scatter(const char* name, const std::vector<Block>& owned) override {
    if (!are_flat_in_device_memory(owned)) return nullptr;
    connect();
    const auto floats = [](const Block& block) { return block.bytes() / sizeof(float); };
    return std::make_unique<NcclCollective>(
        name, nccl_, [=, me = static_cast<std::size_t>(rank())](ncclComm_t comm, cudaStream_t stream) {
          if (are_even(owned))
            return check_nccl(
                ncclReduceScatter(owned[0].data, owned[me].data, floats(owned[0]), ncclFloat, ncclSum, comm, stream),
                name);
          for (std::size_t r = 0; r < owned.size(); ++r)
            if (owned[r].bytes() > 0)
              check_nccl(ncclReduce(owned[r].data, owned[r].data, floats(owned[r]), ncclFloat, ncclSum,
                                    static_cast<int>(r), comm, stream),
                         name);
        });
  }
  std::unique_ptr<Exchange> make_all_gather(const char* name, const std::vector<std::vector<Block>>& owned) override {
    std::vector<std::vector<Block>> parts;
    std::vector<Block> first;  // of each rank, where it has one
    for (const std::vector<Block>& blocks : owned) {
      if (!are_flat_in_device_memory(blocks)) return nullptr;
      parts.push_back(joined(blocks));
      if (parts.back().size() == 1) first.push_back(parts.back()[0]);
    }
    connect();
    const bool even = first.size() == parts.size() && are_even(first);
    return std::make_unique<NcclCollective>(
        name, nccl_, [=, me = static_cast<std::size_t>(rank())](ncclComm_t comm, cudaStream_t stream) {
          if (even)
            return check_nccl(ncclAllGather(first[me].data, first[0].data, first[0].bytes(), ncclChar, comm, stream),
                              name);
          for (std::size_t r = 0; r < parts.size(); ++r)
            for (const Block& part : parts[r])
              check_nccl(ncclBroadcast(part.data, part.data, part.bytes(), ncclChar, static_cast<int>(r), comm, stream),
                         name);
        });
  }
  // Both sides of a single message lie in device memory, or both in host memory.
  void send(int peer, const void* data, std::size_t bytes) override {
    if (bytes == 0) return;
    if (!is_device_memory(data)) return inner_->send(peer, data, bytes);
    transfers_.push_back({peer, true, const_cast<void*>(data), 0, bytes});
  }
  void receive(int peer, void* data, std::size_t bytes) override {
    if (bytes == 0) return;
    if (!is_device_memory(data)) return inner_->receive(peer, data, bytes);
    transfers_.push_back({peer, false, data, 0, bytes});
  }
  void wait(const char* name) override {
    if (send_off(name)) nccl_->wait(arrived_, name, transfers_);
    transfers_.clear();
    inner_->wait(name);
  }
  void wait_in(Queue queue, const char* name) override {
    if (queue == nullptr) return wait(name);
    if (send_off(name)) nccl_->hold(static_cast<cudaStream_t>(queue), arrived_);
    transfers_.clear();
    inner_->wait(name);
  }
  bool start_after(Queue queue) override {
    if (queue == nullptr) return false;
    connect();
    nccl_->follow(static_cast<cudaStream_t>(queue));
    return true;
  }
  bool runs_in_order() const override { return true; }
  void complete(const char* name) override {
    if (nccl_) nccl_->complete(name);
  }

  std::unique_ptr<Communicator> split(int color, int key) override { return on_device(inner_->split(color, key)); }
  std::unique_ptr<Communicator> split_by_node() override { return on_device(inner_->split_by_node()); }

 private:
  void connect() {
    if (!nccl_) nccl_ = std::make_shared<NcclGroup>(*inner_);
  }
  bool send_off(const char* name) {
    if (transfers_.empty()) return false;
    connect();
    nccl_->enqueue(name, transfers_, nullptr);
    arrived_.record(nccl_->stream());
    return true;
  }

  std::shared_ptr<NcclGroup> nccl_;
  std::vector<Transfer> transfers_;  // single messages since the last wait
  CudaEvent arrived_;
};

std::atomic<bool> left_to_host = false;  // groups that are made from then on

bool have_own_devices(Communicator& group) {
  int device = 0;
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDevice(&device), "asking for the device");
  check_cuda(cudaGetDeviceProperties(&properties, device), "asking for the device's name");
  std::vector<std::string> names = group.all_gather(std::string(properties.uuid.bytes, sizeof properties.uuid.bytes));
  std::sort(names.begin(), names.end());
  return std::adjacent_find(names.begin(), names.end()) == names.end();
}

}  // namespace

std::unique_ptr<Communicator> on_device(std::unique_ptr<Communicator> group) {
  if (left_to_host || !have_own_devices(*group)) return through_host(std::move(group));
  return std::make_unique<NcclCommunicator>(std::move(group));
}

bool leave_to_host(Communicator& world) { return have_own_devices(world) && !left_to_host.exchange(true); }

std::string nccl_version() {
  int code = 0;
  check_nccl(ncclGetVersion(&code), "asking for the version");
  return nccl_version_text(code);
}

}  // namespace sestina
