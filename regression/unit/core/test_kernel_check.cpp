// The checks of kernels find what is wrong, and hold on this machine for every family and both types.
#include <gtest/gtest.h>

#include "core/check/checker.hpp"
#include "core/deck/deck.hpp"
#include "core/dispatch.hpp"

namespace sestina {
namespace {

Options checked_options(const std::string& model, const std::string& precision) {
  Deck deck;
  deck.add_text("[model]\nhidden_size = 64\nnum_hidden_layers = 1\nnum_attention_heads = 4\nvocab_size = 320\n" +
                    model + "[data]\nsequence_length = 48\n[train]\nglobal_batch = 3\nmicro_batch = 3\nprecision = \"" +
                    precision + "\"\n",
                "a.toml", "/folder");
  Options options = Options::read(deck);
  deck.finish();
  return options;
}

std::vector<KernelCheck> checks_of(const Options& options) {
  return dispatch(options.run.space, options.train.precision, [&](const auto& exec, auto tag) {
    return check_kernels<std::decay_t<decltype(exec)>, typename decltype(tag)::type>(exec, options, 3);
  });
}

std::vector<std::string> names_of(const std::vector<KernelCheck>& checks) {
  std::vector<std::string> names;
  for (const KernelCheck& check : checks) names.push_back(check.kernel);
  return names;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class KernelChecks : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Types, KernelChecks, testing::Values("fp32", "bf16"));

TEST_P(KernelChecks, HoldForEveryFamily) {
  struct Case {
    const char *model, *kernel;  // a kernel that only this family has
  };
  for (const auto& [model, kernel] :
       {Case{"family = \"llama\"\nintermediate_size = 176\nnum_key_value_heads = 2\n", "SwiGLU: backward"},
        Case{"family = \"llama\"\nintermediate_size = 173\n", "odd rows: added"},
        Case{"family = \"gpt\"\nintermediate_size = 256\nhidden_act = \"gelu_new\"\n", "LayerNorm: backward"},
        Case{"family = \"gpt\"\nintermediate_size = 256\nhidden_act = \"gelu\"\n", "gelu: backward"},
        Case{"family = \"gpt\"\nintermediate_size = 256\nhidden_act = \"relu2\"\n", "relu2: forward"},
        Case{"family = \"qwen3_moe\"\nnum_experts = 4\nnum_experts_per_tok = 2\nmoe_intermediate_size = 96\n",
             "expert down: weight gradient"},
        Case{"family = \"llama\"\nintermediate_size = 176\n[model.linear]\nform = \"poet-x\"\nblock_size = 16\n",
             "rotations of blocks: backward"}}) {
    const std::vector<KernelCheck> checks = checks_of(checked_options(model, GetParam()));
    for (const std::string& line : wrong_kernels(checks)) ADD_FAILURE() << model << line;
    EXPECT_TRUE(has(names_of(checks), kernel)) << model << kernel;
    for (const KernelCheck& check : checks) {
      EXPECT_GT(check.seconds, 0) << check.kernel;
      // A bound that a product of half the bits would keep finds nothing.
      EXPECT_LT(check.bound, GetParam() == std::string("bf16") ? 0.15 : 2e-3) << check.kernel;
    }
  }
}

TEST_P(KernelChecks, TryBothTypesOfARun) {
  const auto names = names_of(checks_of(checked_options("family = \"llama\"\nintermediate_size = 128\n", GetParam())));
  EXPECT_EQ(has(names, "Newton-Schulz in bf16"), GetParam() == std::string("bf16"));
  for (const char* name : {"copy to the host and back",
                           "digest of bits",
                           "q, k, v: weight gradient",
                           "attention: forward",
                           "attention: backward",
                           "residual, RMSNorm: forward",
                           "rotary",
                           "softmax cross-entropy",
                           "embedding: backward",
                           "AdamW",
                           "eigh",
                           "eigh of a batch",
                           "qr",
                           "inverse fourth root",
                           "Newton-Schulz in fp32",
                           "Muon of a batch in fp32",
                           "products of a list",
                           "SOAP of a batch",
                           "eigenvalues of a batch",
                           "Shampoo of a batch"})
    EXPECT_TRUE(has(names, name)) << name;
}

// A kernel that doubles numbers, with a mistake in element 5.
class CheckerFinds : public testing::Test {
 protected:
  template <class Mistake>
  std::vector<std::string> wrong_by(const Mistake& mistake) {
    Checker<Host> checker{Host()};
    auto x = checker.numbers<float>(4, 8);
    auto y = checker.blank<float>(4, 8);
    std::vector<double> doubled(x.size());
    for (std::size_t i = 0; i < doubled.size(); ++i) doubled[i] = 2 * x.start(i);
    int calls = 0;
    checker.check({"doubling", "4 x 8"}, {expected("y", y, 1e-6, std::move(doubled))}, [&] {
      const Vector<float, Host> from = x.vector(), to = y.vector();
      const float kept = to(5);
      for (std::size_t i = 0; i < from.size(); ++i) to(i) = 2 * from(i);
      mistake(to(5), kept, calls++);
    });
    return wrong_kernels(checker.take_results());
  }
};

TEST_F(CheckerFinds, NothingWhereNothingIsWrong) {
  EXPECT_TRUE(wrong_by([](float&, float, int) {}).empty());
}
TEST_F(CheckerFinds, ANumberThatIsALittleWrong) {
  const auto lines = wrong_by([](float& y, float, int) { y += 1e-4f; });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].rfind("doubling (4 x 8): y differs from its plain reference by ", 0), 0u) << lines[0];
  EXPECT_NE(lines[0].find("allowed 1e-06"), std::string::npos) << lines[0];
}
TEST_F(CheckerFinds, ANumberThatIsNotFinite) {
  const auto lines = wrong_by([](float& y, float, int) { y = std::numeric_limits<float>::quiet_NaN(); });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("by inf"), std::string::npos) << lines[0];
}
TEST_F(CheckerFinds, ANumberThatIsNotWritten) {
  EXPECT_EQ(wrong_by([](float& y, float kept, int) { y = kept; }).size(), 1u);
}
TEST_F(CheckerFinds, OtherBitsInASecondCall) {
  const auto lines = wrong_by([](float& y, float, int call) { y = call == 1 ? std::nextafter(y, 9.0f) : y; });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "doubling (4 x 8): two calls with the same input gave other bits");
}

}  // namespace
}  // namespace sestina
