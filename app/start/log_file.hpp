// The log.txt of a run as a sink of spdlog.
#pragma once
#include <spdlog/sinks/base_sink.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>

#include "io/store/output_file.hpp"

namespace sestina {

// Every message is written at once. A line that the disk refuses is lost, and standard error is told so once.
class LogFile final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LogFile(const std::string& run_dir) : file_(run_dir + "/log.txt") {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    if (file_.write({text.data(), text.size()}, false) || warned_) return;
    std::fprintf(stderr, "%s: a line could not be written: %s\n", file_.path().c_str(), std::strerror(errno));
    warned_ = true;
  }
  void flush_() override {}

 private:
  AppendFile file_;
  bool warned_ = false;
};

}  // namespace sestina
