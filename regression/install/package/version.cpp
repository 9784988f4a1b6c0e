// Prints what the library says it is, as the program does, and whether it is the package that was found.
#include <cstdio>
#include <string>

#include "sestina/kernels/base/version.hpp"

int main() {
  const sestina::Version& v = sestina::version();
  std::printf("sestina %s (%s)\n", std::string(v.text).c_str(), std::string(v.commit).c_str());
  const std::string numbers = std::to_string(v.major) + "." + std::to_string(v.minor) + "." + std::to_string(v.patch);
  return v.text == PACKAGE_VERSION && numbers == PACKAGE_VERSION ? 0 : 1;
}
