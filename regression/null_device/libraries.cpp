// cuBLAS, as far as it is used, and what Kokkos tells its tools (KOKKOS_TOOLS_LIBS names this library).
#include <cublas_v2.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "device.hpp"

using namespace null_device;

extern "C" int null_device_call(const char* name);

namespace {

std::string compute_name(cublasComputeType_t type) {
  switch (type) {
    case CUBLAS_COMPUTE_32F:
      return "fp32";
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return "fp32 pedantic";
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return "tf32";
    case CUBLAS_COMPUTE_64F:
      return "fp64";
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      return "fp64 pedantic";
    default:
      return std::to_string(static_cast<int>(type));
  }
}

// Of the types that cublasGemmEx documents, those of real numbers that are not integers.
bool is_supported(cublasComputeType_t compute, cudaDataType_t a, cudaDataType_t b, cudaDataType_t c) {
  if (a != b) return false;
  const bool half = a == CUDA_R_16BF || a == CUDA_R_16F;
  switch (compute) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      return a == CUDA_R_64F && c == CUDA_R_64F;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return (half && (c == a || c == CUDA_R_32F)) || (a == CUDA_R_32F && c == a);
    case CUBLAS_COMPUTE_32F_FAST_TF32:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
    case CUBLAS_COMPUTE_32F_FAST_16F:
      return a == CUDA_R_32F && c == a;
    default:
      return false;
  }
}

struct Product {
  cublasHandle_t handle;
  cublasOperation_t op_a, op_b;
  int m, n, k, count;
  const void *alpha, *beta;
  cublasComputeType_t compute;
};

// Tells the call of everything but its operands, to which it gives the rows and columns that their operations leave
// them.
void begin(LibraryCall& call, const char* name, const Product& p, Operand& a, Operand& b, Operand& c) {
  const LibraryHandle& handle = handle_of(p.handle);
  call.size("m", p.m);
  call.size("n", p.n);
  call.size("k", p.k);
  call.size("count", p.count);
  const bool plain_a = p.op_a == CUBLAS_OP_N, plain_b = p.op_b == CUBLAS_OP_N;
  call.fact("operations", std::string(plain_a ? "N" : "T") + (plain_b ? "N" : "T"));
  call.fact("compute", compute_name(p.compute));
  call.size("workspace", static_cast<long long>(handle.bytes));
  if (p.op_a > CUBLAS_OP_C || p.op_b > CUBLAS_OP_C) call.refuse("an operation that there is not");
  for (const void* factor : {p.alpha, p.beta})
    if (factor == nullptr || in_arena(factor)) call.refuse("a factor that is not in host memory");
  if (!is_supported(p.compute, a.type, b.type, c.type)) call.refuse("types that it does not know together");
  if (handle.bytes > 0) reach(handle.workspace, handle.bytes, (std::string(name) + ", workspace").c_str());
  a.rows = plain_a ? p.m : p.k, a.cols = plain_a ? p.k : p.m;
  b.rows = plain_b ? p.k : p.n, b.cols = plain_b ? p.n : p.k;
  c.rows = p.m, c.cols = p.n;
}

