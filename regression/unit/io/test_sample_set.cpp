#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "io/tokens/data_loader.hpp"
#include "sestina_test_paths.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

using test::expect_error;
using test::TemporaryFolder;

// Sources of u16 tokens whose value is their own place in the stream (plus an offset), in documents of the given
// length.
class Sources {
 public:
  explicit Sources(int sequence) { options.sequence_length = sequence; }
  DataSource add(const std::string& name, int tokens, int offset, int document, double weight) {
    MegatronWriter writer(folder / name, 65000);
    std::vector<std::int32_t> values(tokens);
    std::iota(values.begin(), values.end(), offset);
    for (int begin = 0; begin < tokens; begin += document)
      writer.add_document(values.data() + begin, std::min(document, tokens - begin));
    writer.finish();
    return {DataSource::Format::megatron, folder / name, weight};
  }
  SampleSet open(Split split = Split::train, std::uint64_t seed = 3) const {
    return SampleSet(options, split, 65000, seed, nullptr);
  }

  TemporaryFolder folder;
  DataOptions options;
};

std::vector<std::int32_t> tokens_of(const SampleSet& set, std::uint64_t sample) {
  std::vector<std::int32_t> tokens(set.sequence() + 1), first(set.sequence());
  set.read(sample, tokens.data(), first.data());
  return tokens;
}

TEST(SampleSet, ReadsWindowsInOrderWithoutShuffling) {
  Sources sources(7);
  sources.options.shuffle = false;
  sources.options.source = {sources.add("a", 100, 0, 100, 1)};
  const SampleSet set = sources.open();
  EXPECT_EQ(set.windows(), 14u);  // 99 / 7
  for (int sample = 0; sample < 30; ++sample) {
    const auto tokens = tokens_of(set, sample);
    for (int t = 0; t <= 7; ++t) EXPECT_EQ(tokens[t], sample % 14 * 7 + t);
  }
}

TEST(SampleSet, ShufflesEveryEpochAnewAndReadsEachWindowOnce) {
  Sources sources(5);
  sources.options.source = {sources.add("a", 1001, 0, 1001, 1)};
  const SampleSet set = sources.open();
  ASSERT_EQ(set.windows(), 200u);
  std::vector<std::vector<int>> epochs(3);
  for (int sample = 0; sample < 600; ++sample) epochs[sample / 200].push_back(tokens_of(set, sample)[0] / 5);
  for (const auto& epoch : epochs) {
    auto sorted = epoch;
    std::sort(sorted.begin(), sorted.end());
    for (int w = 0; w < 200; ++w) ASSERT_EQ(sorted[w], w);
    EXPECT_NE(epoch, sorted);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_EQ(tokens_of(sources.open(), 77), tokens_of(set, 77));
  int same = 0;
  const SampleSet other = sources.open(Split::train, 4);
  for (int sample = 0; sample < 200; ++sample) same += tokens_of(other, sample) == tokens_of(set, sample);
  EXPECT_LT(same, 12);  // one in expectation
}

TEST(SampleSet, BlendsByWeightAndKeepsEachSourceWhole) {
  Sources sources(5);
  sources.options.source = {sources.add("a", 501, 0, 501, 3), sources.add("b", 101, 10000, 101, 1)};
  const SampleSet set = sources.open();
  EXPECT_EQ(set.windows(), 120u);
  std::map<int, int> seen_a, seen_b;
  int a = 0, b = 0;
  for (int sample = 0; sample < 400; ++sample) {
    const int token = tokens_of(set, sample)[0];
    token >= 10000 ? ++seen_b[token] : ++seen_a[token];
    token >= 10000 ? ++b : ++a;
    EXPECT_LE(std::abs(a - 0.75 * (sample + 1)), 1.0) << sample;
  }
  EXPECT_EQ(a, 300);  // 3 epochs of 100 windows and 5 of 20
  ASSERT_EQ(seen_a.size(), 100u);
  ASSERT_EQ(seen_b.size(), 20u);
  for (const auto& [token, times] : seen_a) EXPECT_EQ(times, 3);
  for (const auto& [token, times] : seen_b) EXPECT_EQ(times, 5);
}

TEST(SourceBlend, NumbersTheSamplesOfEachSource) {
  const std::vector<double> weights = {0.2, 1.7, 0.01, 12};
  const SourceBlend blend(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::uint64_t> next(weights.size());
  for (std::uint64_t sample = 0; sample < 120000; ++sample) {
    const auto [source, ordinal] = blend.place(sample);
    ASSERT_EQ(ordinal, next[source]++) << sample;
  }
  // Off by less than one sample in a run, and by the rounding to whole slots, at most one in each period of 55440.
  for (std::size_t s = 0; s < weights.size(); ++s)
    EXPECT_NEAR(static_cast<double>(next[s]), weights[s] / sum * 120000, 4.0);
  EXPECT_EQ(blend.place(std::uint64_t{1} << 50).source, blend.place((std::uint64_t{1} << 50) + 55440).source);
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL, 1e-9})
    expect_error(ExitCode::bad_deck, {"source 2"}, [&] { SourceBlend({1.0, bad}); });
}

