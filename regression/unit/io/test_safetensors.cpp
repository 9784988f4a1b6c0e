#include "io/hf/safetensors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "io/store/input_file.hpp"
#include "io/store/output_file.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

using test::expect_error;
using test::TemporaryFolder;

std::string image(const std::string& header, const std::string& data) {
  std::string bytes;
  test::append(bytes, std::uint64_t{header.size()});
  return bytes + header + data;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape + "],\"data_offsets\":[" + offsets + "]}";
}

void expect_refused(const std::string& bytes, const std::string& word) {
  expect_error(ExitCode::bad_data, {"here.safetensors", word}, [&] { SafeTensors::parse(bytes, "here.safetensors"); });
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\",\"a\":\"b\"}," + entry("b", "F32", "2,2", "4,20") +
                             "," + entry("a", "I8", "4", "0,4") + "," + entry("scalar", "F16", "", "20,22") + "," +
                             entry("none", "F32", "0,3", "22,22") + "}   ";
  const auto tensors = SafeTensors::parse(image(header, std::string(22, 'x')), "here");
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors.at("b").shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(tensors.at("b").bytes, 16u);
  EXPECT_EQ(tensors.at("b").data - tensors.at("a").data, 4);
  EXPECT_TRUE(tensors.at("scalar").shape.empty());
  EXPECT_EQ(tensors.at("none").bytes, 0u);
  EXPECT_TRUE(SafeTensors::parse(image("{}", ""), "here").empty());
}

TEST(Safetensors, RefusesDamagedLengths) {
  std::string huge;
  test::append(huge, std::uint64_t{1} << 63);
  expect_refused(huge + "{}", "9223372036854775808");
  std::string large;
  test::append(large, std::uint64_t{100'000'001});
  expect_refused(large + "{}", "allowed are 100000000");
  std::string longer;
  test::append(longer, std::uint64_t{3});
  expect_refused(longer + "{}", "holds 2 after its length");
  expect_refused("1234567", "at least 8");
  expect_refused("", "at least 8");
}

TEST(Safetensors, RefusesDamagedHeaders) {
  expect_refused(image(" {}", ""), "begin with '{'");
  expect_refused(image("[]", ""), "begin with '{'");
  expect_refused(image("{} x", ""), "not valid JSON");
  expect_refused(image("{\"a", ""), "not valid JSON");
  expect_refused(image("{\"a\xff\":{}}", ""), "not valid JSON in UTF-8");
  expect_refused(image("{\"a\":3}", ""), "a number");
  expect_refused(image("{\"a\":{}}", ""), "lacks one of");
  expect_refused(image("{\"a\":{\"dtype\":{\"x\":1}}}", ""), "an object");
  expect_refused(image("{\"a\":{\"dtype\":\"F32\",\"color\":1}}", ""), "'color'");
  expect_refused(image("{\"__metadata__\":{\"a\":1}}", ""), "a number");
  expect_refused(image("{" + entry("a", "F32", "-1", "0,4") + "}", "abcd"), "negative");
  expect_refused(image("{" + entry("a", "F32", "1.5", "0,4") + "}", "abcd"), "fraction");
  expect_refused(image("{" + entry("a", "F32", "1", "0,4,5") + "}", "abcd"), "need 2");
  expect_refused(image("{" + entry("a", "F32", "[1]", "0,4") + "}", "abcd"), "a list");
  expect_refused(image("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "abcd"),
                 "twice");
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100000; ++i) deep += "[";
  expect_refused(image(deep, ""), "a list");
}