cublasStatus_t multiply(const char* name, const Product& p, Operand a, Operand b, Operand c) {
  Lock lock(dev().mutex);
  LibraryCall call(name, handle_of(p.handle).stream);
  begin(call, name, p, a, b, c);
  for (const Operand& x : {a, b, c}) call.operand(x);
  return call.end() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// The operands are arrays of pointers, in device memory as the matrices are.
cublasStatus_t multiply_lists(const char* name, const Product& p, Operand a, Operand b, Operand c) {
  Lock lock(dev().mutex);
  LibraryCall call(name, handle_of(p.handle).stream);
  begin(call, name, p, a, b, c);
  const auto count = static_cast<std::size_t>(p.count < 0 ? 0 : p.count);
  for (const Operand& x : {a, b, c}) {
    std::vector<const void*> places(count);
    if (!in_arena(x.at)) {
      call.refuse(std::string("pointers to ") + x.name + " that are not in device memory");
      continue;
    }
    if (count > 0) std::memcpy(places.data(), reach(x.at, count * sizeof(void*), name), count * sizeof(void*));
    call.operands(x, places);
  }
  return call.end() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// Of the types that cublasGemmGroupedBatchedEx documents, those of real numbers: C has the type of A.
bool is_supported_in_groups(cublasComputeType_t compute, cudaDataType_t a, cudaDataType_t b, cudaDataType_t c) {
  return c == a && is_supported(compute, a, b, c) && (compute != CUBLAS_COMPUTE_32F_PEDANTIC || a == CUDA_R_32F) &&
         compute != CUBLAS_COMPUTE_32F_FAST_16BF && compute != CUBLAS_COMPUTE_32F_FAST_16F;
}

// The operands of groups: pointers in device memory, leading dimensions in host memory.
struct GroupedOperand {
  const char* name;
  const void* const* at;
  cudaDataType_t type;
  const int* leading;
};
struct Groups {
  const cublasOperation_t *op_a, *op_b;
  const int *m, *n, *k, *sizes;
  int count;
};

// Checks operand `which` (of A, B and C) of all products, and tells of their first.
void check_operand(LibraryCall& call, const Groups& g, const GroupedOperand& x, int which, bool rounds) {
  std::vector<Operand> all;
  for (int i = 0; i < g.count; ++i) {
    const bool plain = which == 2 || (which == 0 ? g.op_a : g.op_b)[i] == CUBLAS_OP_N;
    const int rows = which == 1 ? g.k[i] : g.m[i], cols = which == 0 ? g.k[i] : g.n[i];
    for (int each = 0; each < g.sizes[i]; ++each)
      all.push_back(
          {x.name, nullptr, x.type, plain ? rows : cols, plain ? cols : rows, x.leading[i], 1, 0, which == 2});
  }
  if (!in_arena(x.at)) return call.refuse(std::string("pointers to ") + x.name + " that are not in device memory");
  const char* const places = reach(x.at, all.size() * sizeof(void*), x.name);
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::memcpy(&all[i].at, places + i * sizeof(void*), sizeof(void*));
    if (rounds && reinterpret_cast<std::uintptr_t>(all[i].at) % 16 != 0)
      call.refuse(std::string(x.name) + " of a product that rounds is not aligned to 16 bytes");
  }
  call.each(all);
}

}  // namespace

