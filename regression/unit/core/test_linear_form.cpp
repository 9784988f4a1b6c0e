// Weights in other forms than dense: gradients by differences in double, the same bits whether the forward pass keeps
// something or not, dense weights that pass through a form unchanged, merges, specs and counts.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "core/layout/tensor_spec.hpp"
#include "core/model/formed_weights.hpp"
#include "regression/unit/core/model_rig.hpp"

namespace sestina {
namespace {

ModelConfig formed_model(const std::string& form, Family family = Family::llama, bool one_block = false) {
  ModelConfig c = small_model(family);
  c.hidden_size = 16;
  c.intermediate_size = 24;
  c.head_dim = 4;  // q 16, k and v 8
  c.linear.form = form;
  c.linear.block_size = 4;
  c.linear.one_block = one_block;
  c.linear.init = LinearOptions::Init::gaussian;
  c.linear.group_size = 16;
  c.linear.rank = 3;
  return c;
}

// The rig of a model with its first weights, and with trained parts that are not at their start.
template <class T>
struct FormRig : ModelRig<Host, T> {
  using Rig = ModelRig<Host, T>;
  explicit FormRig(const ModelConfig& c, bool recompute = false, double moved = 0.05) : Rig(c, 2, 7, recompute) {
    initialise_formed<Host, T>(Rig::exec, Rig::model, Rig::arena, Rig::weights, 7);
    for (std::size_t i = 0; i < Rig::arena.size(); ++i) {
      const TensorSpec& spec = Rig::arena.specs()[i];
      if (spec.part < 0 || !spec.has_master()) continue;
      auto values = Rig::master(i);
      for (std::size_t j = 0; j < values.size(); ++j)
        values[j] += static_cast<Acc<T>>(moved * normal(stream_of(5, spec.name), j));
      Rig::set_master(i, values);
    }
    Rig::arena.round_weights(Rig::exec);
  }
  std::vector<Acc<T>> dense(const FormedWeight& w) {
    std::vector<Acc<T>> values(static_cast<std::size_t>(w.rows * w.cols));
    get_dense<Host, T>(Rig::exec, Rig::model, w, values.data());
    return values;
  }
};

template <class F>
double form_slope(const F& f, double h) {
  return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h);
}

using Variant = LinearOptions::Variant;

// As in test_gradient.cpp; a base in 8 bits does not move, so its rotations have gradients like the others.
void expect_gradients(const ModelConfig& config) {
  FormRig<double> rig(config);
  rig.loss_and_backward(1.0);
  for (std::size_t i = 0; i < rig.arena.size(); ++i) {
    const TensorSpec& spec = rig.arena.specs()[i];
    if (!spec.trainable) continue;
    const std::vector<double> at = rig.master(i), gradient = rig.gradient(i);
    std::vector<double> v(at.size());
    normals(stream_of(3, spec.name), 0, v.size(), 1.0, v.data());
    double analytic = 0, size = 0;
    for (std::size_t j = 0; j < v.size(); ++j) {
      analytic += v[j] * gradient[j];
      size += std::abs(v[j] * gradient[j]);
    }
    const double numeric = form_slope(
        [&](double h) {
          std::vector<double> moved = at;
          for (std::size_t j = 0; j < v.size(); ++j) moved[j] += h * v[j];
          rig.set_master(i, moved);
          return rig.loss();
        },
        4e-5);
    EXPECT_NEAR(numeric, analytic, 2e-7 * (size + 1)) << spec.name;
    EXPECT_GT(size, 1e-3) << spec.name << ": the loss hardly depends on it, the test says nothing";
    rig.set_master(i, at);
  }
}

TEST(LinearForm, PoetGradientsByDifferences) {
  for (const bool one_block : {false, true})
    for (const Variant variant : {Variant::fast, Variant::mem, Variant::xq}) {
      ModelConfig c = formed_model("poet-x", Family::llama, one_block);
      c.linear.variant = variant;
      c.linear.even = variant == Variant::mem;
      expect_gradients(c);
      c.linear.base_bits = 4;
      if (variant == Variant::xq) expect_gradients(c);
    }
}
TEST(LinearForm, PoetGradientsWithBiasesAndNorms) {
  ModelConfig c = formed_model("poet-x", Family::olmo2);
  expect_gradients(c);
  c = formed_model("poet-x", Family::gpt);
  c.attention_bias = true;
  expect_gradients(c);
}
TEST(LinearForm, LoraGradientsByDifferences) { expect_gradients(formed_model("lora")); }

// All that a pass leaves: loss and gradients.
template <class T>
std::vector<double> numbers_of(const ModelConfig& config, bool recompute, bool twice) {
  FormRig<T> rig(config, recompute);
  std::vector<double> all{rig.loss_and_backward(1.0)};
  if (twice) all.push_back(rig.loss_and_backward(1.0, true));
  for (std::size_t i = 0; i < rig.arena.size(); ++i)
    for (const auto value : rig.gradient(i)) all.push_back(static_cast<double>(value));
  return all;
}

TEST(LinearForm, FastMemAndRecomputeGiveTheSameBits) {
  for (const bool twice : {false, true}) {
    ModelConfig c = formed_model("poet-x", Family::llama, twice);
    const auto fast = numbers_of<float>(c, false, twice);
    EXPECT_EQ(fast, numbers_of<float>(c, true, twice));
    c.linear.variant = Variant::mem;
    EXPECT_EQ(fast, numbers_of<float>(c, false, twice));
    EXPECT_EQ(fast, numbers_of<float>(c, true, twice));
  }
}

TEST(LinearForm, GradientsOfMicroBatchesAddUp) {
  for (const char* form : {"poet-x", "lora"}) {
    FormRig<double> rig(formed_model(form));
    rig.loss_and_backward(1.0);
    std::vector<std::vector<double>> once;
    for (std::size_t i = 0; i < rig.arena.size(); ++i) once.push_back(rig.gradient(i));
    rig.loss_and_backward(1.0, true);
    for (std::size_t i = 0; i < rig.arena.size(); ++i) {
      const std::vector<double> sum = rig.gradient(i);
      for (std::size_t j = 0; j < sum.size(); ++j) EXPECT_NEAR(sum[j], 2 * once[i][j], 1e-12 * (1 + std::abs(sum[j])));
    }
  }
}

// What passes add up in the place of the gradients of POET-X, and the gradients made of it.
template <class T>
struct SumRig : FormRig<T> {
  using Rig = FormRig<T>;
  explicit SumRig(const ModelConfig& c) : Rig(c), sums("sums", size_of_sums(c.linear, Rig::arena.specs())) {
    Acc<T>* next = sums.data();
    for_each_formed(Rig::gradients, [&](FormedWeight& gradient) {
      gradient.sums = next;
      next += size_of_sums(c.linear, gradient.rows, gradient.cols);
    });
    EXPECT_EQ(next, sums.data() + sums.size());
  }
  void finish() {
    for (int block = 0; block <= Rig::range.end + 1; ++block)
      Rig::model.finish_gradients(Rig::weights, block, Rig::gradients);
  }
  Kokkos::View<Acc<T>*, Kokkos::HostSpace> sums;
};

template <class Rig>
std::vector<double> gradients_of_micros(Rig& rig, int micros) {
  for (int micro = 0; micro < micros; ++micro) {
    std::vector<std::int32_t> in(rig.tokens.size()), out(rig.tokens.size());
    for (std::size_t i = 0; i < in.size(); ++i) {
      in[i] = static_cast<std::int32_t>((i * 7 + static_cast<std::size_t>(micro) * 3 + 1) % 11);
      out[i] = static_cast<std::int32_t>((i * 5 + static_cast<std::size_t>(micro) * 2 + 3) % 11);
    }
    rig.load(in, out);
    rig.loss_and_backward(1.0, micro > 0);
  }
  if constexpr (requires { rig.finish(); }) rig.finish();
  std::vector<double> all;
  for (std::size_t i = 0; i < rig.arena.size(); ++i)
    for (const auto value : rig.gradient(i)) all.push_back(static_cast<double>(value));
  return all;
}

// One pass: the bits of a gradient made at once. Several: the series' backward pass is linear in dG, so that only the
// order of sums differs. A gradient is a sum of some 2 b^2 products of terms that are sums over the passes, each of
// which may be larger than their sum: 50 eps of the largest one.
template <class T>
void expect_one_series(const ModelConfig& c) {
  FormRig<T> each(c);
  SumRig<T> once(c);
  EXPECT_EQ(gradients_of_micros(each, 1), gradients_of_micros(once, 1));
  const std::vector<double> want = gradients_of_micros(each, 5), got = gradients_of_micros(once, 5);
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (const double x : want) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 50 * std::numeric_limits<Acc<T>>::epsilon() * largest);
  EXPECT_EQ(gradients_of_micros(each, 1), gradients_of_micros(once, 1)) << "of the next update";
}

