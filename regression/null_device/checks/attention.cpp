// A program that has cuDNN compute attention, one pass forward and one backward, and makes one mistake with it, by its
// argument; without one it makes none.
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t B = 2, H = 4, T = 32, h = 16;  // sequences, heads, rows of each, width of a head
constexpr std::int64_t size = B * H * T * h;
enum Tensor : std::int64_t { q = 1, k, v, out, logs, d_out, dq, dk, dv, tensors };

std::string mistake;

cudnnBackendDescriptor_t make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  cudnnBackendCreateDescriptor(type, &descriptor);
  return descriptor;
}

template <class Value>
void set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         const std::vector<Value>& values) {
  cudnnBackendSetAttribute(descriptor, name, type, static_cast<std::int64_t>(values.size()), values.data());
}
void set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t part) {
  cudnnBackendSetAttribute(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

cudnnBackendDescriptor_t tensor(std::int64_t number) {
  const auto made = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const bool is_log = number == logs;
  const std::int64_t row = mistake == "outside" && number == k ? 8 * H * h : H * h;
  set(made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, std::vector{number});
  set(made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::vector<std::int64_t>{16});
  set(made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE,
      std::vector{is_log ? CUDNN_DATA_FLOAT : CUDNN_DATA_BFLOAT16});
  set(made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::vector<std::int64_t>{B, H, T, is_log ? 1 : h});
  set(made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64,
      is_log ? std::vector<std::int64_t>{H * T, T, 1, 1} : std::vector<std::int64_t>{T * row, h, row, 1});
  cudnnBackendFinalize(made);
  return made;
}

// Returns a plan for a graph of one operation.
cudnnBackendDescriptor_t plan_of(cudnnBackendDescriptor_t operation) {
  const auto graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR),
             choice = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR), plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  set(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
  set(choice, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choice);
  return plan;
}

cudnnBackendDescriptor_t forward() {
  const auto pass = make(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
  set(pass, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, tensor(q));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, tensor(k));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, tensor(v));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, tensor(out));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, tensor(logs));
  return plan_of(pass);
}

cudnnBackendDescriptor_t backward() {
  const auto pass = make(CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR);
  set(pass, CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC, tensor(q));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC, tensor(k));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC, tensor(v));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC, tensor(out));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC, tensor(logs));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC, tensor(d_out));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC, tensor(dq));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC, tensor(dk));
  set(pass, CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC, tensor(dv));
  return plan_of(pass);
}

void run(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, const std::vector<char*>& at, void* scratch) {
  const auto pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  std::vector<std::int64_t> numbers;
  std::vector<void*> pointers;
  for (std::int64_t number = q; number < tensors; ++number) {
    if (mistake == "missing" && number == v) continue;
    numbers.push_back(number);
    pointers.push_back(at[static_cast<std::size_t>(number)]);
  }
  set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, numbers);
  set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers);
  set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, std::vector{scratch});
  cudnnBackendExecute(handle, plan, pack);
}

}  // namespace

int main(int, char** arguments) {
  mistake = arguments[1] != nullptr ? arguments[1] : "";
  cudnnHandle_t handle = nullptr;
  cudnnCreate(&handle);
  std::vector<char*> at(tensors);
  for (char*& pointer : at) cudaMalloc(reinterpret_cast<void**>(&pointer), 2 * size + 16);
  void* scratch = nullptr;
  cudaMalloc(&scratch, B * H * 64 * 128 * 2 + 1024);
  std::vector<char*> given = at;
  char host[2 * size];
  if (mistake == "shifted") given[q] += 8;
  if (mistake == "aliased") given[out] = given[q];
  if (mistake == "host") given[v] = host;
  run(handle, forward(), given, nullptr);
  run(handle, backward(), given, mistake == "scratchless" ? nullptr : scratch);
  for (char* pointer : at) cudaFree(pointer);
  cudaFree(scratch);
  cudnnDestroy(handle);
}
