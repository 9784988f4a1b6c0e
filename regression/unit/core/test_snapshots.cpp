// Copies of factors for workers are packed: in fp32 what comes of them has the bits of the whole factor, in bf16 those
// of the factor with each number rounded; what a worker is asked for is all that an inline refresh does.
#include "core/optimizer/refresh/refresh_workers.hpp"
#include "regression/unit/core/matrix_rig.hpp"
#include "regression/unit/core/refresh_rig.hpp"

namespace sestina::reference {
namespace {

constexpr std::int64_t period = 4, late = 2;

MatrixOptions snapshot_options(const std::string& kind, bool in_bf16) {
  MatrixOptions options = default_options(*find_matrix_kind(kind));
  options.refresh_every = period;
  options.refresh_staleness = late;
  options.snapshot_bf16 = in_bf16;
  return options;
}

template <class Space>
struct SnapshotRig : MatrixRig<Space> {
  explicit SnapshotRig(const MatrixOptions& options) : MatrixRig<Space>(options, 12, 8) {
    const RefreshNeeds needs = refresh_needs(options, 12, 8);
    workers = std::make_unique<RefreshWorkers>(WorkerPool::Options{.workers = 1}, needs.scratch, needs.jobs, true);
    this->stream.refresh.workers = workers.get();
  }
  // Makes updates until one has sent a copy.
  void run_until_sent() {
    do this->step(gradient_at(12, 8, static_cast<unsigned>(this->calls)));
    while (this->optimizer->state().counter("dispatched") == 0);
  }
  std::unique_ptr<RefreshWorkers> workers;  // ends before what it works for
};

// One step of power iteration on a core, as workers make it.
Array stepped(const Array& factor, const Array& basis, double shift) {
  Stream<Serial> stream{Serial(), Gemm<Serial>(Serial(), true),
                        Workspace<Serial>(bytes_taken<Serial>([&](auto& counter) {
                          declare_refresh<Serial>(counter, RefreshMethod::power_qr, factor.rows);
                        }))};
  const Field<float, Serial> k(factor), q(basis);
  const Kokkos::View<std::int32_t*, Kokkos::HostSpace> order("order", factor.rows);
  RefreshJob<Serial> job = job_in_place(RefreshMethod::power_qr, k, q);
  job.order = Vector<std::int32_t, Serial>(order.data(), order.extent(0));
  job.shift = shift;
  EXPECT_EQ(compute_refresh(stream, job), Refreshed::done);
  return q.get();
}

template <class Space>
class Snapshots : public testing::Test {};
TYPED_TEST_SUITE(Snapshots, StreamSpaces, SpaceNames);

TYPED_TEST(Snapshots, AWorkersBasisIsThatOfTheWholeFactor) {
  for (const bool in_bf16 : {false, true})
    for (const double shift : {0.0, 0.25}) {  // SOAP-Muon alone shifts
      MatrixOptions options = snapshot_options(shift > 0 ? "soap-muon" : "soap", in_bf16);
      if (shift > 0) options.set("basis_shift", shift);
      SnapshotRig<TypeParam> rig(options);
      rig.run_until_sent();
      for (const std::string side : {"left", "right"}) {
        const Array factor = rig.field("factor_" + side), basis = rig.field("basis_" + side);
        const Array want = stepped(in_bf16 ? rounded<bf16>(factor) : factor, basis, shift);
        SnapshotRig<TypeParam> copy(options);
        copy.calls = rig.calls;
        hand_over<TypeParam>(rig, copy);
        for (int i = 0; i < late; ++i) copy.step(gradient_at(12, 8, static_cast<unsigned>(copy.calls)));
        EXPECT_EQ(copy.field("basis_" + side).values, want.values) << side << ", bf16: " << in_bf16 << ", " << shift;
        if (in_bf16) EXPECT_NE(stepped(factor, basis, shift).values, want.values) << side;
      }
    }
}

// Every kind goes on from a copy in flight, whatever its form, to the same bits.
TYPED_TEST(Snapshots, InBf16TheyAreStateToo) {
  for (const std::string kind : {"soap", "kl-shampoo", "basis-rotation", "shampoo"}) {
    const MatrixOptions options = snapshot_options(kind, true);
    SnapshotRig<TypeParam> whole(options), second(options);
    whole.run_until_sent();
    second.calls = whole.calls;
    hand_over<TypeParam>(whole, second);
    bool found = false;
    for (const StateField& field : whole.optimizer->state().fields()) {
      if (!field.path.ends_with("snapshot_left")) continue;
      found = true;
      EXPECT_EQ(field.dtype, DType::bf16) << kind;
      EXPECT_EQ(field.shape, std::vector<std::int64_t>{78}) << kind;
      EXPECT_EQ(field.bytes(), 156u) << kind;
    }
    EXPECT_TRUE(found) << kind;
    for (int i = 0; i < 2 * period; ++i) {
      const Array g = gradient_at(12, 8, static_cast<unsigned>(whole.calls));
      EXPECT_EQ(second.step(g).values, whole.step(g).values) << kind << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace sestina::reference
