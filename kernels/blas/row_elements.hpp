// Passes over the elements of several rows of one length. A thread of a device reads and writes 16 bytes of a row at a
// time (of the rows with wider elements several times 16), and single elements at the ends of rows, and where one of
// them does not begin at a multiple of 16 bytes; a host's loops are those of `each` and `sum_over`, and its bits are
// too. What is computed of elements is written once, and names none of this.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/blas/rows.hpp"

namespace sestina {

// A row that a pass writes and does not read. Other rows are pointers: those to const are read, the others both.
template <class T>
struct Written {
  T* data;
  KOKKOS_FORCEINLINE_FUNCTION explicit Written(T* row) : data(row) {}
};

// Rows of one length, one for each group: that of group g begins g * apart elements after the first one's.
template <class T>
struct GroupRows {
  T* first;
  std::int64_t apart;
  KOKKOS_FORCEINLINE_FUNCTION GroupRows(T* row, std::int64_t distance) : first(row), apart(distance) {}
};

template <class T>
KOKKOS_FORCEINLINE_FUNCTION T* elements_of(T* row) {
  return row;
}
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T* elements_of(Written<T> row) {
  return row.data;
}
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T* row_of_group(const GroupRows<T>& rows, int group) {
  return rows.first + group * rows.apart;
}

template <class Row>
using ElementOf = std::remove_cvref_t<decltype(*elements_of(std::declval<Row>()))>;

inline constexpr int piece_bytes = 16;
// The elements of a piece: those of the narrowest row are 16 bytes.
template <class... Rows>
inline constexpr int piece_width = piece_bytes / static_cast<int>(std::min({sizeof(ElementOf<Rows>)...}));

// Returns whether an address, or the distance of two rows in bytes, is a multiple of 16 bytes.
KOKKOS_FORCEINLINE_FUNCTION bool is_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % piece_bytes == 0;
}
template <class T>
KOKKOS_FORCEINLINE_FUNCTION bool is_aligned(const GroupRows<T>& rows) {
  return is_aligned(rows.first) && rows.apart * static_cast<std::int64_t>(sizeof(T)) % piece_bytes == 0;
}

// What a device moves at once.
struct alignas(piece_bytes) [[gnu::may_alias]] PieceWords {
  std::uint32_t word[piece_bytes / 4];
};

// Piece `number` of a row, read where the row is read, and written by `store` where it is written. Places are counted
// in words, from which compilers see that they are multiples of 16 bytes.
template <class Row, int width>
struct RowPiece {
  using T = ElementOf<Row>;
  static constexpr bool is_read = std::is_pointer_v<Row>;
  static constexpr bool is_written =
      !std::is_const_v<std::remove_reference_t<decltype(*elements_of(std::declval<Row>()))>>;
  static constexpr int moves = width * static_cast<int>(sizeof(T)) / piece_bytes, of_move = width / moves;
  using Words = std::conditional_t<is_written, PieceWords, const PieceWords>;

  Words* place;
  T value[width];

