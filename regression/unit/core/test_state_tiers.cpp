// Moments and momenta that lie in a store between their uses (optimizer.state_tier): with a quarter of them in memory,
// the same bits of weights and state after 50 updates; what is planned; and one tensor that is larger than the budget.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "core/optimizer/base/paged_bytes.hpp"
#include "core/optimizer/matrix_set.hpp"
#include "core/optimizer/methods/adamw.hpp"
#include "core/stage.hpp"
#include "regression/unit/core/keys_by_name.hpp"
#include "regression/unit/core/paging_rig.hpp"

namespace sestina::reference {
namespace {

using Bytes = std::map<std::string, std::vector<std::byte>>;  // of state, by path

Bytes read_fields(const std::vector<StateField>& fields) {
  Bytes all;
  for (const StateField& field : fields) {
    all[field.path].resize(field.bytes());
    copy_to_host(Host(), field, all[field.path].data());
  }
  return all;
}

// Numbers that depend on their place and the update alone.
void fill(Kokkos::View<float*, Kokkos::HostSpace> x, int t) {
  for (std::size_t i = 0; i < x.size(); ++i)
    x(i) = static_cast<float>((i * 2654435761u + static_cast<std::size_t>(t) * 40503u) % 1009) * 1e-3f - 0.5f;
}

TensorSpec spec_of(const std::string& name, std::int64_t rows, std::int64_t cols, Role role = Role::matrix) {
  TensorSpec spec;
  spec.name = name;
  spec.rows = rows;
  spec.cols = cols;
  spec.role = role;
  return spec;
}

// Tensors one after the other in memory under the elementwise rule, with T their weights.
template <class T>
class Elements {
 public:
  Elements(const std::vector<TensorSpec>& specs, const OptimizerOptions& options, std::size_t most = 0)
      : size_(elements(specs)), gradient_("g", size_), master_("m", size_), weight_("w", size_) {
    fill(master_, 0);
    std::vector<OwnedTensor<Host, T>> tensors;
    std::size_t at = 0;
    for (const TensorSpec& spec : specs) {
      const auto n = static_cast<std::size_t>(spec.elements());
      tensors.push_back(
          {spec, Vector<const float, Host>(gradient_.data() + at, n), Vector<float, Host>(master_.data() + at, n), {}});
      if constexpr (std::is_same_v<T, bf16>) tensors.back().weight = Vector<T, Host>(weight_.data() + at, n);
      at += n;
    }
    optimizer = std::make_unique<AdamW<Host, T>>(Host(), tensors, options);
    if (options.state_tier == Tier::device) return;
    pager = std::make_shared<Pager>(store, Pager::Options{.most = most});
    optimizer->page_to(pager);
    pager->open();
  }
  static std::size_t elements(const std::vector<TensorSpec>& specs) {
    std::size_t sum = 0;
    for (const TensorSpec& spec : specs) sum += static_cast<std::size_t>(spec.elements());
    return sum;
  }
  void step(int t) {
    fill(gradient_, t);
    optimizer->step(Host(), t, 1, 1);
  }
  std::vector<float> masters() const { return {master_.data(), master_.data() + size_}; }
  std::vector<float> weights() const {
    std::vector<float> all;
    for (std::size_t i = 0; i < size_; ++i) all.push_back(static_cast<float>(weight_(i)));
    return all;
  }

 private:
  std::size_t size_;
  Kokkos::View<float*, Kokkos::HostSpace> gradient_, master_;
  Kokkos::View<T*, Kokkos::HostSpace> weight_;

