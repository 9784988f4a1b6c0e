// The manifest parser: round trip, and refusal of what is damaged, hostile or of another version.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "io/checkpoint/manifest.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

Manifest example() {
  Manifest manifest;
  manifest.serial = 4;
  manifest.run.step = 12;
  manifest.run.loss = std::numeric_limits<double>::quiet_NaN();
  manifest.run.deck = "a = \"\xe2\x82\xac\"\n";
  manifest.files = {{"shard_00000.h5", 10000, std::string(32, 'a')}, {"global.h5", 5000, std::string(32, '0')}};
  manifest.tensors = {{"/model/w", DType::f32, {4, 3}, 7, {{0, 0, 4, 0, 0, 4096, 48, std::string(16, 'f')}}}};
  return manifest;
}

// The example with one piece of its text replaced and the digest made again.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = manifest_text(example());
  text = text.substr(0, text.rfind(",\n\"digest\"")) + "}";
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return seal_manifest(text.replace(at, from.size(), to));
}

std::string refusal(const std::string& text) {
  try {
    parse_manifest(text, "m");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    return error.what();
  }
}

TEST(Manifest, RoundTrip) {
  const Manifest back = parse_manifest(manifest_text(example()), "m");
  EXPECT_EQ(manifest_text(back), manifest_text(example()));
  EXPECT_TRUE(std::isnan(back.run.loss));
  EXPECT_EQ(back.tensors[0].pieces[0].offset, 4096u);
  EXPECT_EQ(refusal(changed("\"serial\": 4", "\"serial\": 5")), "");
}

TEST(Manifest, ListsTheFilesThatACheckpointCarries) {
  EXPECT_EQ(manifest_text(example()).find("companions"), std::string::npos);  // as it was without any
  Manifest manifest = example();
  manifest.companions = {{"config.json", 7, std::string(32, 'c')}, {"tokenizer.json", 9, std::string(32, 'd')}};
  const Manifest back = parse_manifest(manifest_text(manifest), "m");
  ASSERT_EQ(back.companions.size(), 2u);
  EXPECT_EQ(back.companions[1].name, "tokenizer.json");
  EXPECT_EQ(bytes_of(back), 15016u);
  for (const char* name : {"../config.json", "", ".hidden", "a/b", "config.json"}) {
    manifest.companions[1].name = name;
    EXPECT_NE(refusal(manifest_text(manifest)).find("companions[1]"), std::string::npos) << name;
  }
}

TEST(Manifest, RefusesEachDefectByName) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"\"version\": 1", "\"version\": 2", "schema version 2"},
      {"\"version\": 1", "\"version\": -1", "version"},
      {"\"version\": 1", "\"version\": 1e0", "version"},
      {"sestina-checkpoint", "other", "schema"},
      {"\"size\": 10000", "\"size\": -1", "size"},
      {"\"size\": 10000", "\"size\": 18446744073709551615", "size"},
      {"\"size\": 10000", "\"size\": 99999999999999999999999999", "size"},
      {"\"size\": 10000", "\"size\": 100", "beyond the end"},
      {"\"size\": 10000", "\"size\": \"10000\"", "size"},
      {"\"step\": 12", "\"step\": -12", "step"},
      {"\"step\": 12,", "", "step"},
      {"\"step\": 12", "\"step\": 12, \"step\": 13", "twice"},
      {"\"step\": 12", "\"step\": 12, \"extra\": 0", "members"},
      {"\"ranks\": 1", "\"ranks\": 2", "shard"},
      {"\"ranks\": 1", "\"ranks\": 4000000000", "ranks"},
      {"\"shard_00000.h5\"", "\"../../../etc/passwd\"", "passwd"},
      {"\"shard_00000.h5\"", "\"global.h5\"", "twice"},
      {"\"/model/w\"", "\"/model/../w\"", "path"},
      {"\"/model/w\"", "\"/etc/w\"", "path"},
      {"\"/model/w\"", "\"/model/\"", "path"},
      {"\"f32\"", "\"f33\"", "dtype"},
      {"\"row_end\": 4", "\"row_end\": 3", "bytes"},
      {"\"row_end\": 4", "\"row_end\": 5", "rows"},
      {"\"row_begin\": 0", "\"row_begin\": 1", "rows"},
      {"\"bytes\": 48", "\"bytes\": 47", "bytes"},
      {"\"offset\": 4096", "\"offset\": 9007199254740991", "beyond"},
      {std::string(16, 'f'), std::string(15, 'f'), "digest"},
      {std::string(32, 'a'), std::string(32, 'x'), "digest"},
  };
  for (const auto& [from, to, part] : cases) {
    const std::string message = refusal(changed(from, to));
    EXPECT_NE(message.find(part), std::string::npos) << to << ": " << message;
  }
}

