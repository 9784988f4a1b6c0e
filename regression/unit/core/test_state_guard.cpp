// State that may lie elsewhere between its uses: whoever writes it cannot forget to say so.
#include <concepts>
#include <cstring>
#include <type_traits>

#include "core/memory/matrix_state.hpp"
#include "regression/unit/core/paging_rig.hpp"
#include "regression/unit/linear_algebra.hpp"

namespace sestina::reference {
namespace {

using State = MatrixState<Serial>;
using Guard = decltype(std::declval<const State&>().write("basis_left"));

template <class Source>
concept ReadsConstants = requires(const Source& source) {
  { source.read("basis_left") } -> std::same_as<Matrix<const float, Serial>>;
};
template <class Owner>
concept GivesViewOnce = requires {
  std::declval<Owner>().view();
};  // and is gone by then
template <class Field>
concept TakesBytes = requires(Field field, const void* bytes) {
  std::memcpy(field.data, bytes, 1);
};

static_assert(ReadsConstants<State>);
static_assert(std::same_as<decltype(StateArray<Serial>().read()), Matrix<const float, Serial>>);
static_assert(!std::is_copy_constructible_v<Guard> && !std::is_move_constructible_v<Guard>);
static_assert(!std::is_copy_assignable_v<Guard> && !std::is_move_assignable_v<Guard>);
static_assert(GivesViewOnce<const Guard&> && !GivesViewOnce<Guard>);
static_assert(!TakesBytes<StateField>);

constexpr std::int64_t side = 64;
const std::vector<FieldSize> sizes = {{"momentum", DType::f32, side, side},
                                      {"factor_left", DType::f32, side, side, false, FieldUse::update},
                                      {"basis_left", DType::f32, side, side, false, FieldUse::result}};

// A matrix whose pages have memory while they are pinned alone.
struct Away {
  Away() {
    std::size_t all = 0;
    for (Page& page : state.pages()) {
      page.pager = pager;
      pager->add(page.name, page.memory, page.bytes);
      all += pager->whole(page.bytes);
    }
    pager->need(all, 0);
    pager->attach();
    pager->open();
    fill("factor_left", 1);
    fill("basis_left", 1);
    leave();
    EXPECT_EQ(store->written.size(), 2u);
  }
  ~Away() { pager->detach(); }
  void fill(const char* name, float value) {
    const auto whole = state.write(name, Pager::Need::room);
    Kokkos::deep_copy(whole.view(), value);
  }
  void leave() { pager->wait_idle(); }  // all pages, which come again where an update is to follow
  float first(const char* name) {
    const StateArray<Serial> array = state.array(name);
    const Pin pin = array.pin();
    return array.read()(0, 0);
  }

  State state{Serial(), sizes, "/optimizer/w"};
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::shared_ptr<Pager> pager = std::make_shared<Pager>(store, Pager::Options{});
};

// An update has its bases in memory to be read: what a refresh writes there meanwhile is new all the same.
TEST(StateGuard, WhatIsWrittenIsThereAfterTheFieldWasAway) {
  Away run;
  for (const char* name : {"basis_left", "factor_left"}) {
    const std::uint64_t read = run.store->moved.bytes_read;
    {
      const InUse update(run.state.pages());
      const auto array = run.state.write(name);
      array.view()(0, 0) = 2;
    }
    run.leave();
    EXPECT_EQ(run.first(name), 2) << name;
    run.leave();
    EXPECT_GT(run.store->moved.bytes_read, read) << name << " has not been away";
  }
  for (const StateField& field : run.state.fields()) {
    {
      const InUse update(run.state.pages());
      const auto bytes = write_to(field);
      const float three = 3;
      std::memcpy(bytes.view(), &three, sizeof three);
    }
    run.leave();
  }
  for (const char* name : {"basis_left", "factor_left"}) EXPECT_EQ(run.first(name), 3) << name;
  run.leave();
  EXPECT_EQ(run.state.matrix("momentum")(0, 0), 3);
  EXPECT_EQ(run.store->lost, 0);
}

TEST(StateGuard, OutsideOfUpdatesItBringsTheFieldBack) {
  Away run;
  for (const char* name : {"basis_left", "factor_left"}) {
    {
      const auto array = run.state.write(name);
      EXPECT_EQ(array.view()(1, 1), 1) << name;
      array.view()(0, 0) = 2;
    }
    run.leave();
    EXPECT_EQ(run.first(name), 2) << name;
    run.leave();
  }
}

// Factors are written in every update, which has them in use for that already.
TEST(StateGuard, WhatAnUpdateWritesIsPinnedOnce) {
  Away run;
  const InUse update(run.state.pages());
  const std::uint64_t pins = run.pager->counts().pins;
  { const auto factor = run.state.write("factor_left"); }
  EXPECT_EQ(run.pager->counts().pins, pins);
  { const auto basis = run.state.write("basis_left"); }
  EXPECT_EQ(run.pager->counts().pins, pins + 1);
}

// Also of a run that pages nothing: no test has to page to find it.
TEST(StateGuard, AFieldThatMayLieElsewhereHasNoOtherView) {
  std::vector<FieldSize> at_hand = sizes;
  for (FieldSize& size : at_hand) size.tier = Tier::device;
  State state(Serial(), at_hand, "/optimizer/w");
  EXPECT_TRUE(state.pages().empty());
  EXPECT_NO_THROW(state.matrix("momentum"));
  for (const char* name : {"basis_left", "factor_left"}) {
    EXPECT_THROW(state.matrix(name), Error) << name;
    EXPECT_THROW(state.vector(name), Error) << name;
    const auto array = state.write(name);
    array.view()(0, 0) = 2;
    EXPECT_EQ(state.read(name)(0, 0), 2) << name;
  }
}

}  // namespace
}  // namespace sestina::reference