  KOKKOS_FORCEINLINE_FUNCTION RowPiece(Row row, int number)
      : place(reinterpret_cast<Words*>(elements_of(row)) + number * moves) {
    if constexpr (is_read) {
      for (int i = 0; i < moves; ++i) {
        const PieceWords words = place[i];
        __builtin_memcpy(value + i * of_move, &words, piece_bytes);
      }
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void store() const {
    if constexpr (is_written) {
      for (int i = 0; i < moves; ++i) {
        PieceWords words;
        __builtin_memcpy(&words, value + i * of_move, piece_bytes);
        place[i] = words;
      }
    }
  }
};

template <int number, class Body, class... Piece>
KOKKOS_FORCEINLINE_FUNCTION void apply_at(const Body& body, Piece&... piece) {
  body(piece.value[number]...);
}
template <class Body, int... number, class... Piece>
KOKKOS_FORCEINLINE_FUNCTION void apply_at_all(std::integer_sequence<int, number...>, const Body& body,
                                              Piece&... piece) {
  (apply_at<number>(body, piece...), ...);
}
// Calls body for each element of pieces that were all read before, and writes them. Elements are numbered by constants,
// so that all of them are in registers.
template <int width, class Body, class... Rows>
KOKKOS_FORCEINLINE_FUNCTION void apply_to(const Body& body, RowPiece<Rows, width>... piece) {
  apply_at_all(std::make_integer_sequence<int, width>(), body, piece...);
  (piece.store(), ...);
}

// How a row of n elements is walked: whole pieces, then single elements. No pieces where rows do not begin evenly.
template <int width>
struct RowWalk {
  int pieces, count;
  KOKKOS_FORCEINLINE_FUNCTION RowWalk(int n, bool aligned)
      : pieces(aligned ? n / width : 0), count(pieces + n - pieces * width) {}
  KOKKOS_FORCEINLINE_FUNCTION bool is_piece(int number) const { return number < pieces; }
  KOKKOS_FORCEINLINE_FUNCTION int single(int number) const { return number + pieces * (width - 1); }
};

// Calls body(x[j], y[j], ...) for the rows x, y, ... (n) and each j, in any order: with references to the elements,
// which it writes where the row is written. Rows may be the same, and may not overlap otherwise. Which thread of a team
// takes an element depends on the rows: between two passes over what one of them writes there is a `sync`.
template <class Body, class... Rows>
KOKKOS_FORCEINLINE_FUNCTION void each_element(const HostLane& lane, int n, const Body& body, Rows... rows) {
  each(lane, n, [&](int j) { body(elements_of(rows)[j]...); });
}
template <class Member, class Body, class... Rows>
KOKKOS_FORCEINLINE_FUNCTION void each_element(const Member& team, int n, const Body& body, Rows... rows) {
  constexpr int width = piece_width<Rows...>;
  const RowWalk<width> walk(n, (is_aligned(elements_of(rows)) && ...));
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, walk.count), [&](int number) {
    if (walk.is_piece(number))
      apply_to<width>(body, RowPiece<Rows, width>(rows, number)...);
    else
      body(elements_of(rows)[walk.single(number)]...);
  });
}

// The same for the rows of several groups, of groups that are shorter than a team several at a time.
template <class Body, class... T>
KOKKOS_FORCEINLINE_FUNCTION void each_element_of_groups(const HostLane& lane, int groups, int n, const Body& body,
                                                        GroupRows<T>... rows) {
  for (int group = 0; group < groups; ++group) each(lane, n, [&](int j) { body(row_of_group(rows, group)[j]...); });
}
template <class Member, class Body, class... T>
KOKKOS_FORCEINLINE_FUNCTION void each_element_of_groups(const Member& team, int groups, int n, const Body& body,
                                                        GroupRows<T>... rows) {
  constexpr int width = piece_width<T*...>;
  const RowWalk<width> walk(n, (is_aligned(rows) && ...));
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, groups * walk.count), [&](int number) {
    const int group = number / walk.count, of_group = number % walk.count;
    if (walk.is_piece(of_group))
      apply_to<width>(body, RowPiece<T*, width>(row_of_group(rows, group), of_group)...);
    else
      body(row_of_group(rows, group)[walk.single(of_group)]...);
  });
}

// Returns the sum of term(x[j], y[j], ...) over the rows x, y, ... (n) to the whole lane. It is also a barrier of it.
template <class A, class Term, class... T>
KOKKOS_FORCEINLINE_FUNCTION A sum_each(const HostLane& lane, int n, const Term& term, const T*... rows) {
  return sum_over<A>(lane, n, [&](int j) { return term(rows[j]...); });
}
template <class A, class Member, class Term, class... T>
KOKKOS_FORCEINLINE_FUNCTION A sum_each(const Member& team, int n, const Term& term, const T*... rows) {
  constexpr int width = piece_width<const T*...>;
  const RowWalk<width> walk(n, (is_aligned(rows) && ...));
  A sum = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, walk.count),
      [&](int number, A& part) {
        const auto add = [&](const T&... x) { part += term(x...); };
        if (walk.is_piece(number))
          apply_to<width>(add, RowPiece<const T*, width>(rows, number)...);
        else
          add(rows[walk.single(number)]...);
      },
      sum);
  return sum;
}

