// The HDF5 layer: every type, virtual datasets from any working directory, and errors as one message.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/hdf5_file.hpp"
#include "io/store/digest.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

struct Hdf5 : testing::Test {
  fs::path dir = fs::path(testing::TempDir()) / ("sestina-hdf5-" + std::to_string(::getpid()));
  Hdf5() { fs::create_directories(dir); }
  ~Hdf5() override { fs::remove_all(dir); }
  std::string at(const char* name) { return (dir / name).string(); }
  static ExitCode code_of(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::done;
  }
};

TEST_F(Hdf5, EveryTypeComesBack) {
  const std::vector<DType> types = {DType::f32, DType::f64, DType::bf16, DType::i32,
                                    DType::i64, DType::u8,  DType::u16,  DType::u32};
  std::vector<std::byte> bytes(5 * 3 * 8);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
  Hdf5File file = Hdf5File::create(at("a.h5"));
  std::vector<FilePart> parts;
  for (DType type : types) {
    const std::string path = std::string("/model/deep.er/") + name(type);
    parts.push_back({bytes.data(), file.add_tensor(path, type, {5, 3}), 15 * size_of(type)});
    EXPECT_GT(parts.back().offset, 0u);
  }
  file.add_text("/run/deck", "");
  file.close();
  write_parts(at("a.h5"), parts);
  const Hdf5File back = Hdf5File::open(at("a.h5"));
  for (DType type : types) {
    const std::string path = std::string("/model/deep.er/") + name(type);
    const Hdf5File::Shape shape = back.shape(path);
    EXPECT_EQ(shape.dtype, type);
    EXPECT_EQ(shape.shape, (std::vector<std::int64_t>{5, 3}));
    std::vector<std::byte> got(2 * 3 * size_of(type));
    back.read(path, type, {5, 3}, {2, 4, 0, 3}, got.data());
    EXPECT_EQ(std::memcmp(got.data(), bytes.data() + 6 * size_of(type), got.size()), 0) << name(type);
  }
  EXPECT_EQ(back.shape("/run/deck").dtype, std::nullopt);
}

TEST_F(Hdf5, VirtualDatasetsFindTheirFilesFromAnywhere) {
  std::vector<float> rows(12);
  std::iota(rows.begin(), rows.end(), 1.f);
  for (int part = 0; part < 2; ++part) {
    const std::string path = at(part == 0 ? "low.h5" : "high.h5");
    Hdf5File file = Hdf5File::create(path);
    const std::uint64_t offset = file.add_tensor("/model/w", DType::f32, {part == 0 ? 1 : 3, 3});
    file.close();
    write_parts(path, {{rows.data() + 3 * part, offset, part == 0 ? 12u : 36u}});
  }
  Hdf5File whole = Hdf5File::create(at("whole.h5"));
  whole.add_virtual("/model/w", DType::f32, {4, 3}, {{"low.h5", {0, 1, 0, 3}}, {"high.h5", {1, 4, 0, 3}}});
  whole.add_virtual("/model/none", DType::f32, {0, 3}, {{"low.h5", {0, 0, 0, 3}}});
  whole.close();
  std::vector<float> got(12);
  Hdf5File::open(at("whole.h5")).read("/model/w", DType::f32, {4, 3}, {0, 4, 0, 3}, got.data());
  EXPECT_EQ(got, rows);
}

TEST_F(Hdf5, ErrorsHaveTheirCodes) {
  EXPECT_EQ(code_of([&] { Hdf5File::create(at("nowhere/a.h5")); }), ExitCode::io_error);
  EXPECT_EQ(code_of([&] { Hdf5File::open(at("missing.h5")); }), ExitCode::bad_data);
  std::ofstream(at("text.h5")) << "this is no HDF5 file";
  EXPECT_EQ(code_of([&] { Hdf5File::open(at("text.h5")); }), ExitCode::bad_data);
  Hdf5File file = Hdf5File::create(at("a.h5"));
  file.add_tensor("/model/w", DType::f32, {2, 2});
  EXPECT_EQ(code_of([&] { file.add_tensor("/model/w", DType::f32, {2, 2}); }), ExitCode::io_error);  // twice
  file.close();
  const Hdf5File back = Hdf5File::open(at("a.h5"));
  double out[4];
  EXPECT_EQ(code_of([&] { back.read("/model/v", DType::f32, {2, 2}, {0, 2, 0, 2}, out); }), ExitCode::bad_data);
  EXPECT_EQ(code_of([&] { back.read("/model/w", DType::f64, {2, 2}, {0, 2, 0, 2}, out); }), ExitCode::bad_data);
  EXPECT_EQ(code_of([&] { back.read("/model/w", DType::f32, {4, 1}, {0, 2, 0, 1}, out); }), ExitCode::bad_data);
}

// The well-known values of the empty input, seed 0.
TEST(Digest, KnownValues) {
  EXPECT_EQ(digest128("", 0), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hex64(digest64("", 0)), "2d06800538d394c2");
}

TEST_F(Hdf5, DigestOfAFileIsThatOfItsBytes) {
  std::string bytes(3'000'017, 'x');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i);
  std::ofstream(at("f"), std::ios::binary) << bytes;
  EXPECT_EQ(digest_file(at("f")).xxh3_128, digest128(bytes.data(), bytes.size()));
  EXPECT_EQ(digest_file(at("f")).size, bytes.size());
  EXPECT_EQ(digest_range(at("f"), 1000, 2'000'000), hex64(digest64(bytes.data() + 1000, 2'000'000)));
  EXPECT_EQ(digest_range(at("f"), 3'000'000, 1'000'000), hex64(digest64(bytes.data() + 3'000'000, 17)));
}

}  // namespace
}  // namespace sestina