TEST(Safetensors, RefusesHolesOverlapsAndDuplicates) {
  const std::string four(4, 'x'), eight(8, 'x');
  expect_refused(image("{" + entry("a", "F32", "1", "4,8") + "}", eight), "hole");
  expect_refused(image("{" + entry("a", "F32", "1", "0,4") + "," + entry("b", "F32", "1", "2,6") + "}", eight),
                 "overlap");
  expect_refused(image("{" + entry("a", "F32", "1", "0,4") + "," + entry("b", "F32", "1", "0,4") + "}", four),
                 "overlap");
  expect_refused(image("{" + entry("a", "F32", "1", "0,4") + "," + entry("a", "F32", "1", "4,8") + "}", eight),
                 "twice");
  expect_refused(image("{" + entry("a", "F32", "1", "0,4") + "}", eight), "file holds 8");
  expect_refused(image("{" + entry("a", "F32", "2", "0,8") + "}", four), "file holds 4");
  expect_refused(image("{" + entry("a", "F32", "2", "0,4") + "}", four), "need 8 bytes");
  expect_refused(image("{" + entry("a", "F32", "1", "4,0") + "}", four), "hole");
  expect_refused(image("{" + entry("a", "Q17", "1", "0,4") + "}", four), "unknown dtype 'Q17'");
}

TEST(Safetensors, RefusesSizesThatOverflow) {
  const std::string two_to_62 = "4611686018427387904";
  expect_refused(image("{" + entry("a", "F32", two_to_62, "0,0") + "}", ""), "beyond 64 bits");
  expect_refused(image("{" + entry("a", "F32", two_to_62 + ",4,0", "0,0") + "}", ""), "beyond 64 bits");
  expect_refused(image("{" + entry("a", "U8", "0,18446744073709551615", "0,0") + "}", ""), "beyond 64 bits");
  expect_refused(image("{" + entry("a", "U8", "18446744073709551616", "0,0") + "}", ""), "64 bits");
}

TEST(Safetensors, ConvertsEveryFloatType) {
  const TemporaryFolder folder;
  const float exact[] = {0.0f, -0.0f, 1.0f, -2.5f, 65504.0f, 0x1p-24f, 0x1.8p-15f, INFINITY};
  const std::uint16_t half[] = {0x0000, 0x8000, 0x3c00, 0xc100, 0x7bff, 0x0001, 0x0300, 0x7c00};
  const float wide[] = {1.0f, -3.0f, 0x1p100f, 0.0f};
  const std::uint16_t brain[] = {0x3f80, 0xc040, 0x7180, 0x0000};
  const double full[] = {0.1, -1e-300};
  write_safetensors(folder.path(), {{"f32", "F32", {2, 4}, exact, sizeof exact},
                                    {"f16", "F16", {8}, half, sizeof half},
                                    {"bf16", "BF16", {2, 2}, brain, sizeof brain},
                                    {"f64", "F64", {2}, full, sizeof full}});
  const auto file = SafeTensors::open(folder.path());
  float out[8];
  file.read_f32("f32", {2, 4}, out);
  EXPECT_EQ(std::memcmp(out, exact, sizeof exact), 0);
  file.read_f32("f16", {8}, out);
  EXPECT_EQ(std::memcmp(out, exact, sizeof exact), 0);
  file.read_f32("bf16", {2, 2}, out);
  EXPECT_EQ(std::memcmp(out, wide, sizeof wide), 0);
  file.read_f32("f64", {2}, out);
  EXPECT_EQ(out[0], 0.1f);
  EXPECT_EQ(out[1], 0.0f);
  expect_error(ExitCode::bad_data, {"'f32'", "[2, 4]", "[4, 2]"}, [&] { file.read_f32("f32", {4, 2}, out); });
  expect_error(ExitCode::bad_data, {"'f99'", "missing"}, [&] { file.read_f32("f99", {1}, out); });
}

TEST(Safetensors, RefusesTensorsThatAreNoFloats) {
  const TemporaryFolder folder;
  const std::int32_t numbers[] = {1, 2};
  write_safetensors(folder.path(), {{"ids", "I32", {2}, numbers, sizeof numbers}});
  float out[2];
  expect_error(ExitCode::bad_data, {"I32", "F32, BF16, F16, F64"},
               [&] { SafeTensors::open(folder.path()).read_f32("ids", {2}, out); });
}

