// Files that change while they are read, more files than may lie open, and what links lead to.
#include "io/store/input_file.hpp"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <thread>

#include "io/tokens/token_file.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;
using Format = DataSource::Format;
using test::expect_error;
using test::TemporaryFolder;
using test::write_bytes;

TEST(StoredBytes, NoticesThatAFileWasCutOrReplaced) {
  const TemporaryFolder folder;
  const std::string path = folder / "a", text(10000, 'x');
  write_bytes(path, text);
  const FileBytes file(path);
  EXPECT_EQ(file.text(9000, 1000), text.substr(9000));
  fs::resize_file(path, 9500);
  EXPECT_EQ(file.text(0, 9500), text.substr(500));
  expect_error(ExitCode::input_missing, {path, "10000 bytes"}, [&] { file.text(9000, 1000); });
  const auto one = std::make_shared<OpenFiles>(1);
  write_bytes(folder / "b", text);
  const FileBytes b(folder / "b", one);
  write_bytes(folder / "c", text);
  fs::rename(folder / "c", folder / "b");
  EXPECT_EQ(b.text(0, 10), "xxxxxxxxxx");  // the one that was opened
  const FileBytes closes_it(path, one);
  expect_error(ExitCode::input_missing, {folder / "b", "replaced"}, [&] { b.text(0, 10); });
}

TEST(StoredBytes, OpensNoMoreFilesThanItMayFromSeveralThreads) {
  constexpr int count = 40;
  const TemporaryFolder folder;
  const auto open = std::make_shared<OpenFiles>(3);
  std::vector<FileBytes> files;
  for (int i = 0; i < count; ++i) {
    write_bytes(folder / std::to_string(i), std::to_string(i) + std::string(100, ' '));
    files.emplace_back(folder / std::to_string(i), open);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20 * count; ++i) {
        const int which = (i * (t + 1)) % count;
        EXPECT_EQ(std::stoi(files[static_cast<std::size_t>(which)].text(0, 10)), which);
      }
    });
  for (auto& thread : threads) thread.join();
  const auto open_now = [&] {
    int here = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code closed;
      here += fs::read_symlink(entry, closed).string().starts_with(folder.path()) ? 1 : 0;
    }
    return here;
  };
  EXPECT_LE(open_now(), 3);
}

// Every format: read to the end, then the file is cut, or written again with ids that are none.
TEST(StoredBytes, TokenSourcesRefuseAFileThatShrinks) {
  const TemporaryFolder folder;
  const std::vector<std::int32_t> ids(5000, 7);
  {
    MegatronWriter writer(folder / "m", 100);
    for (int d = 0; d < 50; ++d) writer.add_document(ids.data() + 100 * d, 100);
    writer.finish();
  }
  std::string header(1024, '\0');
  const std::int32_t head[3] = {20240520, 1, 5000};
  std::memcpy(header.data(), head, sizeof head);
  const std::string bytes = test::read_bytes(folder / "m.bin");
  write_bytes(folder / "l.bin", header + bytes);
  write_bytes(folder / "n.npy", bytes);
  write_bytes(folder / "t.txt", std::string(5000, 'a'));
  const std::vector<std::pair<DataSource, std::string>> sources = {{{Format::megatron, folder / "m", 1}, "m.bin"},
                                                                   {{Format::llmc, folder / "l.bin", 1}, "l.bin"},
                                                                   {{Format::npy, folder / "n.npy", 1}, "n.npy"},
                                                                   {{Format::text, folder / "t.txt", 1}, "t.txt"}};
  for (const auto& [described, name] : sources) {
    const auto source = open_source(described, nullptr, 256, 7);
    std::vector<std::int32_t> tokens(5000);
    std::vector<std::uint64_t> starts;
    source->read(0, 5000, tokens.data());
    const std::string before = test::read_bytes(folder / name);
    if (described.format != Format::text) {
      std::string other = before;
      for (std::size_t i = before.size() - 200; i < before.size(); ++i) other[i] = '\x7f';
      write_bytes(folder / name, other);
      expect_error(ExitCode::input_missing, {name, "id 32639"}, [&] { source->read(4000, 1000, tokens.data()); });
    }
    fs::resize_file(folder / name, before.size() / 2);
    source->read(0, 1000, tokens.data());
    expect_error(ExitCode::input_missing, {name, "cut"}, [&] { source->read(4000, 1000, tokens.data()); });
    fs::resize_file(folder / name, 0);
    expect_error(ExitCode::input_missing, {name, "cut"}, [&] { source->read(0, 1, tokens.data()); });
  }
  write_bytes(folder / "m.bin", bytes);
  const auto source = open_source(sources[0].first, nullptr, 100);
  fs::resize_file(folder / "m.idx", 100);
  std::vector<std::uint64_t> starts;
  expect_error(ExitCode::input_missing, {"m.idx", "cut"}, [&] { source->document_starts(0, 5000, starts); });
}

