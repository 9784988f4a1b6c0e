// Which Sestina this is, asked of the library when a program runs: with shared libraries that need not be the one whose
// headers the program was compiled with. No Kokkos.
#pragma once
#include <string_view>

namespace sestina {

struct Version {
  int major, minor, patch;
  std::string_view text;        // "major.minor.patch", as the package find_package(Sestina) finds
  std::string_view commit;      // commit of the source, with "-dirty" where that was changed; "unknown" outside git
  std::string_view build_type;  // CMake's build type
  std::string_view compiler;    // name and version
};

const Version& version();

}  // namespace sestina