TEST(Safetensors, WritesAlignedHeadersWithMetadata) {
  const TemporaryFolder folder;
  const std::uint16_t small[] = {1, 2, 3};
  const double large[] = {4.0};
  write_safetensors(folder.path(),
                    {{"small", "BF16", {3}, small, sizeof small}, {"large", "F64", {1}, large, sizeof large}});
  const std::string bytes = test::read_bytes(folder / "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  EXPECT_EQ(header % 8, 0u);
  EXPECT_EQ(bytes.size(), 8 + header + sizeof small + sizeof large);
  EXPECT_NE(bytes.find("\"__metadata__\":{\"format\":\"pt\"}"), std::string::npos);
  const auto tensors = SafeTensors::parse(bytes, "here");
  EXPECT_EQ((tensors.at("large").data - reinterpret_cast<const std::byte*>(bytes.data())) % 8, 0);
}

TEST(Safetensors, ShardsAndReadsThemBack) {
  const TemporaryFolder folder;
  std::vector<float> values(30);
  std::iota(values.begin(), values.end(), 0.0f);
  std::vector<SafeTensorSource> sources;
  for (int i = 0; i < 3; ++i) sources.push_back({"t" + std::to_string(i), "F32", {10}, values.data() + 10 * i, 40});
  write_safetensors(folder.path(), sources, 80);
  EXPECT_TRUE(std::filesystem::exists(folder / "model-00002-of-00002.safetensors"));
  float out[10];
  {
    const auto set = SafeTensors::open(folder.path());
    EXPECT_EQ(set.tensors().size(), 3u);
    set.read_f32("t2", {10}, out);
    EXPECT_EQ(out[9], 29.0f);
  }
  std::filesystem::rename(folder / "model-00002-of-00002.safetensors", folder / "gone");
  expect_error(ExitCode::input_missing, {"model-00002-of-00002"}, [&] { SafeTensors::open(folder.path()); });
  write_safetensors(folder.path(), sources);  // whole again: the index must not win
  EXPECT_EQ(SafeTensors::open(folder.path()).tensors().size(), 3u);
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors.index.json"));
}

TEST(Safetensors, RefusesDamagedIndexes) {
  const TemporaryFolder folder;
  const float value = 1;
  write_safetensors(folder.path(), {{"a", "F32", {1}, &value, 4}});
  const std::string index = folder / "x.index.json";
  const auto refused = [&](const std::string& text, const std::string& word) {
    test::write_bytes(index, text);
    expect_error(ExitCode::bad_data, {"x.index.json", word}, [&] { SafeTensors::open(index); });
  };
  refused("", "weight_map");
  refused("{\"weight_map\":[]}", "weight_map");
  refused("{\"weight_map\":{\"a\":\"../model.safetensors\"}}", "same folder");
  refused("{\"weight_map\":{\"a\":3}}", "same folder");
  refused("{\"weight_map\":{\"b\":\"model.safetensors\"}}", "'a'");
  refused("{\"weight_map\":{\"a\":\"model.safetensors\",\"b\":\"model.safetensors\"}}", "'b'");
  expect_error(ExitCode::input_missing, {"nowhere"}, [&] { SafeTensors::open(folder / "nowhere"); });
}

TEST(OutputFile, AppearsOnlyWhenCommitted) {
  const TemporaryFolder folder;
  const std::string path = folder / "sub/file";
  {
    OutputFile file(path);
    file.write("half");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "sub"));
  const std::string large(3 << 20, 'y');
  OutputFile file(path);
  file.write("head");
  file.write(large);
  file.write("tail");
  file.commit();
  EXPECT_EQ(file.written(), large.size() + 8);
  EXPECT_EQ(test::read_bytes(path), "head" + large + "tail");
  EXPECT_EQ(MappedFile(path).view(), "head" + large + "tail");
  expect_error(ExitCode::cannot_create, {"sub/file"}, [&] { OutputFile(path + "/below"); });
}

}  // namespace
}  // namespace sestina
