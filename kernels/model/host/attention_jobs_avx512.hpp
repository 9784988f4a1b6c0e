// Products of attention_bf16.hpp that are made piece by piece in between work on vectors, for twins. A processor
// executes both at once where pieces are small: measured with AMX on Emerald Rapids, one or two pieces before eight
// exponentials cost no more time than the pieces alone; four of them, before four times as many, cost the sum of both.
#pragma once
#include "kernels/model/host/attention_vectors_avx512.hpp"

namespace sestina::host::attention_bf16 {

// C (32, 32) = A (32, k) B (k, 32), or += with add; k is a multiple of 32, and 32 of it are a piece. A has rows lda
// apart; B has two strips of 16 columns in pairs, `strip` elements apart; C has rows ldc apart.
struct Job {
  int k;
  const Bits* a;
  int lda;
  const Bits* b;
  int strip;
  float* c;
  int ldc;
  bool add;
};

// Computes C (m, n) = A (m, k) B (k, n), or += with add, all of it at once; m, n and k are multiples of 32.
template <class Product>
static inline void multiply(int m, int n, int k, const Bits* a, int lda, const Bits* b, int strip, float* c, int ldc,
                            bool add) {
  for (int i = 0; i < m; i += group)
    for (int j = 0; j < n; j += group) {
      const Job job{k, a + i * lda, lda, b + j / lanes * strip, strip, c + i * ldc + j, ldc, add};
      Product::begin(job);
      for (int p = 0; p < k; p += group) Product::piece(job, p);
      Product::end(job);
    }
}

// Jobs that wait for their turn, first in first out: numbers [done, put) of all that there were.
template <class Product>
struct Jobs {
  static constexpr std::uint32_t room = 128;
  Job jobs[room];
  std::uint32_t put, done;
  int p;  // of the first one, what is done of k

  void clear() { put = done = 0, p = 0; }
  std::uint32_t waiting() const { return put - done; }
  void add(const Job& job) {
    if (waiting() == room) run_to(done + 1);
    jobs[put++ % room] = job;
  }
  int pieces_to(std::uint32_t end) const {
    int pieces = 0;
    for (std::uint32_t i = done; i != end; ++i) pieces += jobs[i % room].k / group;
    return pieces;
  }
  void run_piece() {
    const Job& job = jobs[done % room];
    if (p == 0) Product::begin(job);
    Product::piece(job, p);
    if ((p += group) < job.k) return;
    Product::end(job);
    p = 0;
    ++done;
  }
  void run_to(std::uint32_t end) {
    while (static_cast<std::int32_t>(end - done) > 0) run_piece();
  }
};

// Spreads so many pieces evenly over so many ticks.
struct Pace {
  int pieces, ticks, ticked, done;
};
static inline int due(Pace& pace) {
  const int target = (++pace.ticked * pace.pieces + pace.ticks - 1) / pace.ticks, now = target - pace.done;
  pace.done = target;
  return now;
}

}  // namespace sestina::host::attention_bf16
