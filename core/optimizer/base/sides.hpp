// The sides of an m x n matrix that a method treats (left acts on rows, right on columns), and the state of each. No
// Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/deck/kinds.hpp"

namespace sestina {

struct Sides {
  bool left = true, right = true;
};

// Returns the shorter side alone: left when m < n, else right.
Sides shorter_side(std::int64_t rows, std::int64_t cols);

// Adds <name>_left (m, m) and <name>_right (n, n), for the sides that there are.
void add_squares(std::vector<FieldSize>&, const std::string& name, Sides, std::int64_t rows, std::int64_t cols,
                 FieldUse = FieldUse::update);
// Adds <name>_left (m) and <name>_right (n).
void add_vectors(std::vector<FieldSize>&, const std::string& name, Sides, std::int64_t rows, std::int64_t cols);
// Adds counters: updates made, whether the first call is over, refreshes failed in a row.
void add_counters(std::vector<FieldSize>&, Sides);

// Returns the snapshot of a symmetric factor (d, d): packed (kernels/optimizer/eigen.hpp), in fp32 or bf16.
FieldSize packed_snapshot(const MatrixOptions&, const std::string& name, std::int64_t d);
// Returns the work of a refresh from this snapshot, up to a factor: d^3, or m n min(m, n) where it is no factor.
double snapshot_work(const FieldSize&);

// Adds the state of asynchronous refreshes: the snapshot of each side, by its name and size, and by side the update of
// the one in flight (0: none) and 1 + that of the one that the result in use comes from (0: none). Adds nothing where
// refreshes are inline; a checkpoint may lack these fields.
void add_jobs(std::vector<FieldSize>&, const MatrixOptions&, const std::vector<FieldSize>& snapshots);
void add_jobs(std::vector<FieldSize>&, const MatrixOptions&, Sides, std::int64_t rows, std::int64_t cols);

// Adds whether a side is to be refreshed at the next update, where drift decides (a checkpoint may lack it).
void add_drift(std::vector<FieldSize>&, const MatrixOptions&, Sides);

// Returns the sides that have a basis among these fields.
Sides sides_with_bases(const std::vector<FieldSize>&);

// Returns the fields that the kind of these options lists, each with its tier. Those that its list has always at hand,
// but for vectors and counters, become moments where these have a tier of their own (optimizer.state_tier).
std::vector<FieldSize> fields_of(const MatrixOptions&, std::size_t rows, std::size_t cols);

// FLOPs of updates, for the rows of the table of kinds (core/deck/kinds.hpp).

// These FLOPs are those of parallel.cost = "flops": a model that does not follow what is executed, so that anyone can
// check a ratio. M is the longer side, m the shorter one, refreshes come every 10 updates, a side above 10,000 has no
// factor.
double stated_products(double rows, double cols);  // five iterations of three products: 5 (4 M m^2 + 2 m^3)
// Returns the FLOPs of the same products for a shard (side, length) of a matrix that is cut along `length`, without the
// first where the shard is not counted (MatrixKind::shard_work).
double stated_shard_products(double side, double length, bool counted);
double stated_rotation(double rows, double cols);  // by side of length a, the other b: 8 a^2 b + (22/3) a^3 / 10
double stated_roots(double rows, double cols);     // by side: 4 a^2 b + 11 a^3 / 10

// FLOPs of decomposing a symmetric a x a matrix, over a^3: one step of orthogonal iteration (product and QR), all
// eigenvectors, a coupled Newton iteration for an inverse root.
inline constexpr double qr_step = 22.0 / 3, all_eigenvectors = 11, newton_root = 48;
// FLOPs of an SVD with the vectors of both sides by way of a QR, a the shorter side: 6 a^2 b + 20 a^3 (Golub and Van
// Loan).
inline constexpr double svd_products = 6, svd_vectors = 20;

// Returns what is executed, by side of length a with the other one b: products of `per_product` a^2 b in each update,
// and `per_refresh` a^3 in a refresh.
UpdateWork side_work(Sides, std::int64_t rows, std::int64_t cols, double per_product, double per_refresh);

// Returns what is executed once for the bases of these sides from the first gradient
// (core/optimizer/refresh/cold_bases.cpp).
double first_bases_work(BasisForm, Sides, std::int64_t rows, std::int64_t cols);

}  // namespace sestina