 public:
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::shared_ptr<Pager> pager;  // null: all is in memory
  std::unique_ptr<AdamW<Host, T>> optimizer;
};

std::vector<TensorSpec> layers() {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 14; ++i) {
    specs.push_back(spec_of(fmt::format("w{}", i), 32, 64));
    specs.push_back(spec_of(fmt::format("norm{}", i), 64, 1, Role::vector));
  }
  specs[4].reset_every = 6;  // its moments start over
  return specs;
}

template <class T>
void expect_same_bits(OptimizerOptions options, int updates) {
  const std::vector<TensorSpec> specs = layers();
  Elements<T> plain(specs, options);
  options.state_tier = Tier::nvme;
  PagedBytes planned;
  for (const TensorSpec& spec : specs)
    planned.add(paged_bytes(spec, spec.rows, spec.cols, options, sizeof(float), MemorySpace::host));
  const std::size_t budget = planned.places / 4;
  Elements<T> paged(specs, options, budget);
  EXPECT_EQ(paged.pager->bytes(), planned.places);
  EXPECT_EQ(paged.pager->working(), pieces_at_work(planned.piece));
  for (int t = 1; t <= updates; ++t) {
    plain.step(t);
    paged.step(t);
    EXPECT_LE(paged.pager->counts().in_memory, budget) << "during the passes after update " << t;
  }
  const std::string rule(name(options.adamw.rule));
  EXPECT_TRUE(plain.masters() == paged.masters()) << rule;
  EXPECT_TRUE(plain.weights() == paged.weights()) << rule;
  EXPECT_TRUE(read_fields(plain.optimizer->state()) == read_fields(paged.optimizer->state())) << rule;
  paged.pager->wait_idle();
  EXPECT_LE(paged.pager->counts().largest, budget) << rule;
  EXPECT_GT(paged.store->moved.bytes_read, static_cast<std::size_t>(updates) * planned.state / 4) << rule;
  EXPECT_EQ(paged.store->lost, 0) << rule;
  for (const std::string& name : paged.store->names) EXPECT_EQ(name.find("norm"), std::string::npos) << name;
}

TEST(StateTiers, AQuarterOfTheMomentsInMemoryChangesNoBit) {
  OptimizerOptions options;
  options.adamw.weight_decay = 0.1;
  expect_same_bits<float>(options, 50);
  expect_same_bits<bf16>(options, 50);
}

// A layer that is merged early after updates 5 and 10 is as one whose merges are due then; its neighbour in another
// layer, which could be, goes on.
TEST(StateTiers, StateStartsOverAfterEarlyMerges) {
  for (const ElementRule rule :
       {ElementRule::adamw, ElementRule::lion, ElementRule::ademamix, ElementRule::schedule_free}) {
    OptimizerOptions options;
    options.adamw.rule = rule;
    std::vector<TensorSpec> specs = layers();
    specs[4].reset_every = 5;
    Elements<float> due(specs, options);
    for (const int i : {4, 6}) {
      TensorSpec& spec = specs[static_cast<std::size_t>(i)];
      spec.reset_every = 100;
      spec.resets_early = true;
      spec.layer = i == 4 ? 1 : 0;
    }
    LayerMerges early = {0, 0};
    Elements<float> bounded(specs, options);
    bounded.optimizer->follow_merges(&early);
    for (int t = 1; t <= 12; ++t) {
      due.step(t);
      bounded.step(t);
      if (t % 5 == 0) early[1] = t;
      EXPECT_TRUE(due.masters() == bounded.masters()) << name(rule) << ", update " << t;
    }
  }
}

TEST(StateTiers, OtherElementwiseRulesHaveTheirBitsToo) {
  for (const ElementRule rule : {ElementRule::lion, ElementRule::ademamix, ElementRule::schedule_free}) {
    OptimizerOptions options;
    options.adamw.rule = rule;
    expect_same_bits<bf16>(options, 9);
  }
  OptimizerOptions coded;
  coded.state_bits = 8;
  expect_same_bits<float>(coded, 9);
}

// Two pieces of 8 MiB for each moment, of which some rows lie in both.
TEST(StateTiers, OneTensorMayBeLargerThanTheBudget) {
  const std::vector<TensorSpec> specs = {spec_of("model.embed_tokens.weight", 2101, 1001, Role::embedding)};
  OptimizerOptions options;
  Elements<float> plain(specs, options);
  options.state_tier = Tier::nvme;
  Elements<float> paged(specs, options);
  EXPECT_EQ(paged.store->names.size(), 4u);
  const PagedBytes planned = paged_bytes(specs[0], 2101, 1001, options, sizeof(float), MemorySpace::host);
  EXPECT_EQ(paged.pager->bytes(), planned.places);
  EXPECT_EQ(planned.piece, 2 * field_piece_bytes);
  for (int t = 1; t <= 2; ++t) {
    plain.step(t);
    paged.step(t);
  }
  EXPECT_TRUE(plain.masters() == paged.masters());
  const Bytes state = read_fields(plain.optimizer->state());
  EXPECT_TRUE(state == read_fields(paged.optimizer->state()));
  for (const StateField& field : paged.optimizer->state()) {  // as a load does: in pieces by rows
    const Pin block(field.pager, field.data, Pager::Need::room);
    for_each_rows(field, [&](const StateField& rows) {
      const std::vector<std::byte> ones(rows.bytes(), std::byte{1});
      copy_from_host(Host(), rows, ones.data());
    });
  }
  for (const auto& [path, bytes] : read_fields(paged.optimizer->state()))
    EXPECT_TRUE(bytes == std::vector<std::byte>(bytes.size(), std::byte{1})) << path;
}

TEST(StateTiers, ABudgetThatIsTooSmallIsAnErrorWithNumbers) {
  OptimizerOptions options;
  options.state_tier = Tier::nvme;
  try {
    Elements<float> refused(layers(), options, 8192);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_deck);
    EXPECT_NE(std::string(error.what()).find("8192 bytes are too few: updates have 49152 bytes of optimizer state"),
              std::string::npos)
        << error.what();
  }
}