// How a tensor is refused that lies in as many shards as there are pieces: each are (row_begin, row_end, col_begin,
// col_end).
std::string refusal_of_pieces(const std::vector<std::array<std::int64_t, 4>>& pieces,
                              const std::vector<std::int64_t>& shape = {6, 9}) {
  Manifest manifest = example();
  manifest.ranks = manifest.dp = static_cast<std::int64_t>(pieces.size());
  manifest.files.resize(1, manifest.files[0]);
  manifest.files[0].name = "global.h5";
  manifest.tensors[0].shape = shape;
  manifest.tensors[0].pieces.clear();
  for (const auto& [row_begin, row_end, col_begin, col_end] : pieces) {
    const std::size_t number = manifest.files.size();
    manifest.files.push_back({fmt::format("shard_{:05}.h5", number - 1), 1 << 20, std::string(32, 'a')});
    ManifestPiece piece{number, row_begin, row_end, col_begin, col_end, 4096, 0, std::string(16, 'f')};
    piece.bytes = static_cast<std::uint64_t>(piece.row_end - piece.row_begin) * 4;
    if (shape.size() > 1)
      piece.bytes *= static_cast<std::uint64_t>(piece.col_end == 0 ? shape[1] : piece.col_end - piece.col_begin);
    piece.bytes = std::min<std::uint64_t>(piece.bytes, 4096);  // inside the file, whatever the columns say
    manifest.tensors[0].pieces.push_back(piece);
  }
  return refusal(manifest_text(manifest));
}

TEST(Manifest, PiecesOfColumnsMustHoldEachElementOnce) {
  EXPECT_EQ(refusal_of_pieces({{0, 6, 0, 0}}), "");
  EXPECT_EQ(refusal_of_pieces({{0, 6, 0, 9}}), "");
  EXPECT_EQ(refusal_of_pieces({{0, 6, 0, 4}, {0, 6, 4, 9}}), "");
  EXPECT_EQ(refusal_of_pieces({{0, 2, 0, 4}, {0, 5, 4, 9}, {2, 6, 0, 4}, {5, 6, 4, 9}}), "");
  EXPECT_EQ(refusal_of_pieces({{0, 2, 0, 6}, {0, 4, 6, 9}, {2, 6, 0, 3}, {2, 4, 3, 6}, {4, 6, 3, 9}}), "");  // a wheel
  const auto refused = [](const char* part, const auto& pieces, const std::vector<std::int64_t>& shape = {6, 9}) {
    const std::string message = refusal_of_pieces(pieces, shape);
    EXPECT_NE(message.find(part), std::string::npos) << part << ": " << message;
  };
  using Pieces = std::vector<std::array<std::int64_t, 4>>;
  refused("overlap", Pieces{{0, 6, 0, 5}, {0, 6, 4, 9}});
  refused("overlap", Pieces{{0, 6, 0, 0}, {0, 6, 0, 0}});
  refused("overlap", Pieces{{0, 4, 0, 9}, {3, 6, 2, 3}});
  refused("overlap", Pieces{{0, 4, 3, 4}, {3, 6, 0, 9}});
  refused("cover 48 of 54", Pieces{{0, 6, 0, 4}, {0, 6, 5, 9}});
  refused("cover 45 of 54", Pieces{{0, 2, 0, 0}, {3, 6, 0, 0}});
  refused("cover 0 of 54", Pieces{});
  refused("come after", Pieces{{0, 6, 4, 9}, {0, 6, 0, 4}});
  refused("outside", Pieces{{0, 6, 0, 4}, {0, 6, 4, 10}});
  refused("outside", Pieces{{0, 7, 0, 0}});
  refused("outside", Pieces{{0, 6, 0, 1}}, {6});
  refused("empty", Pieces{{0, 0, 0, 0}, {0, 6, 0, 0}});
  refused("are empty", Pieces{{0, 6, 4, 4}, {0, 6, 0, 0}});
  refused("are empty", Pieces{{0, 6, 5, 4}, {0, 6, 0, 0}});
  refused("col_begin", Pieces{{0, 6, -1, 4}, {0, 6, 4, 9}});
  refused("col_end", Pieces{{0, 6, 0, std::int64_t{1} << 60}});
  refused("outside", Pieces{{0, 6, 0, (std::int64_t{1} << 53) - 1}});
}

