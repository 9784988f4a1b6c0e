// Attention by the device's own library in bf16: cuDNN's fused attention, which is loaded when a pass first asks for
// it. What the library cannot do, or where there is none, attention_rows.hpp does; a run begins with a line that says
// which. No Kokkos: the library's headers are for the host's compiler.
#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace sestina::fused_attention {

// The matrices of a pass, as attention.hpp has them; the forward pass has the first five. All are bf16 but for the
// log-sum-exps, which are fp32 (B*H*T).
enum Field { queries, keys, values, attended, log_sums, d_attended, d_queries, d_keys, d_values, field_count };
enum class Pass { forward, backward };

using Pointers = std::array<const void*, field_count>;

struct Shape {
  int batch = 0, sequence = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double scale = 0;
  std::array<std::int64_t, field_count> stride = {};  // elements between rows; 0 where a pass does not have the field

  bool is_of_keys(Field field) const {
    return field == keys || field == values || field == d_keys || field == d_values;
  }
  auto operator<=>(const Shape&) const = default;
};

// What the library made for a shape and a pass.
struct Plan {
  std::size_t scratch = 0;           // bytes
  int batch = 0;                     // sequences of one call
  std::shared_ptr<void> graph = {};  // null: it refused
};

// Returns the plan of a pass, or nullptr where the library does not compute it. A plan is made once, when its shape is
// first asked for: before the first step, by those who size workspaces.
const Plan* find_plan(const Shape&, Pass);

// Returns the bytes of scratch that a plan will take, about, for those who plan before there is a device.
std::size_t expected_scratch(const Shape&, Pass);

// Whether the library can read and write there: it moves 16 bytes at a time.
inline bool is_aligned(const Pointers& at) {
  for (const void* pointer : at)
    if (reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0) return false;
  return true;
}

// Computes a pass of this plan on the stream, a cudaStream_t. Results repeat bit for bit.
void run(void* stream, const Plan&, const Shape&, Pass, const Pointers&, void* scratch);

// Whether some pass may be computed by the library, in this process, from now on.
bool is_in_use();
// From now on nothing is: for whoever has found that it is wrong here. The reason is part of the description.
void leave_to_rows(const std::string& why);

// Returns what computes attention in bf16 here, in words: the library and its version, and why it refused a pass; or
// why there is none.
std::string description();

}  // namespace sestina::fused_attention
