// Uses one thing from each installed room that can be used alone.
#include <cstdio>

#include "core/random.hpp"
#include "io/digest.hpp"
#include "kernels/workspace.hpp"
#include "sestina_version.hpp"

int main() {
  Kokkos::ScopeGuard kokkos;
  sestina::Workspace<sestina::Host> workspace(1024);
  std::printf("Sestina %s, workspace of %zu bytes\n", sestina::version.data(), workspace.capacity());
  return workspace.capacity() == 1024 ? 0 : 1;
}