TEST(SampleSet, HoldsOutTheEndForValidation) {
  Sources sources(5);
  sources.options.validation_fraction = 0.1;
  sources.options.source = {sources.add("a", 501, 0, 501, 1), sources.add("b", 101, 10000, 101, 1)};
  const SampleSet train = sources.open(), validation = sources.open(Split::validation),
                  shared = train.validation(nullptr);
  EXPECT_EQ(train.windows(), 108u);
  EXPECT_EQ(validation.windows(), 12u);
  std::set<int> held, trained;
  for (int sample = 0; sample < 12; ++sample) {
    held.insert(tokens_of(validation, sample)[0]);
    EXPECT_EQ(tokens_of(shared, sample), tokens_of(validation, sample));
    EXPECT_EQ(tokens_of(validation, sample + 12), tokens_of(validation, sample));
  }
  EXPECT_EQ(held.size(), 12u);
  for (const int token : held) EXPECT_GE(token % 10000, token >= 10000 ? 90 : 450);
  for (int sample = 0; sample < 1000; ++sample) trained.insert(tokens_of(train, sample)[0]);
  EXPECT_EQ(trained.size(), 108u);
  for (const int token : trained) EXPECT_FALSE(held.contains(token));
}

TEST(SampleSet, ReadsValidationSourcesWhole) {
  Sources sources(5);
  sources.options.validation_fraction = 0.5;
  sources.options.shuffle = false;
  sources.options.source = {sources.add("a", 101, 0, 101, 1)};
  EXPECT_EQ(sources.open().windows(), 10u);
  sources.options.validation = {sources.add("v", 51, 500, 51, 1), sources.add("w", 11, 900, 11, 9)};
  EXPECT_EQ(sources.open().windows(), 20u);
  const SampleSet validation = sources.open().validation(nullptr);
  EXPECT_EQ(validation.windows(), 12u);
  EXPECT_EQ(tokens_of(validation, 3)[0], 515);
  EXPECT_EQ(tokens_of(validation, 11)[0], 905);
  sources.options.validation.clear();
  sources.options.validation_fraction = 0;
  EXPECT_EQ(sources.open(Split::validation).windows(), 0u);
}

TEST(SampleSet, MarksWhereTheOwnDocumentBegins) {
  Sources sources(8);
  sources.options.shuffle = false;
  sources.options.source = {sources.add("a", 100, 0, 11, 1)};
  for (const bool mask : {false, true}) {
    sources.options.mask_documents = mask;
    const SampleSet set = sources.open();
    for (int sample = 0; sample < 12; ++sample) {
      std::int32_t tokens[9], first[8];
      set.read(sample, tokens, first);
      for (int t = 0; t < 8; ++t)  // token value = place in the stream
        EXPECT_EQ(first[t], mask ? std::max(0, tokens[t] / 11 * 11 - tokens[0]) : 0) << sample << " " << t;
    }
  }
}