// The parts of a reduction, each of some elements, as Kokkos joins them: part.join(other).
template <class Part>
struct JoinParts {
  using reducer = JoinParts;
  using value_type = Part;
  using result_view_type = Kokkos::View<Part, Kokkos::AnonymousSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  Part* result;
  KOKKOS_FORCEINLINE_FUNCTION void init(Part& part) const { part = Part(); }
  KOKKOS_FORCEINLINE_FUNCTION void join(Part& part, const Part& other) const { part.join(other); }
  KOKKOS_FORCEINLINE_FUNCTION Part& reference() const { return *result; }
  KOKKOS_FORCEINLINE_FUNCTION result_view_type view() const { return result_view_type(result); }
};

// Returns what becomes of a Part() by part.add(x[j]) for each element of the row x (n), to the whole team: each of its
// threads has a part, and they are joined. It is also a barrier of the team.
template <class Part, class Member, class T>
KOKKOS_FORCEINLINE_FUNCTION Part reduce_each(const Member& team, int n, const T* x) {
  constexpr int width = piece_width<const T*>;
  const RowWalk<width> walk(n, is_aligned(x));
  Part result;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, walk.count),
      [&](int number, Part& part) {
        const auto add = [&](const T& value) { part.add(value); };
        if (walk.is_piece(number))
          apply_to<width>(add, RowPiece<const T*, width>(x, number));
        else
          add(x[walk.single(number)]);
      },
      JoinParts<Part>{&result});
  return result;
}

// Sums over a row which several kernels take of the same values, with and without a branch added before. On the host
// each is a function that is compiled once: of a loop that is compiled at each place a compiler may make different
// vectors, whose sums have other bits (g++ 12 for Zen 1, in double), and a block that is computed again would not
// have the bits of the first time.

// Returns the sum of squares of x (n) to the whole lane.
template <class A, class T>
[[gnu::noinline]] KOKKOS_FUNCTION A squares_of(const HostLane& lane, const T* x, int n) {
  return sum_over<A>(lane, n, [&](int j) { return A(x[j]) * A(x[j]); });
}
template <class A, class Member, class T>
KOKKOS_FORCEINLINE_FUNCTION A squares_of(const Member& team, const T* x, int n) {
  return sum_each<A>(
      team, n, [](const T& a) { return A(a) * A(a); }, x);
}

// Returns the mean of x (n), n > 0, and the mean of squared distances to it, to the whole lane.
template <class A>
struct RowMoments {
  A mean, variance;
};
template <class A, class T, class Place>
KOKKOS_FORCEINLINE_FUNCTION RowMoments<A> moments_inline(const Place& lane, const T* x, int n) {
  const A mean = sum_each<A>(
                     lane, n, [](const T& a) { return A(a); }, x) /
                 A(n);
  return {mean, sum_each<A>(
                    lane, n, [&](const T& a) { return (A(a) - mean) * (A(a) - mean); }, x) /
                    A(n)};
}
template <class A, class T>
[[gnu::noinline]] KOKKOS_FUNCTION RowMoments<A> moments_of(const HostLane& lane, const T* x, int n) {
  return moments_inline<A>(lane, x, n);
}
template <class A, class Member, class T>
KOKKOS_FORCEINLINE_FUNCTION RowMoments<A> moments_of(const Member& team, const T* x, int n) {
  return moments_inline<A>(team, x, n);
}

// The backward pass of RMSNorm over a row, whole or the part of it that a rank has. From dy and x (d), the row's 1 /
// rms and slope, and the weight w: writes dx, and adds to dw.
template <class A, class T, class Place>
KOKKOS_FORCEINLINE_FUNCTION void rms_norm_row_backward(const Place& lane, int d, A inverse, A slope, const T* dy,
                                                       const T* x, const A* w, A* dw, T* dx) {
  each_element(
      lane, d,
      [&](const T& g_y, const T& a, A of, A& sum, T& to) {
        const A scaled = A(g_y) * inverse;
        sum += scaled * A(a);
        to = T(scaled * of - inverse * slope * A(a));
      },
      dy, x, w, dw, Written(dx));
}

}  // namespace sestina