// Matrices under a matrix optimizer, whose preconditioners lie in memory or with their moments.
class Matrices {
 public:
  static constexpr std::size_t count = 14, rows = 24, cols = 32;
  Matrices(const MatrixOptions& options, std::size_t most = 0) : gradient_("g", size), weight_("w", size) {
    fill(weight_, 0);
    std::vector<MatrixItem<Host>> items;
    for (std::size_t i = 0; i < count; ++i) {
      items.push_back({{"matrix_" + std::to_string(i),
                        Matrix<const float, Host>(gradient_.data() + i * rows * cols, rows, cols),
                        Matrix<float, Host>(weight_.data() + i * rows * cols, rows, cols),
                        {}},
                       {0.01, 0.1},
                       static_cast<std::int64_t>(i)});
      if (i % 3 == 0) items.back().reset_every = 6;  // as that of rotations, which merges end
    }
    MatrixSetOptions setting;
    setting.options = options;
    setting.deterministic = true;
    setting.threads = 1;
    set = make_matrix_set<Host>(Host(), items, setting);
    if (options.state_tier == Tier::device) return;
    pager = std::make_shared<Pager>(store, Pager::Options{.most = most});
    set->page_to(pager);
    pager->open();
  }
  void step(int t) {
    fill(gradient_, t);
    set->step(t, 1, 1, 0, count);
    Host().fence();
  }
  std::vector<float> weights() const { return {weight_.data(), weight_.data() + size}; }

 private:
  static constexpr std::size_t size = count * rows * cols;
  Kokkos::View<float*, Kokkos::HostSpace> gradient_, weight_;

 public:
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::shared_ptr<Pager> pager;  // null: all is in memory
  std::unique_ptr<MatrixSet<Host>> set;
};

PagedBytes planned_bytes(const MatrixOptions& matrix) {
  OptimizerOptions options;
  options.kind = matrix.kind;
  options.matrix = matrix;
  options.state_tier = matrix.state_tier;
  PagedBytes all;
  for (std::size_t i = 0; i < Matrices::count; ++i)
    all.add(paged_bytes(spec_of("w", Matrices::rows, Matrices::cols), options, MemorySpace::host));
  return all;
}

