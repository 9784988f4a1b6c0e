# Writes HEADER when its text changes. Run by SestinaVersion.cmake with cmake -P.
execute_process(COMMAND git describe --always --dirty --exclude=* WORKING_DIRECTORY ${SOURCE_DIR}
  OUTPUT_VARIABLE hash OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE error)
if(error)
  set(hash unknown)
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT [[// Made by cmake/write_version.cmake.
#pragma once
#include <string_view>

namespace sestina::version_values {

inline constexpr int major = @MAJOR@, minor = @MINOR@, patch = @PATCH@;
inline constexpr std::string_view text = "@VERSION@";
inline constexpr std::string_view commit = "@hash@";
inline constexpr std::string_view build_type = "@BUILD_TYPE@";
inline constexpr std::string_view compiler = "@COMPILER@";

}  // namespace sestina::version_values
]] @ONLY)