TEST(LinearForm, PoetRunsOneSeriesBackForAllMicroBatches) {
  for (const Variant variant : {Variant::fast, Variant::mem, Variant::xq}) {
    ModelConfig c = formed_model("poet-x", Family::llama, variant == Variant::mem);
    c.linear.variant = variant;
    c.linear.even = variant == Variant::mem;
    expect_one_series<double>(c);
    expect_one_series<float>(c);
    expect_one_series<bf16>(c);
  }
}

// The same numbers as a dense model at the start: W_eff is W, exactly.
TEST(LinearForm, StartsAsTheDenseModel) {
  for (const char* form : {"poet-x", "lora"}) {
    const ModelConfig c = formed_model(form);
    FormRig<double> rig(c, false, 0);
    ModelRig<Host, double> dense(dense_model(c));
    const auto expect_same = [&](const FormedWeight& w) {
      EXPECT_EQ(rig.dense(w), dense.master(dense.index(w.name))) << w.name;
    };
    for_each_formed(rig.weights, expect_same);
    EXPECT_NEAR(rig.loss(), dense.loss(), 1e-11);  // sums in another order
  }
}

TEST(LinearForm, NormalisedRowsHaveLengthOne) {
  ModelConfig c = formed_model("poet-x");
  c.linear.init = LinearOptions::Init::normalized;
  FormRig<double> rig(c, false, 0);
  for_each_formed(rig.weights, [&](const FormedWeight& w) {
    const std::vector<double> values = rig.dense(w);
    for (std::int64_t row = 0; row < w.rows; ++row) {
      double squares = 0;
      for (std::int64_t j = 0; j < w.cols; ++j)
        squares += std::pow(values[static_cast<std::size_t>(row * w.cols + j)], 2);
      EXPECT_NEAR(squares, 1, 1e-14);
    }
  });
}

