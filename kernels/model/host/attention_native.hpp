// Attention in bf16 on host threads by the processor's own products (host/attention_bf16.hpp), where it has them. A
// worker owns one (sequence, key/value head) at a time; where there are fewer of these than threads, the forward pass
// packs them first and then shares out blocks of queries. Every sum has one fixed order, so the bits do not depend on
// the number of workers.
#pragma once
#include "kernels/model/attention_blocked.hpp"
#include "kernels/model/host/attention_bf16.hpp"

namespace sestina::attention_native {

using attention_blocked::Problem;
using host::Bits;
using host::HeadRows;

// Returns the passes for this process, or null where it multiplies bf16 in another way (attention_blocked.hpp).
inline const host::AttentionBf16* passes(const AttentionShape& shape) {
  return shape.scale > 0 ? host::attention_bf16_passes(bf16_way()) : nullptr;
}

inline HeadRows<const Bits> rows_of(const Matrix<const bf16, Host>& m, std::int64_t row, int column) {
  return {reinterpret_cast<const Bits*>(attention_blocked::at(m, row, column)), static_cast<std::int64_t>(m.stride(0))};
}
inline HeadRows<Bits> rows_of(const Matrix<bf16, Host>& m, std::int64_t row, int column) {
  return {reinterpret_cast<Bits*>(attention_blocked::at(m, row, column)), static_cast<std::int64_t>(m.stride(0))};
}

// Where a unit of work lies: a sequence, and a key/value head with the query heads that use it.
struct Unit {
  std::int64_t base;  // first row of the sequence
  int batch, kv_head, group, head, column;
  Unit(const AttentionShape& s, int index)
      : batch(index / s.kv_heads), kv_head(index % s.kv_heads), group(s.heads / s.kv_heads) {
    base = static_cast<std::int64_t>(batch) * s.sequence;
    head = kv_head * group;
    column = head * s.head_dim;
  }
};

inline host::HeadGroup group_of(const Problem<bf16>& p, const Unit& u, int start) {
  const AttentionShape& s = p.shape;
  return {s.sequence,
          s.head_dim,
          u.group,
          static_cast<float>(s.scale),
          p.first_key.size() > 0 ? p.first_key.data() + u.base : nullptr,
          rows_of(p.q, u.base, u.column),
          rows_of(p.k, u.base, u.kv_head * s.head_dim),
          rows_of(p.v, u.base, u.kv_head * s.head_dim),
          start};
}

// Memory of a pass: panels for as many units as are packed at a time, scratch for each worker.
struct Slots {
  Slots(Workspace<Host>& workspace, const host::PassMemory& bytes, int panels, int workers)
      : bytes(bytes),
        panels(workspace.take<std::byte>(bytes.panels * static_cast<std::size_t>(panels)).data()),
        scratch(workspace.take<std::byte>(bytes.scratch * static_cast<std::size_t>(workers)).data()) {}
  host::PassMemory bytes;
  std::byte *panels, *scratch;
  std::byte* unit_panels(int i) const { return panels + bytes.panels * static_cast<std::size_t>(i); }
  std::byte* worker_scratch(int i) const { return scratch + bytes.scratch * static_cast<std::size_t>(i); }
};

struct ForwardSlots : Slots {
  ForwardSlots(Workspace<Host>& workspace, const host::AttentionBf16& passes, const AttentionShape& s, int threads)
      : Slots(workspace, passes.forward_memory(s.sequence, s.head_dim), attention_blocked::workers(threads, s),
              std::max(1, threads)) {}
};
struct BackwardSlots : Slots {
  BackwardSlots(Workspace<Host>& workspace, const host::AttentionBf16& passes, const AttentionShape& s, int threads)
      : Slots(workspace, passes.backward_memory(s.sequence, s.head_dim), attention_blocked::workers(threads, s),
              attention_blocked::workers(threads, s)) {}
};

struct Forward {
  const host::AttentionBf16& passes;
  attention_blocked::Forward<bf16> f;

  host::GroupForward of(int unit) const {
    const AttentionShape& s = f.p.shape;
    const Unit u(s, unit);
    return {group_of(f.p, u, f.start), rows_of(f.out, u.base, u.column),
            f.lse.data() + (static_cast<std::int64_t>(u.batch) * s.heads + u.head) * (s.sequence - f.start)};
  }
  void attend(const host::GroupForward& g, int unit, int head, int begin, int end, void* panels, void* scratch) const {
    const float found = passes.attend(g, panels, head, begin, end, scratch);
    if (f.largest.size() > 0) Kokkos::atomic_max(&f.largest(Unit(f.p.shape, unit).head + head), found);
  }

