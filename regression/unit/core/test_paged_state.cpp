// Preconditioners that lie elsewhere between their uses: the same bits of weights and state for every kind, inline and
// on workers, whatever the streams; and only what is in use has memory.
#include <random>

#include "core/optimizer/base/paged_bytes.hpp"
#include "core/optimizer/matrix_set.hpp"
#include "regression/unit/core/paging_rig.hpp"
#include "regression/unit/linear_algebra.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina::reference {
namespace {

struct PagedKind {
  std::string name;
  std::vector<std::pair<std::string, double>> numbers = {};
  std::vector<std::pair<std::string, std::string>> words = {};
};
const std::vector<PagedKind> paged_kinds = {{"soap"},
                                            {"shampoo"},
                                            {"shampoo", {{"max_dim", 20}, {"packed", 1}}},
                                            {"kl-shampoo"},
                                            {"kl-soap"},
                                            {"soap-muon"},
                                            {"soap", {}, {{"momentum_basis", "rotated"}}},
                                            {"basis-rotation"},
                                            {"galore"},
                                            {"shampoo", {}, {{"root", "eigh"}}},
                                            {"apollo"},
                                            {"basis-rotation", {}, {{"momentum_basis", "rotated"}}},
                                            {"basis-rotation", {}, {{"source", "1st"}}},
                                            {"basis-rotation", {}, {{"source", "1st"}, {"dialect", "release"}}},
                                            {"shampoo", {}, {{"root", "newton"}}}};

using Names = std::vector<std::string>;

MatrixOptions options_of(const PagedKind& kind, std::int64_t staleness, bool paged, const Names& in_memory = {}) {
  MatrixOptions options = default_options(*find_matrix_kind(kind.name));
  for (const auto& [key, value] : kind.numbers) options.set(key, value);
  for (const auto& [key, value] : kind.words) options.set(key, value);
  options.refresh_every = 4;
  options.refresh_staleness = staleness;
  options.tier = paged ? Tier::nvme : Tier::device;
  if (in_memory.empty()) return options;
  for (const std::string& field : paged_fields(*find_matrix_kind(kind.name), options))
    options.field_tiers[field] = std::count(in_memory.begin(), in_memory.end(), field) > 0 ? Tier::host : Tier::nvme;
  return options;
}

// Matrices of two shapes, and gradients that depend on the update alone.
class Paged {
 public:
  Paged(const PagedKind& kind, std::int64_t staleness, bool paged, int streams = 1, int workers = 1,
        const Names& in_memory = {}, std::int64_t reset_every = 0) {
    std::vector<MatrixItem<Host>> items;
    for (std::size_t i = 0; i < 5; ++i) {
      const std::size_t m = i % 2 == 0 ? 24 : 40, n = 32;
      weights_.emplace_back("w", m, n);
      gradients_.emplace_back("g", m, n);
      set_values(weights_.back(), rounded<float>(random_array(m, n, static_cast<unsigned>(i))));
      items.push_back({{"matrix_" + std::to_string(i),
                        Matrix<const float, Host>(gradients_.back().data(), m, n),
                        Matrix<float, Host>(weights_.back().data(), m, n),
                        {}},
                       {0.01, 0.1},
                       static_cast<std::int64_t>(i)});
      items.back().reset_every = reset_every;
    }
    MatrixSetOptions setting;
    setting.options = options_of(kind, staleness, paged, in_memory);
    setting.deterministic = true;
    setting.threads = streams;
    setting.workers.workers = workers;
    set_ = make_matrix_set<Host>(Host(), items, setting);
    if (!paged) return;
    store = std::make_shared<MemoryStore>();
    store->before = [draw = std::mt19937(7)]() mutable {
      std::this_thread::sleep_for(std::chrono::microseconds(draw() % 200));
    };
    pager = std::make_shared<Pager>(store, Pager::Options{});
    set_->page_to(pager);
    pager->open();
    pager->wait_idle();
  }

  // As a checkpoint of update 0 does: all are zeros, and in the store.
  void load_zeros() {
    for (const StateField& field : set_->state()) {
      const auto whole = write_to(field, Pager::Need::room);
      std::memset(whole.view(), 0, field.bytes());
    }
  }