// Wide, square and tall weights: the rows, or the columns, are orthonormal, the same at every start.
TEST(LinearForm, UniformSpectraHaveSingularValuesOfOne) {
  ModelConfig c = formed_model("poet-x");
  c.linear.init = LinearOptions::Init::uniform_spectrum;
  FormRig<double> rig(c, false, 0), again(c, false, 0);
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;
  for_each_formed(rig.weights, [&](const FormedWeight& w) {
    shapes.insert({w.rows, w.cols});
    const std::vector<double> x = rig.dense(w);
    EXPECT_EQ(x, again.dense(w)) << w.name;
    const bool wide = w.rows <= w.cols;
    const std::int64_t side = wide ? w.rows : w.cols, length = wide ? w.cols : w.rows;
    const auto at = [&](std::int64_t line, std::int64_t k) {
      return x[static_cast<std::size_t>(wide ? line * w.cols + k : k * w.cols + line)];
    };
    for (std::int64_t i = 0; i < side; ++i)
      for (std::int64_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < length; ++k) sum += at(i, k) * at(j, k);
        EXPECT_NEAR(sum, i == j ? 1 : 0, 1e-13) << w.name;
      }
  });
  EXPECT_EQ(shapes.size(), 4U);  // (16, 16), (8, 16), (24, 16), (16, 24)
  c.initializer_range *= 3;
  const FormedWeight& first = rig.weights.layers[0].qkv.formed[0];
  FormRig<double> wider(c, false, 0);
  const std::vector<double> a = rig.dense(first), b = wider.dense(first);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-13) << "the range has no say";
}

