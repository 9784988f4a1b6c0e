// cuDNN, as far as its front end asks for attention: descriptors keep what they are given, a graph is refused where
// cuDNN refuses it, and a plan that is run checks where its tensors lie. It is in the same library as the rest, which
// makes it loaded already when a program looks for libcudnn (build.sh).
#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>

#include "device.hpp"

using namespace null_device;

extern "C" int null_device_call(const char* name);

namespace {

struct Content;
using Part = std::shared_ptr<Content>;
// What a descriptor has been given: attributes that are descriptors again, and the bytes of all others.
struct Content {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<Part>> parts = {};
  std::map<int, std::vector<char>> values = {};

  Part part(int name) const {
    const auto found = parts.find(name);
    return found == parts.end() || found->second.empty() ? nullptr : found->second.front();
  }
  template <class T>
  std::vector<T> all(int name) const {
    const auto found = values.find(name);
    std::vector<T> result(found == values.end() ? 0 : found->second.size() / sizeof(T));
    if (!result.empty()) std::memcpy(result.data(), found->second.data(), result.size() * sizeof(T));
    return result;
  }
  template <class T>
  T one(int name, T otherwise) const {
    const std::vector<T> found = all<T>(name);
    return found.empty() ? otherwise : found.front();
  }
};
// What a cudnnBackendDescriptor_t points to. Others keep the content when it is destroyed.
struct Holder {
  Part content;
};
Part& content_of(void* descriptor) { return static_cast<Holder*>(descriptor)->content; }

std::size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
      return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_FRACTION:
      return 16;
    default:
      return 4;  // enumerations, float and int
  }
}

struct Tensor {
  std::int64_t number = 0, alignment = 0;
  std::vector<std::int64_t> sizes, strides;
  cudaDataType_t type = CUDA_R_8I;
  bool is_by_value = false, is_result = false;
};

// The tensors of a graph that are in memory, each once, and how many products and operations of attention it has.
struct Graph {
  std::map<std::int64_t, Tensor> tensors;
  int products = 0, forward = 0, backward = 0;

  bool is_backward() const { return backward > 0 || products > 2; }
  bool is_attention() const { return forward + backward == 1 || products == 2 || products == 5; }
};

bool is_output(int name) {
  return name == CUDNN_ATTR_OPERATION_MATMUL_CDESC || name == CUDNN_ATTR_OPERATION_POINTWISE_YDESC ||
         name == CUDNN_ATTR_OPERATION_REDUCTION_YDESC || name == CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC ||
         name == CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC || name == CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC ||
         name == CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC || name == CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC;
}

cudaDataType_t type_of(const Content& tensor) {
  switch (tensor.one(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_INT8)) {
    case CUDNN_DATA_BFLOAT16:
      return CUDA_R_16BF;
    case CUDNN_DATA_HALF:
      return CUDA_R_16F;
    case CUDNN_DATA_FLOAT:
      return CUDA_R_32F;
    default:
      return CUDA_R_8I;
  }
}

void add_tensors(const Content& operation, Graph& graph) {
  graph.products += operation.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
  graph.forward += operation.type == CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR;
  graph.backward += operation.type == CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR;
  for (const auto& [name, parts] : operation.parts)
    for (const Part& part : parts) {
      if (part->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR || part->one<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0) != 0)
        continue;
      const auto number = part->one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
      Tensor& tensor = graph.tensors[number];
      tensor = {number,
                part->one<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1),
                part->all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
                part->all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES),
                type_of(*part),
                part->one<char>(CUDNN_ATTR_TENSOR_IS_BY_VALUE, 0) != 0,
                tensor.is_result || is_output(name)};
      if (tensor.sizes.size() == 4 && tensor.strides[3] > tensor.strides[2]) {  // the transpose of rows
        std::swap(tensor.sizes[2], tensor.sizes[3]);
        std::swap(tensor.strides[2], tensor.strides[3]);
      }
    }
}