  void step(std::int64_t t) {
    for (std::size_t i = 0; i < gradients_.size(); ++i)
      set_values(gradients_[i], rounded<float>(random_array(gradients_[i].extent(0), gradients_[i].extent(1),
                                                            static_cast<unsigned>(1000 * t + std::int64_t(i)), 0.2)));
    set_->step(t, 1, 1, 0, set_->size());
    Host().fence();
  }
  std::vector<std::vector<double>> weights() const {
    std::vector<std::vector<double>> all;
    for (const auto& w : weights_) all.push_back(values_of(w).values);
    return all;
  }
  // By path, as a checkpoint reads it.
  std::map<std::string, std::vector<std::byte>> state() {
    std::map<std::string, std::vector<std::byte>> all;
    for (const StateField& field : set_->state()) {
      const Pin pin(field.pager, field.data);
      const auto* data = static_cast<const std::byte*>(field.data);
      all[field.path] = {data, data + field.bytes()};
    }
    return all;
  }

  std::shared_ptr<MemoryStore> store;
  std::shared_ptr<Pager> pager;

 private:
  std::vector<Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace>> weights_, gradients_;
  std::unique_ptr<MatrixSet<Host>> set_;
};

TEST(PagedState, EveryKindHasTheSameBits) {
  for (const PagedKind& kind : paged_kinds)
    for (const std::int64_t staleness : {0, 3}) {
      if (staleness > 0 && find_matrix_kind(kind.name)->refresh_needs == nullptr) continue;
      for (const auto [streams, workers] : {std::pair(1, 1), std::pair(2, 3)}) {
        Paged plain(kind, staleness, false, streams, workers), paged(kind, staleness, true, streams, workers);
        for (std::int64_t t = 1; t <= 14; ++t) {
          plain.step(t);
          paged.step(t);
          if (t % 4 == 0) paged.pager->wait_idle();  // so that all have left, however short updates are
          ASSERT_TRUE(plain.weights() == paged.weights()) << kind.name << ", S " << staleness << ", update " << t;
        }
        EXPECT_TRUE(plain.state() == paged.state()) << kind.name << ", S " << staleness;
        EXPECT_GT(paged.store->moved.bytes_read, 0u) << kind.name;
        paged.pager->wait_idle();
        EXPECT_EQ(paged.store->lost, 0) << kind.name << ", S " << staleness << ": written by one who pinned it to read";
      }
    }
}

// The updates after which it starts over are neither those of a period nor those at which a result comes.
TEST(PagedState, StartsOverWhereverItLies) {
  for (const PagedKind& kind : paged_kinds) {
    const std::int64_t staleness = find_matrix_kind(kind.name)->refresh_needs == nullptr ? 0 : 3;
    Paged plain(kind, staleness, false, 2, 2, {}, 6), paged(kind, staleness, true, 2, 2, {}, 6),
        never(kind, staleness, false, 2, 2);
    for (std::int64_t t = 1; t <= 12; ++t) {
      for (Paged* run : {&plain, &paged, &never}) run->step(t);
      if (t % 4 == 0) paged.pager->wait_idle();
      ASSERT_TRUE(plain.weights() == paged.weights()) << kind.name << ", update " << t;
    }
    EXPECT_TRUE(plain.state() == paged.state()) << kind.name;
    EXPECT_FALSE(plain.weights() == never.weights()) << kind.name;
    paged.pager->wait_idle();
    EXPECT_EQ(paged.store->lost, 0) << kind.name << ": written by one who pinned it to read";
  }
}

// First bases and roots of a run that begins with a checkpoint: not the first that is written there.
TEST(PagedState, FirstResultsOfALoadedStateStay) {
  for (const PagedKind& kind : paged_kinds) {
    Paged plain(kind, 0, false), paged(kind, 0, true);
    paged.load_zeros();
    paged.pager->wait_idle();
    for (std::int64_t t = 1; t <= 3; ++t) {
      plain.step(t);
      paged.step(t);
      paged.pager->wait_idle();
    }
    EXPECT_TRUE(plain.weights() == paged.weights()) << kind.name;
    EXPECT_EQ(paged.store->lost, 0) << kind.name;
  }
}

// Some fields on NVMe, others not: those named are there, the rest is what the plan says, and the bits are the same.
TEST(PagedState, ATableOfTiersMovesTheFieldsItNames) {
  for (const PagedKind& kind : paged_kinds) {
    if (find_matrix_kind(kind.name)->refresh_needs == nullptr) continue;
    for (const std::string word : {"factor", "basis", "inverse_root", "snapshot", "projector"}) {
      OptimizerOptions options;
      options.kind = kind.name;
      options.matrix = options_of(kind, 3, true);
      Names fields = paged_fields(*find_matrix_kind(kind.name), *options.matrix), in_memory;
      for (const std::string& field : fields)
        if (field.starts_with(word)) in_memory.push_back(field);
      if (in_memory.empty()) continue;
      options.matrix = options_of(kind, 3, true, in_memory);
      Paged plain(kind, 3, false), paged(kind, 3, true, 1, 1, in_memory);
      for (std::int64_t t = 1; t <= 14; ++t) {
        plain.step(t);
        paged.step(t);
      }
      ASSERT_TRUE(plain.weights() == paged.weights()) << kind.name << " " << word;
      EXPECT_TRUE(plain.state() == paged.state()) << kind.name << " " << word;
      for (const std::string& name : paged.store->names) {
        if (name.starts_with("sestina::"))  // a result under way
          EXPECT_NE(word, "snapshot") << "in the store: " << name;
        else
          EXPECT_FALSE(name.substr(name.find_last_of("/.") + 1).starts_with(word)) << "in the store: " << name;
      }
      EXPECT_FALSE(paged.store->names.empty()) << kind.name << " " << word;
      std::size_t planned = 0;
      for (std::size_t i = 0; i < 5; ++i) {
        TensorSpec spec;
        spec.rows = i % 2 == 0 ? 24 : 40;
        spec.cols = 32;
        const PagedBytes bytes = paged_bytes(spec, options, MemorySpace::host);
        planned += bytes.places;
        EXPECT_EQ(bytes.nvme, bytes.places);
        EXPECT_GT(bytes.resident, 0u);
        EXPECT_EQ(bytes.results > 0, word != "snapshot");
      }
      EXPECT_EQ(planned, paged.pager->bytes()) << kind.name << " " << word;
    }
  }
}

// Places in the store, by matrix.
TEST(PagedState, ThePlanKnowsItsBytes) {
  for (const PagedKind& kind : paged_kinds)
    for (const std::int64_t staleness : {0, 3}) {
      if (staleness > 0 && find_matrix_kind(kind.name)->refresh_needs == nullptr) continue;
      OptimizerOptions options;
      options.kind = kind.name;
      options.matrix = options_of(kind, staleness, true);
      std::size_t planned = 0;
      for (std::size_t i = 0; i < 5; ++i) {
        TensorSpec spec;
        spec.rows = i % 2 == 0 ? 24 : 40;
        spec.cols = 32;
        planned += paged_bytes(spec, options, MemorySpace::host).places;
      }
      EXPECT_EQ(planned, Paged(kind, staleness, true).pager->bytes()) << kind.name << ", S " << staleness;
    }
}

// Updates read bases, roots and projectors: those are written back when they are new, and only then.
TEST(PagedState, WhatAnUpdateOnlyReadsIsNotWritten) {
  for (const PagedKind& kind : paged_kinds) {
    Paged run(kind, 0, true);
    for (std::int64_t t = 1; t <= 9; ++t) {  // refreshes: 1, 5, 9 or 4, 8
      run.step(t);
      run.pager->wait_idle();
    }
    run.store->written.clear();
    run.store->moved = {};
    run.step(10);
    run.pager->wait_idle();
    const auto is_result = [](const std::string& name) {
      const std::string_view field = field_of_block(std::string_view(name).substr(name.rfind('/') + 1));
      return field.starts_with("basis") || field.starts_with("inverse_root") || field.starts_with("projector");
    };
    for (const std::string& name : run.store->written) EXPECT_FALSE(is_result(name)) << kind.name << ": " << name;
    const bool any = std::any_of(run.store->names.begin(), run.store->names.end(), is_result);
    EXPECT_EQ(run.store->moved.bytes_same > 0, any) << kind.name;
  }
}

TEST(PagedState, OnlyWhatIsInUseIsInMemory) {
  Paged run({"soap"}, 3, true, 1, 1);
  for (std::int64_t t = 1; t <= 14; ++t) {
    run.step(t);
    EXPECT_LE(run.pager->counts().in_memory, run.pager->limit());
  }
  run.pager->wait_idle();
  const Pager::Counts counts = run.pager->counts();
  EXPECT_LE(counts.largest, run.pager->limit());
  // The first matrices wait for the next update, as many as the limit has room for.
  EXPECT_LT(counts.in_memory, run.pager->bytes() / 2);
  EXPECT_LE(counts.in_memory, run.pager->limit());
  EXPECT_FALSE(counts.abandoned);
}

TEST(PagedState, FailingReadsEndTheUpdateWithTheNameOfTheField) {
  Paged run({"soap"}, 0, true);
  run.step(1);
  run.pager->wait_idle();
  run.store->fails = [](const BlockStore::Transfer& t) { return !t.writes; };
  try {
    run.step(2);
    run.step(3);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_error);
    EXPECT_NE(std::string(error.what()).find("/optimizer/matrix_"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sestina::reference