TEST(LinearForm, MergesKeepTheLayerAndDrawNewPermutations) {
  const ModelConfig c = formed_model("poet-x");
  FormRig<double> rig(c);
  const double before = rig.loss();
  std::vector<std::vector<double>> weights;
  for_each_formed(rig.weights, [&](const FormedWeight& w) { weights.push_back(rig.dense(w)); });
  const auto permutation = [&] {
    const std::size_t i = rig.index("model.layers.1.mlp.down_proj.weight/perm_in");
    const auto* begin = static_cast<const std::int32_t*>(rig.arena.frozen(i));
    return std::vector<std::int32_t>(begin, begin + rig.arena.specs()[i].rows);
  };
  const std::vector<std::int32_t> first = permutation();
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), first.size());
  merge_if_due<Host, double>(rig.model, rig.weights, 7, c.linear.merge_every - 1);
  EXPECT_EQ(permutation(), first);
  merge_if_due<Host, double>(rig.model, rig.weights, 7, c.linear.merge_every);
  EXPECT_NE(permutation(), first);
  std::size_t at = 0;
  for_each_formed(rig.weights, [&](const FormedWeight& w) {
    const std::vector<double> now = rig.dense(w), &was = weights[at++];
    for (std::size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], was[i], 1e-15) << w.name;  // sums of four products
  });
  for (std::size_t i = 0; i < rig.arena.size(); ++i)
    if (rig.arena.specs()[i].never_decays)
      for (const double value : rig.master(i)) EXPECT_EQ(value, 0);
  EXPECT_NEAR(rig.loss(), before, 1e-10);
}

void expect_codes_hold_weights(const ModelConfig& c) {
  FormRig<double> rig(c, false, 0);
  ModelRig<Host, double> dense(dense_model(c));
  for_each_formed(rig.weights, [&](const FormedWeight& w) {
    const std::vector<double> got = rig.dense(w), want = dense.master(dense.index(w.name));
    double largest = 0, error = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(want[i]));
      error = std::max(error, std::abs(got[i] - want[i]));
    }
    EXPECT_GT(error, 0);
    const double steps = (1 << c.linear.base_bits) - 1;
    EXPECT_LE(error, 2 * largest / steps * 1.01) << w.name;  // a whole step at the ends of a range
  });
}

TEST(LinearForm, CodesHoldTheWeightsWithinHalfAStep) {
  ModelConfig c = formed_model("poet-x");
  c.linear.variant = Variant::xq;
  expect_codes_hold_weights(c);
  c.linear.base_bits = 4;
  expect_codes_hold_weights(c);
  expect_codes_hold_weights(formed_model("int8"));
}

// Trained weights in 8 bits: loss and gradients of a dense model whose weights are what the codes say.
TEST(LinearForm, Int8PassesAreThoseOfTheDecodedWeights) {
  for (const Family family : {Family::llama, Family::gpt}) {
    const ModelConfig c = formed_model("int8", family);
    FormRig<double> rig(c, false, 0);
    ModelRig<Host, double> dense(dense_model(c));
    for_each_formed(rig.weights, [&](const FormedWeight& w) { dense.set_master(dense.index(w.name), rig.dense(w)); });
    for (const bool twice : {false, true}) {
      EXPECT_NEAR(rig.loss_and_backward(1.0, twice), dense.loss_and_backward(1.0, twice), 1e-11);  // another order
      for (std::size_t i = 0; i < rig.arena.size(); ++i) {
        const TensorSpec& spec = rig.arena.specs()[i];
        const std::vector<double> got = rig.gradient(i),
                                  want = dense.gradient(dense.index(spec.part == 0 ? spec.weight : spec.name));
        for (std::size_t j = 0; j < got.size(); ++j)
          EXPECT_NEAR(got[j], want[j], 1e-12 * (1 + std::abs(want[j]))) << spec.name;
      }
    }
  }
}

TEST(LinearForm, GroupsThatBlocksDoNotDivideStayDense) {
  ModelConfig c = formed_model("poet-x");
  c.linear.block_size = 16;  // not of k and v (8), nor of the MLP (24)
  EXPECT_EQ(linear_defects(c).size(), 1u);
  EXPECT_NE(linear_defects(c)[0].allowed.find("2, 4, 8"), std::string::npos) << linear_defects(c)[0].allowed;
  c.linear.dense_if_indivisible = true;
  EXPECT_TRUE(linear_defects(c).empty());
  std::set<std::string> formed;
  for (const TensorSpec& spec : tensor_specs(c))
    if (spec.part == 0 && spec.layer == 0) formed.insert(spec.weight);
  EXPECT_EQ(formed, std::set<std::string>{"model.layers.0.self_attn.o_proj.weight"});
  expect_gradients(c);
}