// The graph is found below all that is made of it: heuristics, engines, their configurations and plans.
Graph graph_of(const Content& content) {
  Graph graph;
  if (content.type != CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
    for (const int name : {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
                           CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG})
      if (const Part part = content.part(name)) return graph_of(*part);
    return graph;
  }
  const auto operations = content.parts.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (operations != content.parts.end())
    for (const Part& operation : operations->second) add_tensors(*operation, graph);
  return graph;
}

// Sequences, heads and rows of attention, of which each tensor has at most as many.
std::int64_t largest(const Graph& graph, std::size_t dimension) {
  std::int64_t most = 1;
  for (const auto& [number, tensor] : graph.tensors)
    if (tensor.sizes.size() == 4) most = std::max(most, tensor.sizes[dimension]);
  return most;
}

// As cuDNN 9.19 answers for Hopper: in the deterministic backward pass a matrix of bf16 for each head, and where heads
// share keys the gradients of keys and values of each; nothing in the other pass.
std::int64_t scratch_of(const Graph& graph) {
  if (!graph.is_backward()) return 0;
  const std::int64_t rows = largest(graph, 2), heads = largest(graph, 1);
  std::int64_t of_head = (rows + 63) / 64 * 64 * ((rows + 127) / 128 * 128) * 2;
  const bool is_shared = std::any_of(graph.tensors.begin(), graph.tensors.end(), [&](const auto& entry) {
    return entry.second.type == CUDA_R_16BF && entry.second.sizes.size() == 4 && entry.second.sizes[1] < heads;
  });
  if (is_shared) of_head += 4 * rows * largest(graph, 3);
  return largest(graph, 0) * heads * of_head + 1024;
}

// Whether the library has an engine for it: not for the backward pass of a single row. Programs ask before they
// compute, so no is no mistake.
bool is_supported(const Graph& graph) {
  if (!graph.is_attention() || (graph.is_backward() && largest(graph, 2) == 1)) return false;
  for (const auto& [number, tensor] : graph.tensors)
    if (tensor.type == CUDA_R_16BF && tensor.sizes.size() == 4)
      if (tensor.sizes[3] % 8 != 0 || tensor.sizes[3] > 256 || tensor.strides[3] != 1) return false;
  return true;
}

// A matrix of a head's columns in each row of one or all sequences, or numbers one after the other.
Operand operand_of(const Tensor& tensor, const char* name, const void* at) {
  const auto& n = tensor.sizes;
  const auto& step = tensor.strides;
  Operand x{.name = name, .at = at, .type = tensor.type, .rows = 1, .cols = 1, .leading = 1};
  x.is_result = tensor.is_result;
  if (n.size() == 4 && step[1] < step[2]) {
    x.rows = (n[1] - 1) * step[1] + n[3], x.cols = n[2], x.leading = step[2];
    if (step[0] == n[2] * step[2])
      x.cols *= n[0];
    else
      x.count = n[0], x.stride = step[0];
  } else {
    for (std::size_t d = 0; d < n.size(); ++d) x.rows += (n[d] - 1) * step[d];
    x.leading = x.rows;
  }
  return x;
}