  void run(const Host& exec, Workspace<Host>& workspace) const {
    const AttentionShape& s = f.p.shape;
    const int units = s.batch * s.kv_heads, threads = std::max(1, threads_of(exec));
    if (units == 0 || s.sequence == f.start) return;
    auto frame = workspace.frame();
    const ForwardSlots slots(workspace, passes, s, threads);
    if (units < threads) return run_shared(exec, slots, units, threads);
    attention_blocked::for_units("attention", exec, units, threads, [&](int worker, int unit) {
      const host::GroupForward g = of(unit);
      passes.pack(g, slots.unit_panels(worker));
      for (int head = 0; head < g.g.heads; ++head)
        attend(g, unit, head, f.start, s.sequence, slots.unit_panels(worker), slots.worker_scratch(worker));
    });
  }

 private:
  // Shares out blocks of queries, those that see most first.
  void run_shared(const Host& exec, const Slots& slots, int units, int threads) const {
    constexpr int rows = host::attention_bf16::query_block;
    const AttentionShape& s = f.p.shape;
    const int heads = s.heads / s.kv_heads, across = units * heads, blocks = (s.sequence - f.start + rows - 1) / rows;
    attention_blocked::for_units("attention_pack", exec, units, units,
                                 [&](int, int unit) { passes.pack(of(unit), slots.unit_panels(unit)); });
    attention_blocked::for_units("attention", exec, blocks * across, threads, [&](int worker, int item) {
      const int begin = f.start + (blocks - 1 - item / across) * rows, unit = item % across / heads;
      attend(of(unit), unit, item % heads, begin, std::min(begin + rows, s.sequence), slots.unit_panels(unit),
             slots.worker_scratch(worker));
    });
  }
};

struct Backward {
  const host::AttentionBf16& passes;
  attention_blocked::Backward<bf16> b;

  host::GroupBackward of(int unit) const {
    const AttentionShape& s = b.p.shape;
    const Unit u(s, unit);
    const int column = u.kv_head * s.head_dim;
    return {group_of(b.p, u, 0),
            rows_of(b.dout, u.base, u.column),
            rows_of(b.out, u.base, u.column),
            b.lse.data() + (static_cast<std::int64_t>(u.batch) * s.heads + u.head) * s.sequence,
            rows_of(b.dq, u.base, u.column),
            rows_of(b.dk, u.base, column),
            rows_of(b.dv, u.base, column)};
  }
  void run(const Host& exec, Workspace<Host>& workspace) const {
    const AttentionShape& s = b.p.shape;
    const int units = s.batch * s.kv_heads, workers = attention_blocked::workers(threads_of(exec), s);
    if (units == 0 || s.sequence == 0) return;
    auto frame = workspace.frame();
    const BackwardSlots slots(workspace, passes, s, workers);
    attention_blocked::for_units("attention_back", exec, units, workers, [&](int worker, int unit) {
      passes.differentiate(of(unit), slots.unit_panels(worker), slots.worker_scratch(worker));
    });
  }
};

// Runs a pass in the way of this process.
template <class T>
void run_forward(const Host& exec, const attention_blocked::Forward<T>& pass, Workspace<Host>& workspace) {
  if constexpr (std::is_same_v<T, bf16>)
    if (const auto* native = passes(pass.p.shape)) return Forward{*native, pass}.run(exec, workspace);
  attention_blocked::run<T>("attention", exec, pass, workspace);
}
template <class T>
void run_backward(const Host& exec, const attention_blocked::Backward<T>& pass, Workspace<Host>& workspace) {
  if constexpr (std::is_same_v<T, bf16>)
    if (const auto* native = passes(pass.p.shape)) return Backward{*native, pass}.run(exec, workspace);
  attention_blocked::run<T>("attention_back", exec, pass, workspace);
}

// Takes what a pass takes on so many threads in the way of this process.
template <class T>
void declare_forward(Workspace<Host>& workspace, int threads, const AttentionShape& shape) {
  if constexpr (std::is_same_v<T, bf16>)
    if (const auto* native = passes(shape)) return declare<ForwardSlots>(workspace, *native, shape, threads);
  const attention_blocked::Forward<T> pass{{shape, {}, {}, {}, {}}, {}, {}, {}, 0};
  declare<attention_blocked::WorkerSlots<T>>(workspace, pass, threads);
}
template <class T>
void declare_backward(Workspace<Host>& workspace, int threads, const AttentionShape& shape) {
  if constexpr (std::is_same_v<T, bf16>)
    if (const auto* native = passes(shape)) return declare<BackwardSlots>(workspace, *native, shape, threads);
  const attention_blocked::Backward<T> pass{{shape, {}, {}, {}, {}}, {}, {}, {}, {}, {}, {}};
  declare<attention_blocked::WorkerSlots<T>>(workspace, pass, threads);
}

}  // namespace sestina::attention_native