// Returns the paged run, after comparing it.
void expect_same_matrices(MatrixOptions options, Tier preconditioners, int updates) {
  Matrices plain(options);
  options.state_tier = Tier::nvme;
  options.tier = preconditioners;
  const PagedBytes planned = planned_bytes(options);
  const std::size_t budget = planned.places / 4;
  Matrices paged(options, budget);
  EXPECT_EQ(paged.pager->bytes(), planned.places) << options.kind;
  for (int t = 1; t <= updates; ++t) {
    plain.step(t);
    paged.step(t);
    EXPECT_LE(paged.pager->counts().in_memory, budget) << options.kind << ", after update " << t;
  }
  EXPECT_TRUE(plain.weights() == paged.weights()) << options.kind;
  EXPECT_TRUE(read_fields(plain.set->state()) == read_fields(paged.set->state())) << options.kind;
  paged.pager->wait_idle();
  EXPECT_LE(paged.pager->counts().largest, budget) << options.kind;
  EXPECT_GT(paged.store->moved.bytes_read, 0u) << options.kind;
  EXPECT_EQ(paged.store->lost, 0) << options.kind;
  bool any = false;
  for (const std::string& name : paged.store->names) any = any || name.find("/momentum") != std::string::npos;
  EXPECT_TRUE(any) << options.kind;
}

TEST(StateTiers, MomentaOfMatricesTakeNoBitWithThem) {
  for (const auto& [kind, preconditioners] :
       {std::pair("muon", Tier::device), std::pair("soap", Tier::device), std::pair("soap", Tier::nvme)}) {
    MatrixOptions options = default_options(*find_matrix_kind(kind));
    options.refresh_every = 4;
    expect_same_matrices(options, preconditioners, 50);
  }
}

// On a host unified memory is its own: nothing is in a pager, and the bits are those of state without a tier.
TEST(StateTiers, UnifiedMemoryOfAHostIsItsOwn) {
  constexpr int updates = 12;
  OptimizerOptions options, unified;
  unified.state_tier = Tier::unified;
  const std::vector<TensorSpec> specs = layers();
  Elements<bf16> plain(specs, options), other(specs, unified);
  for (int t = 1; t <= updates; ++t) {
    plain.step(t);
    other.step(t);
  }
  EXPECT_EQ(other.pager->bytes(), 0u);
  EXPECT_TRUE(plain.masters() == other.masters());
  EXPECT_TRUE(plain.weights() == other.weights());
  EXPECT_TRUE(read_fields(plain.optimizer->state()) == read_fields(other.optimizer->state()));
  for (const auto& [kind, staleness] : {std::pair("muon", 0), std::pair("soap", 0), std::pair("soap", 3)}) {
    MatrixOptions matrix = default_options(*find_matrix_kind(kind));
    matrix.refresh_every = 4;
    matrix.refresh_staleness = staleness;
    Matrices before(matrix);
    matrix.state_tier = matrix.tier = Tier::unified;
    Matrices after(matrix);
    for (int t = 1; t <= updates; ++t) {
      before.step(t);
      after.step(t);
    }
    EXPECT_EQ(after.pager->bytes(), 0u) << kind;
    EXPECT_EQ(planned_bytes(matrix).state, 0u) << kind;
    EXPECT_TRUE(before.weights() == after.weights()) << kind << ", S " << staleness;
    EXPECT_TRUE(read_fields(before.set->state()) == read_fields(after.set->state())) << kind << ", S " << staleness;
  }
}

// Also what a kind has in addition to a momentum, and codes of 8 bits.
TEST(StateTiers, EveryKindHasTheSameBits) {
  for (const MatrixKind& kind : matrix_kinds())
    for (const int bits : {32, 8}) {
      MatrixOptions options = default_options(kind);
      options.refresh_every = 4;
      options.state_bits = bits;
      if (bits == 8 && kind.name != "galore") continue;
      expect_same_matrices(options, Tier::nvme, 9);
    }
}