TEST(Manifest, TensorsWithoutElementsHaveOnePiece) {
  EXPECT_EQ(refusal_of_pieces({{0, 0, 0, 0}}, {0, 9}), "");
  EXPECT_EQ(refusal_of_pieces({{0, 6, 0, 0}}, {6, 0}), "");
  EXPECT_NE(refusal_of_pieces({{0, 0, 0, 0}, {0, 0, 0, 0}}, {0, 9}), "");
  EXPECT_NE(refusal_of_pieces({{0, 3, 0, 0}, {3, 6, 0, 0}}, {6, 0}), "");
  EXPECT_NE(refusal_of_pieces({}, {0, 9}), "");
}

TEST(Manifest, LayoutMustAgreeWithTheRanks) {
  EXPECT_NE(refusal(changed("\"dp\": 1", "\"dp\": 2")).find("dp 2"), std::string::npos);
  EXPECT_NE(refusal(changed("\"tp\": 1,", "")).find("tp"), std::string::npos);
  EXPECT_NE(refusal(changed("\"pp\": 1", "\"pp\": 1, \"cp\": 1")).find("members"), std::string::npos);
  EXPECT_NE(refusal(changed("\"dp\": 1", "\"dp\": 0")).find("dp 0"), std::string::npos);
}

TEST(Manifest, TwoPiecesOfATensorInOneFileAreRefused) {
  Manifest manifest = example();
  manifest.tensors[0].pieces = {{0, 0, 2, 0, 0, 4096, 24, std::string(16, 'f')},
                                {0, 2, 4, 0, 0, 5000, 24, std::string(16, 'f')}};
  EXPECT_NE(refusal(manifest_text(manifest)).find("one file"), std::string::npos);
}

TEST(Manifest, HugeShapesDoNotOverflow) {
  const std::string text = manifest_text(example());
  const std::size_t at = text.find("\"shape\": ["), end = text.find(']', at);
  const std::string shape = text.substr(at, end + 1 - at);
  for (const char* dims : {"[9007199254740991, 9007199254740991]", "[4, 9007199254740991, 2]", "[]", "[4, -3]",
                           "[4, 3.0]", "[1,1,1,1,1,1,1,1,12]", "[4294967296, 4294967296, 4294967296]"})
    EXPECT_NE(refusal(changed(shape, std::string("\"shape\": ") + dims)), "") << dims;
}

TEST(Manifest, NotJsonOrNestedDeep) {
  EXPECT_NE(refusal(""), "");
  EXPECT_NE(refusal("{}"), "");
  EXPECT_NE(refusal(std::string(1000, ' ')), "");
  EXPECT_NE(refusal(seal_manifest("{\"a\": [1, 2}")), "");
  EXPECT_NE(refusal(seal_manifest("{}")), "");
  EXPECT_NE(refusal(seal_manifest(std::string("{\"a\": \"\xff\xfe\"}"))), "");
  EXPECT_NE(refusal(seal_manifest("{\"a\": " + std::string(1000000, '['))).find("deeper"), std::string::npos);
  EXPECT_NE(refusal(seal_manifest("{\"a\": null}")), "");
}

TEST(Manifest, AnyChangedByteBreaksTheSeal) {
  const std::string text = manifest_text(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = static_cast<char>(other[i] ^ 1);
    ASSERT_NE(refusal(other), "") << i;
  }
  for (std::size_t size = 0; size < text.size(); ++size) ASSERT_NE(refusal(text.substr(0, size)), "") << size;
  EXPECT_NE(refusal(text + " "), "");
}

}  // namespace
}  // namespace sestina
