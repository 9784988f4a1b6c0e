// cuDNN through its header-only front end, which builds a graph of the pass and has cuDNN compile it. The library is
// not linked to: a program for CUDA starts where it is absent, and computes attention by its own kernels there.
#include <cudnn.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cudnn_library.hpp"  // made by CMake
#include "kernels/base/device_memory.hpp"
#include "kernels/base/error.hpp"
#include "kernels/model/device/attention_fused.hpp"

namespace sestina::fused_attention {
namespace {

namespace fe = cudnn_frontend;

// The deterministic backward pass of Hopper keeps a (T, T) matrix of bf16 for each head of a call. Sequences are
// computed in as many calls as leave it below this, where there are several; one that needs too much is refused.
constexpr std::size_t most_scratch = std::size_t{512} << 20, most_scratch_of_one = std::size_t{16} << 30;

// A part of them that divides their number.
int fewer_sequences(int batch) { return batch % 2 == 0 ? batch / 2 : 1; }

// Whether to ask the library at all: heads and rows begin where 16 bytes can be moved.
bool is_possible(const Shape& shape) {
  bool possible = shape.batch > 0 && shape.sequence > 0 && shape.head_dim % 8 == 0;
  for (const std::int64_t stride : shape.stride) possible = possible && stride % 8 == 0;
  return possible;
}

void* loaded = nullptr;  // the library; set before the first call to it
template <class Function>
Function* found(const char* name) {
  return reinterpret_cast<Function*>(dlsym(loaded, name));
}

// Returns why the library cannot be had, or nothing. The null device of the tests has its own, which is loaded already:
// the real one, on a driver that is none, would not come back from its first call.
std::string load() {
  const std::string device = device_identity();
  if (device.empty()) return "no device";
  const std::string name = fmt::format("libcudnn.so.{}", CUDNN_MAJOR);
  const int mode = RTLD_NOW | RTLD_LOCAL;
  if (computes_nothing(device)) {
    loaded = dlopen(name.c_str(), mode | RTLD_NOLOAD);
    return loaded == nullptr ? name + " is not a part of this null device" : "";
  }
  loaded = dlopen(name.c_str(), mode);
  const char* const message = loaded == nullptr ? dlerror() : nullptr;
  if (loaded == nullptr) loaded = dlopen(cudnn_library, mode);  // where it was when the program was built
  if (loaded == nullptr) return message != nullptr ? message : name + " cannot be loaded";
  return "";
}

std::string version_text(std::size_t version) {
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// The library of this process, its handle and the plans that it made. It is never taken down: cuDNN would want a device
// that is still there, and nothing is left of either at the end of the process.
class Library {
 public:
  static Library& instance() {
    static Library& only = *new Library;
    return only;
  }

  const Plan* find(const Shape& shape, Pass pass);
  void run(cudaStream_t, const Plan&, const Shape&, Pass, Pointers, void* scratch);
  void leave(const std::string& why) {
    const std::lock_guard lock(mutex_);
    why_not_ = why;
  }
  bool is_in_use() {
    const std::lock_guard lock(mutex_);
    return why_not_.empty();
  }
  std::string description() {
    const std::lock_guard lock(mutex_);
    if (!why_not_.empty()) return "our own kernels: " + why_not_;
    return name_ + (refusal_.empty() ? "" : "; our own kernels for what it refused: " + refusal_);
  }

 private:
  Library() : why_not_(load()) {
    if (!why_not_.empty()) return;
    auto* const version = found<decltype(cudnnGetVersion)>("cudnnGetVersion");
    auto* const create = found<decltype(cudnnCreate)>("cudnnCreate");
    set_stream_ = found<decltype(cudnnSetStream)>("cudnnSetStream");
    if (version == nullptr || create == nullptr || set_stream_ == nullptr) {
      why_not_ = "not a cuDNN that this program knows";
    } else if (version() < CUDNN_VERSION) {  // the front end uses what its headers have
      why_not_ = version_text(version()) + " is older than that of the build, " + version_text(CUDNN_VERSION);
    } else if (const cudnnStatus_t status = create(&handle_); status != CUDNN_STATUS_SUCCESS) {
      why_not_ = fmt::format("{} does not start: {}", version_text(version()), cudnnGetErrorString(status));
    } else {
      name_ = version_text(version());
    }
  }

  Plan make(Shape, Pass);

  std::mutex mutex_;
  std::string why_not_;         // empty: the library is in use
  std::string name_, refusal_;  // refusal: of the last plan that it did not make
  cudnnHandle_t handle_ = nullptr;
  decltype(cudnnSetStream)* set_stream_ = nullptr;
  std::map<Shape, Plan> plans_[2];
};

// The matrix of one field as cuDNN sees it, (B, heads, T, h) with strides; its number is that of the field, from 1.
fe::graph::Tensor_attributes tensor_of(const Shape& s, Field field) {
  const std::int64_t B = s.batch, T = s.sequence, h = s.head_dim, H = s.heads;
  fe::graph::Tensor_attributes tensor;
  tensor.set_uid(field + 1);
  if (field == log_sums)
    tensor.set_dim({B, H, T, 1}).set_stride({H * T, T, 1, 1}).set_data_type(fe::DataType_t::FLOAT);
  else
    tensor.set_dim({B, s.is_of_keys(field) ? s.kv_heads : H, T, h})
        .set_stride({T * s.stride[field], h, s.stride[field], 1})
        .set_data_type(fe::DataType_t::BFLOAT16);
  return tensor;
}

// Makes a tensor that a node returned the output of a field.
void give(const std::shared_ptr<fe::graph::Tensor_attributes>& output, const Shape& shape, Field field) {
  const fe::graph::Tensor_attributes tensor = tensor_of(shape, field);
  output->set_output(true)
      .set_uid(tensor.get_uid())
      .set_dim(tensor.get_dim())
      .set_stride(tensor.get_stride())
      .set_data_type(tensor.get_data_type());
}

std::shared_ptr<fe::graph::Graph> graph_of(const Shape& shape, Pass pass) {
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto take = [&](Field field) { return graph->tensor(tensor_of(shape, field)); };
  const auto q = take(queries), k = take(keys), v = take(values);
  const auto scale = static_cast<float>(shape.scale);
  constexpr auto alignment = fe::DiagonalAlignment_t::TOP_LEFT;  // row r sees keys 0 to r
  if (pass == Pass::forward) {
    auto options = fe::graph::SDPA_attributes().set_generate_stats(true).set_attn_scale(scale);
    options.set_diagonal_alignment(alignment).set_diagonal_band_right_bound(0);
    const auto results = graph->sdpa(q, k, v, options);
    give(results[0], shape, attended);
    give(results[1], shape, log_sums);
  } else {
    auto options = fe::graph::SDPA_backward_attributes().set_deterministic_algorithm(true).set_attn_scale(scale);
    options.set_diagonal_alignment(alignment).set_diagonal_band_right_bound(0);
    const auto results = graph->sdpa_backward(q, k, v, take(attended), take(d_attended), take(log_sums), options);
    give(results[0], shape, d_queries);
    give(results[1], shape, d_keys);
    give(results[2], shape, d_values);
  }
  return graph;
}

// Of a message of cuDNN, which may be long.
std::string first_line(const std::string& text) { return text.substr(0, std::min(text.find('\n'), std::size_t{200})); }

Plan Library::make(Shape shape, Pass pass) {
  Plan plan;
  for (;;) {
    const auto graph = graph_of(shape, pass);
    fe::error_t error = graph->build(handle_, {fe::HeurMode_t::A});
    if (error.is_bad()) {
      refusal_ = first_line(error.get_message());
      return {};
    }
    std::int64_t bytes = 0;
    if (graph->get_workspace_size(bytes).is_bad()) return {};
    plan = {static_cast<std::size_t>(bytes), shape.batch, graph};
    if (plan.scratch <= most_scratch) return plan;
    if (shape.batch == 1) break;
    shape.batch = fewer_sequences(shape.batch);
  }
  if (plan.scratch <= most_scratch_of_one) return plan;
  refusal_ = fmt::format("it wants {} MiB of scratch for one sequence", plan.scratch >> 20);
  return {};
}

const Plan* Library::find(const Shape& shape, Pass pass) {
  const std::lock_guard lock(mutex_);
  if (!why_not_.empty() || !is_possible(shape)) return nullptr;
  auto& plans = plans_[pass == Pass::forward ? 0 : 1];
  auto place = plans.find(shape);
  if (place == plans.end()) {
    Plan plan;
    try {
      plan = make(shape, pass);
    } catch (const std::exception& error) {  // the front end's own
      refusal_ = first_line(error.what());
    }
    place = plans.emplace(shape, std::move(plan)).first;
  }
  return place->second.graph != nullptr ? &place->second : nullptr;
}

void Library::run(cudaStream_t stream, const Plan& plan, const Shape& shape, Pass pass, Pointers at, void* scratch) {
  const std::lock_guard lock(mutex_);
  auto& graph = *static_cast<fe::graph::Graph*>(plan.graph.get());
  const int fields = pass == Pass::forward ? log_sums + 1 : field_count;
  if (set_stream_(handle_, stream) != CUDNN_STATUS_SUCCESS) fail(ExitCode::unavailable, "cuDNN refuses its stream");
  std::unordered_map<std::int64_t, void*> pointers;
  for (int begin = 0; begin < shape.batch; begin += plan.batch) {
    for (int field = 0; field < fields; ++field) {
      const std::int64_t rows = std::int64_t{begin} * shape.sequence;
      const std::int64_t bytes =
          field == log_sums ? 4 * rows * shape.heads : 2 * rows * shape.stride[static_cast<std::size_t>(field)];
      const auto* const data = static_cast<const char*>(at[static_cast<std::size_t>(field)]) + bytes;
      pointers[field + 1] = const_cast<char*>(data);
    }
    fe::error_t error = graph.execute(handle_, pointers, scratch);
    if (error.is_bad()) fail(ExitCode::unavailable, "cuDNN: attention: {}", first_line(error.get_message()));
  }
}

}  // namespace

const Plan* find_plan(const Shape& shape, Pass pass) { return Library::instance().find(shape, pass); }
// As cuDNN 9.19 answers for Hopper: the matrices of most_scratch, the sums of the front end, and where heads share keys
// the gradients of keys and values of each, in bf16.
std::size_t expected_scratch(const Shape& shape, Pass pass) {
  constexpr std::size_t more = 64 << 10;
  if (pass == Pass::forward || !is_possible(shape)) return 0;
  const auto up = [&](std::size_t part) { return (static_cast<std::size_t>(shape.sequence) + part - 1) / part * part; };
  const std::size_t shared = shape.heads != shape.kv_heads ? 4 * static_cast<std::size_t>(shape.head_dim) : 0;
  const std::size_t one = static_cast<std::size_t>(shape.heads) * (up(64) * up(128) * 2 + up(1) * (4 + shared));
  int batch = shape.batch;
  while (batch > 1 && static_cast<std::size_t>(batch) * one + more > most_scratch) batch = fewer_sequences(batch);
  return static_cast<std::size_t>(batch) * one + more;
}
void run(void* stream, const Plan& plan, const Shape& shape, Pass pass, const Pointers& at, void* scratch) {
  Library::instance().run(static_cast<cudaStream_t>(stream), plan, shape, pass, at, scratch);
}
bool is_in_use() { return Library::instance().is_in_use(); }
void leave_to_rows(const std::string& why) { Library::instance().leave(why); }
std::string description() { return Library::instance().description(); }

}  // namespace sestina::fused_attention

// The functions that the front end calls by name: those of the library that was loaded. Nobody else sees these.
#define SESTINA_CUDNN(Result, name, parameters, arguments)                                \
  extern "C" __attribute__((visibility("hidden"))) Result name parameters {               \
    static auto* const function = sestina::fused_attention::found<decltype(name)>(#name); \
    return function arguments;                                                            \
  }
SESTINA_CUDNN(std::size_t, cudnnGetVersion, (), ())
SESTINA_CUDNN(const char*, cudnnGetErrorString, (cudnnStatus_t status), (status))
SESTINA_CUDNN(void, cudnnGetLastErrorString, (char* text, std::size_t size), (text, size))
SESTINA_CUDNN(cudnnStatus_t, cudnnGetStream, (cudnnHandle_t handle, cudaStream_t* stream), (handle, stream))
SESTINA_CUDNN(cudnnStatus_t, cudnnBackendCreateDescriptor,
              (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor), (type, descriptor))
SESTINA_CUDNN(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor), (descriptor))
SESTINA_CUDNN(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), (descriptor))
SESTINA_CUDNN(cudnnStatus_t, cudnnBackendSetAttribute,
              (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               std::int64_t count, const void* elements),
              (descriptor, name, type, count, elements))
SESTINA_CUDNN(cudnnStatus_t, cudnnBackendGetAttribute,
              (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               std::int64_t most, std::int64_t* count, void* elements),
              (descriptor, name, type, most, count, elements))
SESTINA_CUDNN(cudnnStatus_t, cudnnBackendExecute,
              (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack),
              (handle, plan, pack))
