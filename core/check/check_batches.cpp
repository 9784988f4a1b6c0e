// The passes of matrix optimizers over several matrices at once, and products of matrices that lie anywhere, compared
// with their formulas.
#include <fmt/format.h>

#include "core/check/checker.hpp"
#include "core/layout/model_size.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/optimizer/batch/rotated_batch.hpp"
#include "kernels/optimizer/batch/shampoo_batch.hpp"
#include "kernels/optimizer/batch/soap_muon_batch.hpp"

namespace sestina {
namespace {

// Sides of the matrices: of the model's, as many as plain loops are soon done with.
struct CheckedSides {
  std::size_t rows, cols;
  explicit CheckedSides(const ModelConfig& model)
      : rows(std::min<std::size_t>(extent(model.hidden_size), 96)),
        cols(std::min<std::size_t>(std::max(extent(mlp_width(model)), rows), 160)) {}
};

// A matrix of a batch, with a place for what an update writes.
template <class Exec>
struct FlatOwner {
  CheckField<Exec, float> gradient, momentum, second_moment, master;
  FlatOwner(Checker<Exec>& checker, std::size_t rows, std::size_t cols)
      : gradient(checker.template numbers<float>(rows, cols)),
        momentum(checker.template numbers<float>(rows, cols)),
        second_moment(checker.template numbers<float>(rows, cols)),
        master(checker.template numbers<float>(rows, cols)) {
    second_moment.fill([this](std::size_t i) { return 0.01 + momentum.start(i) * momentum.start(i); });
  }
  FlatMatrix in_batch() const {
    FlatMatrix matrix;
    matrix.gradient = gradient.vector().data();
    matrix.momentum = momentum.vector().data();
    matrix.second_moment = second_moment.vector().data();
    matrix.master = master.vector().data();
    matrix.lr = 0.5;
    matrix.rows = static_cast<std::uint32_t>(master.rows());
    matrix.cols = static_cast<std::uint32_t>(master.cols());
    matrix.apart = master.cols();
    return matrix;
  }
};

// Two matrices and a transpose: their stacks, as numbers.
template <class Exec>
struct CheckedBatch {
  CheckedBatch(const CheckContext<Exec>& context, std::size_t stack_count, bool cut)
      : checker(context.checker), sides(context.model()) {
    for (const bool turned : {false, true, false})
      owners.emplace_back(checker, turned ? sides.cols : sides.rows, turned ? sides.rows : sides.cols);
    std::vector<FlatMatrix> table;
    for (std::size_t i = 0; i < owners.size(); ++i) {
      const FlatMatrix whole = owners[i].in_batch();
      const std::size_t half = cut ? whole.cols / 2 : whole.cols;
      const auto add = [&](std::size_t begin, std::size_t cols) {
        if (cols == 0) return;
        table.push_back(block_of(whole, 0, begin, whole.rows, cols));
        owner_of.push_back(i);
      };
      add(0, half);
      add(half, whole.cols - half);
    }
    batch = make_flat_batch<Exec>(std::move(table));
    memory.push_back(checker.template numbers<float>(stack_count, batch.elements));
    stacks = {memory[0].vector().data(), batch.elements};
  }
  std::string shape() const { return fmt::format("3 of {} x {}", sides.rows, sides.cols); }
  double stacked(std::size_t stack, const FlatMatrix& of, std::size_t e) const {
    return memory[0].start(stack * batch.elements + of.place + e);
  }