const auto is_text = [](const std::string& name) { return name.ends_with(".txt"); };

TEST(FolderList, FollowsLinksAndCountsEachFileOnce) {
  const TemporaryFolder folder;
  for (const char* name : {"in/z/x.txt", "in/y.txt", "in/other.bin", "out/v.txt", "out/w.txt", "far/u.txt"})
    write_bytes(folder / name, name);
  fs::create_directory_symlink("../out", folder / "in/linked");
  fs::create_directory_symlink("../../out", folder / "in/z/again");
  fs::create_directory_symlink("..", folder / "in/z/loop");
  fs::create_directory_symlink("../in", folder / "out/back");
  fs::create_directory_symlink("../far", folder / "out/far");
  fs::create_symlink("y.txt", folder / "in/a.txt");
  fs::create_symlink("../out/v.txt", folder / "in/v.txt");
  fs::create_symlink("nobody@host.1234", folder / "in/.#y.txt");
  const std::vector<std::string> expected = {folder / "in/linked/far/u.txt", folder / "in/linked/v.txt",
                                             folder / "in/linked/w.txt", folder / "in/y.txt", folder / "in/z/x.txt"};
  EXPECT_EQ(list_folder(folder / "in", Depth::all_below, is_text), expected);
  EXPECT_EQ(list_folder(folder / "in", Depth::this_folder, is_text),
            (std::vector<std::string>{folder / "in/v.txt", folder / "in/y.txt"}));
  EXPECT_EQ(each_once({folder / "in/a.txt", folder / "in/y.txt", folder / "none", folder / "none"}),
            (std::vector<std::string>{folder / "in/a.txt", folder / "none", folder / "none"}));
}

// Root reads everything, until its process gives up all its capabilities.
bool obey_permissions() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const std::array<__user_cap_data_struct, 2> none{};
  return ::syscall(SYS_capset, &header, none.data()) == 0;
}

TEST(FolderList, RefusesWhatCannotBeRead) {
  const TemporaryFolder folder;
  write_bytes(folder / "in/x.txt", "text");
  for (const char* to : {"nowhere", "self.txt"}) {
    fs::create_symlink(to, folder / "in/self.txt");
    expect_error(ExitCode::input_missing, {"in/self.txt"},
                 [&] { list_folder(folder / "in", Depth::all_below, is_text); });
    fs::remove(folder / "in/self.txt");
  }
  write_bytes(folder / "in/closed/y.txt", "text");
  fs::permissions(folder / "in/closed", fs::perms::none);
  const pid_t child = ::fork();
  if (child == 0) {
    if (!obey_permissions()) ::_exit(2);
    try {
      list_folder(folder / "in", Depth::all_below, is_text);
    } catch (const Error& error) {
      const bool named = std::string(error.what()).find("in/closed: cannot be read") != std::string::npos;
      ::_exit(error.code() == ExitCode::input_missing && named ? 0 : 3);
    }
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  fs::permissions(folder / "in/closed", fs::perms::owner_all);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace sestina