// Makes updates until the order of use is known, and looks at what each later one reads, together with what is read
// ahead for the next: what has no room to stay, and one block at most in addition. Between two updates somebody reads
// all of it now and then, as a checkpoint does.
template <class Run>
void expect_read_once(Run& run, const std::vector<StateField>& fields, const std::string& what) {
  const std::size_t stays = run.pager->limit() - run.pager->working(), all = run.pager->bytes();
  std::size_t largest = 0;
  for (const std::vector<std::byte>& place : run.store->kept) largest = std::max(largest, whole_pages(place.size()));
  ASSERT_LT(stays, all / 4) << what;
  for (int t = 1; t <= 24; ++t) {
    if (t % 9 == 0) read_fields(fields);
    run.pager->wait_idle();
    const std::size_t before = run.store->moved.bytes_read;
    run.step(t);
    run.pager->wait_idle();
    if (t > 2) EXPECT_LE(run.store->moved.bytes_read - before, all - stays + largest) << what << ", update " << t;
  }
  EXPECT_LE(run.pager->counts().largest, run.pager->limit()) << what;
}

TEST(StateTiers, NoBlockIsReadTwiceInAnUpdate) {
  OptimizerOptions options;
  options.state_tier = Tier::nvme;
  const std::vector<TensorSpec> specs = layers();
  PagedBytes planned;
  for (const TensorSpec& spec : specs)
    planned.add(paged_bytes(spec, spec.rows, spec.cols, options, sizeof(float), MemorySpace::host));
  Elements<float> moments(specs, options, planned.places / 4);
  expect_read_once(moments, moments.optimizer->state(), "AdamW");
  for (const auto& [kind, preconditioners] :
       {std::pair("muon", Tier::device), std::pair("soap", Tier::device), std::pair("soap", Tier::nvme)}) {
    MatrixOptions matrix = default_options(*find_matrix_kind(kind));
    matrix.refresh_every = 4;
    matrix.state_tier = Tier::nvme;
    matrix.tier = preconditioners;
    Matrices matrices(matrix, planned_bytes(matrix).places / 4);
    expect_read_once(matrices, matrices.set->state(), kind);
  }
}

// All of it, where it fits: nothing moves but what the budget forbids.
TEST(StateTiers, WhatFitsTheBudgetDoesNotMove) {
  OptimizerOptions options;
  options.state_tier = Tier::nvme;
  PagedBytes planned;
  for (const TensorSpec& spec : layers())
    planned.add(paged_bytes(spec, spec.rows, spec.cols, options, sizeof(float), MemorySpace::host));
  Elements<float> moments(layers(), options, planned.places);
  for (int t = 1; t <= 5; ++t) moments.step(t);
  moments.pager->wait_idle();
  EXPECT_EQ(moments.store->moved.bytes_read + moments.store->moved.bytes_written, 0u);
}

// Matrices and vectors own blocks of one pager. Those of the one that goes first are there as long as the other's are
// moved: the pager may still write them, and gives back what lies behind their addresses at the end.
TEST(StateTiers, MemoryStaysUntilTheLastOwnerHasGone) {
  bool gone = false;
  auto pager = std::make_shared<Pager>(std::make_shared<MemoryStore>(), Pager::Options{});
  const auto page = page_memory(4096), second = page_memory(4096);
  pager->add("of the first", {page.get(), [page, &gone](std::byte*) { gone = true; }}, 4096);
  pager->add("of the second", second, 4096);
  pager->attach();
  pager->attach();
  pager->open();
  { const Pin pin(pager.get(), page.get()); }
  EXPECT_TRUE(pager->detach());
  EXPECT_FALSE(gone);
  { const Pin pin(pager.get(), second.get()); }
  EXPECT_TRUE(pager->detach());
  EXPECT_FALSE(gone);
  pager.reset();
  EXPECT_TRUE(gone);
}

}  // namespace
}  // namespace sestina::reference