  Checker<Exec>& checker;
  CheckedSides sides;
  std::vector<FlatOwner<Exec>> owners;
  std::vector<std::size_t> owner_of;  // of each block of the batch
  std::vector<CheckField<Exec, float>> memory;
  FlatBatch<Exec> batch;
  FlatStacks stacks;
};

// KL-Shampoo's eigenvalues from the squares of lines.
template <class Exec>
void check_lines(const CheckContext<Exec>& context) {
  const CheckedBatch<Exec> run(context, 1, false);
  std::vector<CheckField<Exec, float>> values;
  for (const FlatMatrix& of : run.batch.matrices)
    for (const std::size_t lines : {of.rows, of.cols}) {
      values.push_back(run.checker.template numbers<float>(1, lines));
      values.back().fill([](std::size_t i) { return 0.5f + static_cast<float>(i % 7); });
    }
  std::vector<FlatSide> table;
  std::vector<CheckedOutput> outputs;
  for (std::size_t side = 0; side < values.size(); ++side) {
    const FlatMatrix& of = run.batch.matrices[side / 2];
    const bool left = side % 2 == 0;
    const CheckField<Exec, float>& other = values[left ? side + 1 : side - 1];
    std::vector<double> next(values[side].size());
    for (std::size_t a = 0; a < next.size(); ++a) {
      double sum = 0;
      for (std::size_t b = 0; b < other.size(); ++b) {
        const double x = run.stacked(0, of, left ? a * of.cols + b : b * of.cols + a);
        sum += x * x / other.start(b);
      }
      next[a] = 0.75 * values[side].start(a) + 0.25 * sum / static_cast<double>(other.size());
    }
    table.push_back({of, left, values[side].vector().data()});
    outputs.push_back(
        expected("eigenvalues", values[side], static_cast<double>(other.size()) * spacing<float>, std::move(next)));
  }
  const FlatSides<Exec> sides = make_flat_sides<Exec>(std::move(table));
  const CheckField<Exec, float> memory = run.checker.template blank<float>(1, run.batch.lines);
  const Vector<float, Exec> roots = memory.vector();
  run.checker.check({"eigenvalues of a batch", run.shape()}, std::move(outputs), [&] {
    inverse_square_roots<Exec>(run.checker.exec(), sides, roots);
    average_eigenvalues<Exec>(run.checker.exec(), 0.75, sides, run.stacks, 0, roots);
  });
}

// Shampoo's averages of blocks, and its direction at the size of its graft, where roots are the identity.
template <class Exec>
void check_shampoo_batch(const CheckContext<Exec>& context) {
  CheckedBatch<Exec> run(context, 2, true);
  FilterRule rule{.gradient = 0.5f, .learn1 = 0.25f, .learn3 = 0.25f, .second_moment = true};
  rule.forget = rule.gain = 0.125f;
  rule.eps = 0.0625f;
  std::vector<CheckedOutput> outputs;
  for (std::size_t number = 0; number < run.owners.size(); ++number) {
    FlatOwner<Exec>& owner = run.owners[number];
    std::vector<double> f(owner.master.size()), v(f.size()), w(f.size());
    for (std::size_t i = 0; i < f.size(); ++i) {
      const double g = 0.5 * owner.gradient.start(i);
      f[i] = owner.momentum.start(i) + 0.25 * (g - owner.momentum.start(i));
      v[i] = owner.second_moment.start(i) + 0.125 * (g * g - owner.second_moment.start(i));
    }
    for (const FlatMatrix& block : run.batch.matrices) {
      if (run.owner_of[block.number] != number) continue;
      const auto begin = static_cast<std::size_t>(block.master - owner.master.vector().data());
      double graft = 0, direction = 0;
      for (std::size_t e = 0; e < block.elements; ++e) {
        const std::size_t i = begin + block.at(e);
        graft += std::pow(f[i] / (std::sqrt(v[i]) + 0.0625), 2);
        direction += f[i] * f[i];
      }
      for (std::size_t e = 0; e < block.elements; ++e) {
        const std::size_t i = begin + block.at(e);
        w[i] = owner.master.start(i) - 0.5 * std::sqrt(graft / direction) * f[i];
      }
    }
    constexpr double bound = 16 * spacing<float>;  // some ten roundings each
    outputs.push_back(expected("momentum", owner.momentum, bound, std::move(f)));
    outputs.push_back(expected("second moment", owner.second_moment, bound, std::move(v)));
    outputs.push_back(expected("master", owner.master, bound, std::move(w)));
  }
  const std::size_t blocks = run.batch.matrices.size();
  Workspace<Exec> workspace(bytes_of<GraftScratch<Exec>, Exec>(run.batch.pieces, blocks));
  const GraftScratch<Exec> scratch(workspace, run.batch.pieces, blocks);
  const Exec& exec = run.checker.exec();
  run.checker.check({"Shampoo of a batch", run.shape()}, std::move(outputs), [&] {
    filter<Exec>(exec, rule, run.batch, run.stacks, 0, 1);
    squares_of_stack<Exec>(exec, run.batch, run.stacks, 1, scratch.graft);
    squares_of_stack<Exec>(exec, run.batch, run.stacks, 0, scratch.direction);
    make_graft_factors<Exec>(exec, run.batch, scratch);
    move_weights<Exec>(exec, {.lr = 1}, run.batch, run.stacks, scratch.factors);
  });
}

// SOAP's averages of the momentum and of the squares in the bases.
template <class Exec>
void check_soap_batch(const CheckContext<Exec>& context) {
  CheckedBatch<Exec> run(context, 2, false);
  constexpr AdamRule rule{0.75, 0.875, 0.0625};
  std::vector<CheckedOutput> outputs;
  for (std::size_t number = 0; number < run.owners.size(); ++number) {
    FlatOwner<Exec>& owner = run.owners[number];
    std::vector<double> m(owner.master.size()), v(m.size());
    for (std::size_t i = 0; i < m.size(); ++i) {
      const double g = run.stacked(0, run.batch.matrices[number], i);
      m[i] = 0.75 * owner.momentum.start(i) + 0.25 * owner.gradient.start(i);
      v[i] = 0.875 * owner.second_moment.start(i) + 0.125 * g * g;
    }
    outputs.push_back(expected("momentum", owner.momentum, 4 * spacing<float>, std::move(m)));
    outputs.push_back(expected("second moment", owner.second_moment, 4 * spacing<float>, std::move(v)));
  }
  run.checker.check({"SOAP of a batch", run.shape()}, std::move(outputs), [&] {
    average_momenta<Exec>(run.checker.exec(), rule.beta1, 1, run.batch);
    rotated_adam<Exec>(run.checker.exec(), rule, run.batch, run.stacks, 0, 1);
  });
}

// SOAP-Muon's direction, divided by its moment, at the norm of a vector whose squares sum to 1 in each chunk.
template <class Exec>
void check_soap_muon_batch(const CheckContext<Exec>& context) {
  CheckedBatch<Exec> run(context, 1, false);
  const MomentumStep step{.p = 0.25f, .q = 0.75f};
  constexpr double eps = 0.0625;
  std::vector<CheckedOutput> outputs;
  for (std::size_t number = 0; number < run.owners.size(); ++number) {
    FlatOwner<Exec>& owner = run.owners[number];
    std::vector<double> v(owner.master.size()), d(v.size());
    double squares = 0;
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double u = 0.25 * owner.gradient.start(i) + 0.75 * owner.momentum.start(i);
      v[i] = 0.875 * owner.second_moment.start(i) + 0.125 * u * u;
      d[i] = u / std::max(std::sqrt(v[i]), eps);
      squares += d[i] * d[i];
    }
    const double length = 0.5 * std::sqrt(static_cast<double>(chunk_count(v.size())) / squares);
    for (std::size_t i = 0; i < v.size(); ++i) d[i] = owner.master.start(i) - length * d[i];
    constexpr double bound = 16 * spacing<float>;  // some ten roundings each
    outputs.push_back(expected("second moment", owner.second_moment, bound, std::move(v)));
    outputs.push_back(expected("master", owner.master, bound, std::move(d)));
  }
  const std::vector<double> ones(run.batch.pieces, 1.0);
  const auto squares = table_in_space<Exec>("sestina::check", ones);
  Workspace<Exec> workspace(bytes_of<MatchNormsScratch<Exec>, Exec>(run.batch.pieces, run.owners.size()));
  const MatchNormsScratch<Exec> scratch(workspace, run.batch.pieces, run.owners.size());
  const Exec& exec = run.checker.exec();
  run.checker.check({"SOAP-Muon of a batch", run.shape()}, std::move(outputs), [&] {
    form_blends<Exec>(exec, step, run.batch, run.stacks, 0);
    divide_by_moments<Exec>(exec, 0.875, eps, run.batch, run.stacks, 0);
    match_norms<Exec>(exec, Vector<const double, Exec>(squares.data(), squares.extent(0)), scratch, run.batch,
                      run.stacks);
    move_weights<Exec>(exec, {.lr = 1}, run.batch, run.stacks);
  });
}

// The rotations of one side, X Q, of three matrices.
template <class Exec>
void check_listed_products(const CheckContext<Exec>& context) {
  Checker<Exec>& checker = context.checker;
  const CheckedSides sides(context.model());
  const std::size_t m = sides.rows, n = sides.cols;
  std::vector<CheckField<Exec, float>> x, q, y;
  std::vector<float*> places[3];
  for (int i = 0; i < 3; ++i) {
    x.push_back(checker.template numbers<float>(m, n));
    q.push_back(checker.template numbers<float>(n, n));
    y.push_back(checker.template blank<float>(m, n));
    places[0].push_back(x.back().vector().data());
    places[1].push_back(q.back().vector().data());
    places[2].push_back(y.back().vector().data());
  }
  std::vector<CheckedOutput> outputs;
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<double> want(m * n);
    for (std::size_t e = 0; e < want.size(); ++e)
      for (std::size_t p = 0; p < n; ++p) want[e] += x[i].start(e / n, p) * q[i].start(p, e % n);
    outputs.push_back(expected("C", y[i], std::sqrt(static_cast<double>(n)) * spacing<float>, std::move(want)));
  }
  MatrixTable<float, Exec> table;
  const std::size_t a = table.add(places[0], m, n), b = table.add(places[1], n, n), c = table.add(places[2], m, n);
  table.finish("sestina::check");
  Gemm<Exec> gemm(checker.exec(), context.options.run.deterministic);
  const double flops = 6.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(n);
  checker.check({"products of a list", fmt::format("3 of {} x {} x {}", m, n, n), flops}, std::move(outputs), [&] {
    gemm.template batch<float, float>(Op::none, Op::none, 1, table[a].read(), table[b].read(), 0, table[c]);
  });
}

}  // namespace

template <class Exec, class T>
void check_batches(const CheckContext<Exec>& context) {
  check_listed_products(context);
  check_soap_batch(context);
  check_soap_muon_batch(context);
  check_lines(context);
  check_shampoo_batch(context);
}

#define SESTINA_CHECK_BATCHES(Exec, T) template void check_batches<Exec, T>(const CheckContext<Exec>&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_CHECK_BATCHES)

}  // namespace sestina