extern "C" {

// ---- cuBLAS
cublasStatus_t cublasCreate_v2(cublasHandle_t* h) {
  null_device_call("cublasCreate");
  *h = reinterpret_cast<cublasHandle_t>(new LibraryHandle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t h) {
  null_device_call("cublasDestroy");
  delete &handle_of(h);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t) { return "null device"; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t stream) {
  null_device_call("cublasSetStream");
  handle_of(h) = {.stream = stream};  // a workspace that was set before is forgotten
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void* at, size_t bytes) {
  Lock lock(dev().mutex);
  LibraryCall call("cublasSetWorkspace", handle_of(h).stream);
  if (reinterpret_cast<std::uintptr_t>(at) % 256 != 0) call.refuse("memory that is not aligned to 256 bytes");
  call.memory("workspace", at, static_cast<long long>(bytes), CUDA_R_8I);
  handle_of(h).workspace = at;
  handle_of(h).bytes = bytes;
  return call.end() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void* alpha, const void* a, cudaDataType_t type_a, int lda, const void* b,
                            cudaDataType_t type_b, int ldb, const void* beta, void* c, cudaDataType_t type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  return multiply("cublasGemmEx", {h, op_a, op_b, m, n, k, 1, alpha, beta, compute}, {"A", a, type_a, 0, 0, lda},
                  {"B", b, type_b, 0, 0, ldb}, {"C", c, type_c, 0, 0, ldc, 1, 0, true});
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                          int n, int k, const void* alpha, const void* a, cudaDataType_t type_a,
                                          int lda, long long step_a, const void* b, cudaDataType_t type_b, int ldb,
                                          long long step_b, const void* beta, void* c, cudaDataType_t type_c, int ldc,
                                          long long step_c, int count, cublasComputeType_t compute, cublasGemmAlgo_t) {
  return multiply("cublasGemmStridedBatchedEx", {h, op_a, op_b, m, n, k, count, alpha, beta, compute},
                  {"A", a, type_a, 0, 0, lda, count, step_a}, {"B", b, type_b, 0, 0, ldb, count, step_b},
                  {"C", c, type_c, 0, 0, ldc, count, step_c, true});
}
cublasStatus_t cublasGemmBatchedEx(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                                   int k, const void* alpha, const void* const a[], cudaDataType_t type_a, int lda,
                                   const void* const b[], cudaDataType_t type_b, int ldb, const void* beta,
                                   void* const c[], cudaDataType_t type_c, int ldc, int count,
                                   cublasComputeType_t compute, cublasGemmAlgo_t) {
  return multiply_lists("cublasGemmBatchedEx", {h, op_a, op_b, m, n, k, count, alpha, beta, compute},
                        {"A", a, type_a, 0, 0, lda}, {"B", b, type_b, 0, 0, ldb},
                        {"C", c, type_c, 0, 0, ldc, 1, 0, true});
}
// The sizes of all products of a call are in "products": m, n and k of each.
cublasStatus_t cublasGemmGroupedBatchedEx(cublasHandle_t h, const cublasOperation_t op_a[],
                                          const cublasOperation_t op_b[], const int m[], const int n[], const int k[],
                                          const void* alpha, const void* const a[], cudaDataType_t type_a,
                                          const int lda[], const void* const b[], cudaDataType_t type_b,
                                          const int ldb[], const void* beta, void* const c[], cudaDataType_t type_c,
                                          const int ldc[], int groups, const int sizes[], cublasComputeType_t compute) {
  Lock lock(dev().mutex);
  const LibraryHandle& handle = handle_of(h);
  LibraryCall call("cublasGemmGroupedBatchedEx", handle.stream);
  call.size("groups", groups);
  call.fact("compute", compute_name(compute));
  call.size("workspace", static_cast<long long>(handle.bytes));
  const std::vector<const void*> in_host = {op_a, op_b, m, n, k, alpha, lda, ldb, beta, ldc, sizes};
  for (const void* array : in_host)
    if (groups <= 0 || array == nullptr || in_arena(array)) {
      call.refuse("no groups, or arrays of sizes, operations and factors that are not in host memory");
      return call.end(), CUBLAS_STATUS_INVALID_VALUE;
    }
  std::vector<std::vector<long long>> products;
  for (int i = 0; i < groups; ++i) {
    if (m[i] < 0 || n[i] < 0 || k[i] < 0 || sizes[i] < 0) call.refuse("a size below 0");
    if (op_a[i] > CUBLAS_OP_C || op_b[i] > CUBLAS_OP_C) call.refuse("an operation that there is not");
    for (int each = 0; each < sizes[i]; ++each) products.push_back({m[i], n[i], k[i]});
  }
  call.fact("operations", std::string(op_a[0] == CUBLAS_OP_N ? "N" : "T") + (op_b[0] == CUBLAS_OP_N ? "N" : "T"));
  call.list("products", products);
  if (!is_supported_in_groups(compute, type_a, type_b, type_c)) call.refuse("types that it does not know in groups");
  if (handle.bytes > 0) reach(handle.workspace, handle.bytes, "cublasGemmGroupedBatchedEx, workspace");
  const bool rounds = type_a != CUDA_R_64F && (type_a != CUDA_R_32F || compute == CUBLAS_COMPUTE_32F_FAST_TF32);
  const Groups all{op_a, op_b, m, n, k, sizes, groups};
  check_operand(call, all, {"A", a, type_a, lda}, 0, rounds);
  check_operand(call, all, {"B", b, type_b, ldb}, 1, rounds);
  check_operand(call, all, {"C", c, type_c, ldc}, 2, rounds);
  return call.end() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// ---- Kokkos Tools (KOKKOS_TOOLS_LIBS names this library): labels
struct KokkosSpace {
  char name[64];
};
struct KokkosSettings {
  bool requires_global_fencing, padding[255];
};
void kokkosp_init_library(int, std::uint64_t, std::uint32_t, void*) {}
void kokkosp_request_tool_settings(std::uint32_t, KokkosSettings* settings) {
  settings->requires_global_fencing = false;
}
void kokkosp_finalize_library() {
  if (std::getenv("NULL_DEVICE_REPORT")) report();  // programs that leave by _exit
}
#define NULL_DEVICE_PARALLEL(what)                                                             \
  void kokkosp_begin_parallel_##what(const char* name, std::uint32_t device, std::uint64_t*) { \
    Lock lock(dev().mutex);                                                                    \
    kernel_label = #what ": " + std::string(name);                                             \
    if (device >> 24 != 2) count("host loop", kernel_label);                                   \
  }                                                                                            \
  void kokkosp_end_parallel_##what(std::uint64_t) { kernel_label.clear(); }
NULL_DEVICE_PARALLEL(for)
NULL_DEVICE_PARALLEL(reduce)
NULL_DEVICE_PARALLEL(scan)
void kokkosp_begin_fence(const char* name, std::uint32_t device, std::uint64_t*) {
  if (device >> 24 == 2) fence_label = name;
}
void kokkosp_end_fence(std::uint64_t) { fence_label.clear(); }
void kokkosp_begin_deep_copy(KokkosSpace, const char* to, const void*, KokkosSpace, const char* from, const void*,
                             std::uint64_t) {
  copy_label = std::string(from) + " -> " + to;
}
void kokkosp_end_deep_copy() { copy_label.clear(); }
void kokkosp_allocate_data(KokkosSpace space, const char* label, const void* p, std::uint64_t bytes) {
  Lock lock(dev().mutex);
  if (std::strncmp(space.name, "Cuda", 4) != 0) return;
  count("allocation by name", std::string(space.name) + ": " + label, bytes);
  if (const auto found = find(p).second) found->label = label;
}
}