std::vector<std::int32_t> places(const FormRig<double>& rig, const std::string& name) {
  const std::size_t i = rig.index(name);
  const auto* data = static_cast<const std::int32_t*>(rig.arena.frozen(i));
  return {data, data + rig.arena.specs()[i].rows};
}

// No permutation and no block of a rotation leaves a shard; each shard is permuted in its own way, the other side and
// the first shard of a side as ever.
TEST(LinearForm, PermutationsStayInTheirShards) {
  ModelConfig c = formed_model("poet-x");
  const FormRig<double> whole(c);
  c.linear.shards = 2;
  expect_gradients(c);
  FormRig<double> rig(c);
  for_each_formed(rig.weights, [&](const FormedWeight& w) { rig.model.merge(w, 7, 1); });
  for (const std::string layer : {"self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj"}) {
    const bool inputs = layer == "self_attn.o_proj" || layer == "mlp.down_proj";
    const std::string weight = "model.layers.1." + layer + ".weight/";
    const std::vector<std::int32_t> cut = places(rig, weight + (inputs ? "perm_in" : "perm_out"));
    const std::size_t half = cut.size() / 2;
    std::set<std::int32_t> first(cut.begin(), cut.begin() + static_cast<std::ptrdiff_t>(half)),
        all(cut.begin(), cut.end());
    EXPECT_EQ(*first.rbegin(), static_cast<std::int32_t>(half) - 1) << layer;
    EXPECT_EQ(first.size(), half) << layer;
    EXPECT_EQ(all.size(), cut.size()) << layer;
    bool repeats = true;
    for (std::size_t i = 0; i < half; ++i)
      repeats = repeats && cut[half + i] == cut[i] + static_cast<std::int32_t>(half);
    EXPECT_FALSE(repeats) << layer;
  }
  for (const std::string side : {"self_attn.k_proj.weight/perm_in", "self_attn.o_proj.weight/perm_out"}) {
    const FormRig<double> start(c);
    EXPECT_EQ(places(start, "model.layers.0." + side), places(whole, "model.layers.0." + side)) << side;
  }
}

TEST(LinearForm, ShardsAllowSmallerBlocks) {
  ModelConfig c = formed_model("poet-x");
  c.linear.block_size = 8;
  EXPECT_TRUE(linear_defects(c).empty());
  c.linear.shards = 2;
  ASSERT_EQ(linear_defects(c).size(), 1u);  // keys and values: 8 in 2 shards
  EXPECT_EQ(linear_defects(c)[0].allowed, "2, 4, or any with model.linear.on_indivisible = \"dense\"");
  c.linear.dense_if_indivisible = true;
  for (const TensorSpec& spec : tensor_specs(c)) EXPECT_EQ(spec.weight.find("k_proj"), std::string::npos) << spec.name;
  c.linear.shards = 4;
  ASSERT_EQ(linear_defects(c).size(), 1u);
  EXPECT_EQ(linear_defects(c)[0].allowed, "1, 2");  // key and value heads
}

// The counts that the paper prints for a Llama of 3 billion parameters (vocabulary 32000, untied).
TEST(LinearForm, TrainsAsManyParametersAsThePaperSays) {
  ModelConfig c = preset("llama-3b");
  c.vocab_size = 32000;
  c.tie_word_embeddings = false;
  c.linear.form = "poet-x";
  const std::int64_t whole = parameter_count(dense_model(c));
  EXPECT_EQ(parameter_count(c), whole);
  c.linear.block_size = 256;
  EXPECT_NEAR(static_cast<double>(trainable_count(c)) * 1e-6, 366.64, .005);
  c.linear.block_size = 512;
  EXPECT_NEAR(static_cast<double>(trainable_count(c)) * 1e-6, 570.06, .005);
  EXPECT_EQ(trainable_count(dense_model(c)), whole);
}