cudnnStatus_t run(cudnnHandle_t handle, const Content& plan, const Content& pack) {
  Lock lock(dev().mutex);
  const Graph graph = graph_of(plan);
  LibraryCall call(graph.is_backward() ? "cudnn sdpa_back" : "cudnn sdpa",
                   reinterpret_cast<LibraryHandle*>(handle)->stream);
  const auto numbers = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.all<const void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  call.size("sequences", largest(graph, 0));
  call.size("heads", largest(graph, 1));
  call.size("rows", largest(graph, 2));
  std::map<std::int64_t, std::string> names;  // the call remembers its operands
  for (const auto& [number, tensor] : graph.tensors) {
    const auto place = std::find(numbers.begin(), numbers.end(), number) - numbers.begin();
    const std::string& name = names[number] = "tensor " + std::to_string(number);
    if (static_cast<std::size_t>(place) >= std::min(numbers.size(), pointers.size())) {
      call.refuse(name + " is not in the pack");
      continue;
    }
    const void* const at = pointers[static_cast<std::size_t>(place)];
    if (tensor.is_by_value) {
      if (at == nullptr || in_arena(at)) call.refuse(name + " is not in host memory");
      continue;
    }
    if (reinterpret_cast<std::uintptr_t>(at) % static_cast<std::uintptr_t>(tensor.alignment) != 0)
      call.refuse(name + " is not aligned to " + std::to_string(tensor.alignment) + " bytes");
    call.operand(operand_of(tensor, name.c_str(), at));
  }
  if (const std::int64_t bytes = scratch_of(graph); bytes > 0)
    call.memory("workspace", pack.one<const void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr), bytes, CUDA_R_8I);
  return call.end() ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

// Fills a descriptor that the caller has made, if it asks for one.
void fill(std::int64_t most, std::int64_t* count, void* elements, const Part& part) {
  if (count != nullptr) *count = part != nullptr ? 1 : 0;
  if (part != nullptr && most > 0 && elements != nullptr) content_of(*static_cast<void**>(elements)) = part;
}

Part made_of(cudnnBackendDescriptorType_t type, int name, const Part& part) {
  auto content = std::make_shared<Content>(Content{type});
  content->parts[name] = {part};
  return content;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  null_device_call("cudnnCreate");
  if (number("NULL_DEVICE_CUDNN", 1) == 0) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cudnnHandle_t>(new LibraryHandle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete reinterpret_cast<LibraryHandle*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<LibraryHandle*>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = reinterpret_cast<LibraryHandle*>(handle)->stream;
  return CUDNN_STATUS_SUCCESS;
}
std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t) { return "null device"; }
void cudnnGetLastErrorString(char* text, std::size_t size) {
  if (size > 0) *text = 0;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  *descriptor = reinterpret_cast<cudnnBackendDescriptor_t>(new Holder{std::make_shared<Content>(Content{type})});
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete reinterpret_cast<Holder*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count, const void* elements) {
  Content& content = *content_of(descriptor);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    content.parts[name].clear();
    for (std::int64_t i = 0; i < count; ++i)
      if (void* const part = static_cast<void* const*>(elements)[i]) content.parts[name].push_back(content_of(part));
  } else {
    const char* const bytes = static_cast<const char*>(elements);
    content.values[name].assign(bytes, bytes + static_cast<std::size_t>(count) * bytes_of(type));
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  const Content& content = *content_of(descriptor);
  const bool is_refused = content.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR && !is_supported(graph_of(content));
  return is_refused ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t most, std::int64_t* count,
                                       void* elements) {
  const Part content = content_of(descriptor);
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    const Part engine = made_of(CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
                                content->part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
    fill(most, count, elements, made_of(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, engine));
  } else if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    fill(most, count, elements, content->part(name));
  } else if ((name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE || name == CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE) &&
             elements != nullptr) {
    const std::int64_t bytes = scratch_of(graph_of(*content));
    std::memcpy(elements, &bytes, sizeof bytes);
    if (count != nullptr) *count = 1;
  } else {
    const std::vector<char>& bytes = content->values[name];
    const auto have = static_cast<std::int64_t>(bytes.size() / bytes_of(type));
    if (count != nullptr) *count = have;
    if (elements != nullptr && !bytes.empty())
      std::memcpy(elements, bytes.data(), static_cast<std::size_t>(std::min(have, most)) * bytes_of(type));
    const bool is_number = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_INT32;
    if (bytes.empty() && is_number && elements != nullptr) std::memset(elements, 0, bytes_of(type));
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  return run(handle, *content_of(plan), *content_of(pack));
}
}
