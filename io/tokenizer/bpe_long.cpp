// Byte-pair encoding of long pieces: a heap of candidate pairs in general, run lengths for one repeated byte.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <queue>
#include <vector>

#include "io/tokenizer/bpe_model.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::uint32_t kEnd = std::numeric_limits<std::uint32_t>::max();

struct Symbol {
  std::int32_t id;  // -1: merged into the one before
  std::uint32_t previous, next;
};

struct Candidate {
  std::uint32_t rank, at;
  std::int32_t id;                                // id of the merged token, by which a stale candidate is known
  bool operator<(const Candidate& other) const {  // std::priority_queue has the largest on top
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

struct Run {
  std::int32_t id;
  std::size_t count;
};

void append(std::vector<Run>& runs, std::int32_t id, std::size_t count) {
  if (count == 0) return;
  if (!runs.empty() && runs.back().id == id) {
    runs.back().count += count;
  } else {
    runs.push_back({id, count});
  }
}

}  // namespace

// Takes O(n log n) time, and 24 bytes of memory per byte of the piece.
void BpeModel::merge_long(std::vector<std::int32_t>& ids, std::size_t first) const {
  const std::size_t n = ids.size() - first;
  if (n >= kEnd)
    fail(ExitCode::bad_data, "a piece of {} bytes that cannot be split; fewer than {} are allowed", n, kEnd);
  std::vector<Symbol> symbols(n);
  std::vector<Candidate> candidates;
  for (std::uint32_t i = 0; i < n; ++i) {
    symbols[i] = {ids[first + i], i == 0 ? kEnd : i - 1, i + 1 == n ? kEnd : i + 1};
    if (i + 1 == n) continue;
    const auto merge = merges_.find(ids[first + i], ids[first + i + 1]);
    if (merge.rank != MergeTable::kNoRank) candidates.push_back({merge.rank, i, merge.id});
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(candidates));
  const auto offer = [&](std::uint32_t at) {
    if (at == kEnd || symbols[at].next == kEnd) return;
    const auto merge = merges_.find(symbols[at].id, symbols[symbols[at].next].id);
    if (merge.rank != MergeTable::kNoRank) queue.push({merge.rank, at, merge.id});
  };
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.at];
    if (left.id < 0 || left.next == kEnd) continue;
    Symbol& right = symbols[left.next];
    if (merges_.find(left.id, right.id).id != top.id) continue;
    left.id = top.id;
    right.id = -1;
    left.next = right.next;
    if (left.next != kEnd) symbols[left.next].previous = top.at;
    offer(left.previous);
    offer(top.at);
  }
  std::size_t kept = first;
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0) ids[kept++] = symbol.id;
  }
  ids.resize(kept);
}

// Encodes a piece of one repeated byte (white space, rules) as runs of equal tokens: time and memory do not grow with
// its length, except for the result. Returns false when the piece is another one or its merges are not ordered
// (mark_uniform).
bool BpeModel::merge_uniform(std::string_view piece, std::vector<std::int32_t>& ids) const {
  const auto byte = static_cast<unsigned char>(piece[0]);
  if (byte_id_[byte] < 0 || !uniform_ordered_[byte] || piece.find_first_not_of(piece[0]) != std::string_view::npos)
    return false;
  std::vector<Run> runs{{byte_id_[byte], piece.size()}};
  while (true) {
    MergeTable::Merge best{MergeTable::kNoRank, -1};
    std::int32_t left = -1, right = -1;
    const auto consider = [&](std::int32_t a, std::int32_t b) {
      const auto merge = merges_.find(a, b);
      if (merge.rank < best.rank) best = merge, left = a, right = b;
    };
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].count > 1) consider(runs[i].id, runs[i].id);
      if (i + 1 < runs.size()) consider(runs[i].id, runs[i + 1].id);
    }
    if (best.rank == MergeTable::kNoRank) break;
    std::vector<Run> merged;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (left == right && runs[i].id == left) {
        append(merged, best.id, runs[i].count / 2);
        append(merged, left, runs[i].count % 2);
      } else if (left != right && runs[i].id == left && i + 1 < runs.size() && runs[i + 1].id == right) {
        append(merged, left, runs[i].count - 1);
        append(merged, best.id, 1);
        --runs[i + 1].count;
      } else {
        append(merged, runs[i].id, runs[i].count);
      }
    }
    runs = std::move(merged);
  }
  for (const Run& run : runs) ids.insert(ids.end(), run.count, run.id);
  return true;
}

}  // namespace sestina
