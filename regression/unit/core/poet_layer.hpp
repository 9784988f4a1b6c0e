// A POET-X layer for tests of its merges and measures.
#pragma once
#include <vector>

#include "core/model/poet_x.hpp"
#include "kernels/base/random.hpp"
#include "regression/unit/reference.hpp"

namespace sestina {

// One layer with memory of its own, and as much scratch as is planned.
template <class T>
struct PoetLayer {
  using A = Acc<T>;
  template <class E>
  using Values = Kokkos::View<E**, Kokkos::LayoutRight, Kokkos::HostSpace>;
  template <class E>
  using Line = Kokkos::View<E*, Kokkos::HostSpace>;

  // most: blocks of a side, 0: as many as it has room for.
  PoetLayer(std::size_t out, std::size_t in, std::size_t block, bool residual, std::size_t most = 0)
      : PoetLayer(out, in, {.block = block, .fourth = 2, .residual = residual, .most = most}) {}
  PoetLayer(std::size_t out, std::size_t in, const PoetOptions& of)
      : options(of),
        gemm(exec),
        workspace(PoetScratch{sizeof(T), sizeof(A)}.merge(options, out, in)),
        base("base", out, in),
        residuals("residuals", of.residual ? out : 0, of.residual ? in : 0),
        codes("codes", of.group > 0 ? code_bytes(out * in, of.bits) : 0),
        zeros("zeros", of.group > 0 ? group_count(out * in, of.group) : 0),
        scales("scales", zeros.size()),
        perm_in("in", in),
        perm_out("out", out),
        rotation_in("rotation in", options.turned(in) * (of.block - 1) / 2),
        rotation_out("rotation out", options.turned(out) * (of.block - 1) / 2) {
    if (of.group > 0)
      weight.base.coded = {of.group, of.bits, codes,
                           zeros,    scales,  Line<std::uint8_t>(residuals.data(), residuals.size())};
    else
      weight.base = {base, residuals};
    weight.perm_in = perm_in;
    weight.perm_out = perm_out;
    weight.rotation_in = rotation_in;
    weight.rotation_out = rotation_out;
    draw(0);
    Values<A> first("first", out, in);
    for (std::size_t i = 0; i < first.size(); ++i) first.data()[i] = static_cast<A>(0.02 * normal(7, i));
    assign(first);
  }
  void assign(const Values<A>& dense) { poet_assign<Host, T>({exec, gemm, workspace}, options, weight, dense); }
  void draw(std::uint64_t number) {
    for (std::size_t i = 0; i < perm_in.size(); ++i)
      perm_in(i) = static_cast<std::int32_t>(permute(2 * number, i, perm_in.size()));
    for (std::size_t i = 0; i < perm_out.size(); ++i)
      perm_out(i) = static_cast<std::int32_t>(permute(2 * number + 1, i, perm_out.size()));
  }
  void move(std::uint64_t number, double size) {
    for (std::size_t i = 0; i < rotation_in.size(); ++i)
      rotation_in(i) = static_cast<A>(static_cast<float>(size * normal(1000 + 2 * number, i)));
    for (std::size_t i = 0; i < rotation_out.size(); ++i)
      rotation_out(i) = static_cast<A>(static_cast<float>(size * normal(1001 + 2 * number, i)));
  }
  void merge(std::uint64_t number) {
    poet_merge<Host, T>({exec, gemm, workspace}, options, weight, [&] { draw(number); });
  }
  std::vector<double> dense() {
    Values<A> w("dense", base.extent(0), base.extent(1));
    poet_effective<Host, T>({exec, gemm, workspace}, options, weight, w);
    return {w.data(), w.data() + w.size()};
  }

  Host exec;
  PoetOptions options;
  Gemm<Host> gemm;
  Workspace<Host> workspace;
  Values<T> base;
  Values<std::uint8_t> residuals;
  Line<std::uint8_t> codes, zeros;
  Line<A> scales;
  Line<std::int32_t> perm_in, perm_out;
  Line<A> rotation_in, rotation_out;
  PoetWeight<Host, T> weight;
};

}  // namespace sestina