template <class T>
void expect_budget(const ModelConfig& c, StorageWidth width, bool recompute) {
  ModelRig<Host, T> rig(c, 2, 7, recompute);
  const ModelSize size = model_size(c, all_layers(c), 2, 7, width, recompute, 0);
  EXPECT_EQ(size.weights, rig.arena.weight_bytes());
  EXPECT_EQ(size.master, rig.arena.master_bytes());
  EXPECT_EQ(size.gradients, rig.arena.gradient_bytes());
  EXPECT_EQ(size.activations, rig.slot.bytes());
  EXPECT_LE(size.workspace, rig.model.workspace_bytes());  // kernels take some for themselves
  EXPECT_EQ(size.parameters, trainable_count(c));
}

TEST(LinearForm, BudgetsAreWhatIsAllocated) {
  for (const char* form : {"poet-x", "lora", "int8"})
    for (const Variant variant : {Variant::fast, Variant::mem, Variant::xq})
      for (const bool recompute : {false, true}) {
        ModelConfig c = formed_model(form);
        c.linear.variant = variant;
        expect_budget<float>(c, width_fp32, recompute);
        expect_budget<bf16>(c, width_bf16, recompute);
        if (variant != Variant::xq || c.linear.form != "poet-x") continue;
        c.linear.base_bits = 4;
        c.linear.residual = true;
        expect_budget<float>(c, width_fp32, recompute);
      }
}

// Of a frozen weight nothing is kept but the weight: a byte in xq, or half of one, next to scales and permutations.
TEST(LinearForm, FrozenWeightsTakeNoMasterNoGradientAndNoState) {
  ModelConfig c = preset("llama-60m");
  c.linear.form = "poet-x";
  c.linear.block_size = 16;
  const auto size_of_variant = [&](Variant variant) {
    c.linear.variant = variant;
    return model_size(c, all_layers(c), 1, 64, width_bf16, false, 0);
  };
  const ModelSize dense = model_size(dense_model(c), all_layers(c), 1, 64, width_bf16, false, 0),
                  fast = size_of_variant(Variant::fast), mem = size_of_variant(Variant::mem),
                  xq = size_of_variant(Variant::xq);
  c.linear.base_bits = 4;
  const ModelSize four = size_of_variant(Variant::xq);
  c.linear.residual = true;
  const ModelSize kept = size_of_variant(Variant::xq);
  std::int64_t frozen = 0;
  for (const TensorSpec& spec : tensor_specs(c)) frozen += spec.part == 0 ? spec.elements() : 0;
  EXPECT_LT(fast.master + fast.gradients, dense.master + dense.gradients);
  EXPECT_LT(mem.activations, fast.activations);
  EXPECT_EQ(mem.weights, fast.weights);
  EXPECT_LT(xq.weights, mem.weights);
  EXPECT_EQ(four.weights, xq.weights - static_cast<std::size_t>(frozen / 2));
  EXPECT_EQ(kept.weights, four.weights + static_cast<std::size_t>(frozen));
}

// Weights of the layer that is due, and no others.
TEST(LinearForm, StaggeredLayersMergeOneAfterAnother) {
  ModelConfig c = formed_model("poet-x");
  c.linear.merge_every = 4;
  c.linear.staggered = true;
  FormRig<double> rig(c);
  const auto first = [&] {
    return std::pair(places(rig, "model.layers.0.mlp.down_proj.weight/perm_in"),
                     places(rig, "model.layers.1.mlp.down_proj.weight/perm_in"));
  };
  const auto start = first();
  EXPECT_FALSE(merges_after(c, 2));
  merge_if_due<Host, double>(rig.model, rig.weights, 7, 2);
  EXPECT_EQ(first(), start);
  EXPECT_TRUE(merges_after(c, 3));
  merge_if_due<Host, double>(rig.model, rig.weights, 7, 3);
  const auto second = first();
  EXPECT_EQ(second.first, start.first);
  EXPECT_NE(second.second, start.second);
  merge_if_due<Host, double>(rig.model, rig.weights, 7, 4);
  EXPECT_NE(first().first, start.first);
  EXPECT_EQ(first().second, second.second);
}

}  // namespace
}  // namespace sestina