// The same documents in llm.c's order (the end token first), in the other, and in a Megatron pair: the end token is the
// last target of one document and the first position of the next.
TEST(SampleSet, TheEndTokenStandsBetweenDocuments) {
  constexpr std::int32_t end = 9;
  const std::vector<std::int32_t> documents[] = {{1, 2, 3}, {4}, {5, 6}, {7, 8, 1, 2}};
  Sources sources(6);
  sources.options.shuffle = false;
  sources.options.mask_documents = true;
  std::vector<std::int32_t> first{}, last{};
  MegatronWriter writer(sources.folder / "pair", 65000);
  for (std::vector<std::int32_t> document : documents) {
    first.push_back(end);
    first.insert(first.end(), document.begin(), document.end());
    document.push_back(end);
    last.insert(last.end(), document.begin(), document.end());
    writer.add_document(document.data(), document.size());
  }
  writer.finish();
  const auto write = [&](const char* name, const std::vector<std::int32_t>& tokens) {
    const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
    test::write_bytes(sources.folder / name,
                      std::string(reinterpret_cast<const char*>(narrow.data()), 2 * narrow.size()));
  };
  write("first.npy", first);
  write("last.npy", last);
  const auto keys = [&](const DataSource& source, const DocumentMarks& marks) {
    sources.options.source = {source};
    const SampleSet set(sources.options, Split::train, 100, 1, nullptr, marks);
    std::vector<std::int32_t> all;
    for (std::uint64_t w = 0; w < set.windows(); ++w) {
      std::int32_t tokens[7], key[6];
      set.read(w, tokens, key);
      all.insert(all.end(), key, key + 6);
    }
    return all;
  };
  using Keys = std::vector<std::int32_t>;
  const DataSource npy_first{DataSource::Format::npy, sources.folder / "first.npy", 1},
      npy_last{DataSource::Format::npy, sources.folder / "last.npy", 1},
      pair{DataSource::Format::megatron, sources.folder / "pair", 1};
  // 9 1 2 3 9 4 | 9 5 6 9 7 8 and 1 2 3 9 4 9 | 5 6 9 7 8 1
  EXPECT_EQ(keys(npy_first, {end}), (Keys{0, 0, 0, 0, 4, 4, 0, 0, 0, 3, 3, 3}));
  EXPECT_EQ(keys(npy_last, {end}), (Keys{0, 0, 0, 3, 3, 5, 0, 0, 2, 2, 2, 2}));
  EXPECT_EQ(keys(pair, {end}), keys(npy_last, {end}));
  EXPECT_EQ(keys(pair, {}), (Keys{0, 0, 0, 0, 4, 4, 0, 0, 0, 3, 3, 3}));  // where the index cuts
  DocumentMarks marks(end);
  marks.begin = 4;  // a document that has a begin of its own
  EXPECT_EQ(keys(npy_last, marks), (Keys{0, 0, 0, 0, 4, 5, 0, 0, 2, 2, 2, 2}));
  for (const DataSource& source : {npy_first, npy_last})
    expect_error(ExitCode::bad_deck, {"data.mask_documents", "data.end_token", source.path}, [&] { keys(source, {}); });
}

TEST(SampleSet, RefusesSourcesWithoutAWindow) {  // fault 17
  Sources sources(8);
  sources.options.source = {sources.add("a", 9, 0, 9, 1)};
  EXPECT_EQ(sources.open().windows(), 1u);
  sources.options.validation_fraction = 0.1;
  expect_error(ExitCode::bad_data, {"1 windows", "validation_fraction"}, [&] { sources.open(); });
  sources.options.validation_fraction = 0;
  sources.options.source = {sources.add("b", 8, 0, 8, 1)};
  expect_error(ExitCode::bad_data, {"/b", "8 tokens", "needs 9 tokens"}, [&] { sources.open(); });
  sources.options.source.clear();
  expect_error(ExitCode::bad_deck, {"data.source"}, [&] { sources.open(); });
}

TEST(SampleSet, KnowsBytesPerTokenOfText) {
  DataOptions options;
  options.sequence_length = 64;
  options.source = {{DataSource::Format::text, std::string(SESTINA_SOURCE_DIR) + "/regression/data", 1}};
  const SampleSet set(options, Split::train, 256, 1, nullptr);
  EXPECT_EQ(set.bytes_per_token(), 1);
  EXPECT_GT(set.windows(), 1000u);
  EXPECT_NE(set.description().find("100.0 %"), std::string::npos);
}

}  // namespace
}  // namespace sestina
