// The configuration of tiles that the twins compiled for AMX share. It is data alone: they share no function.
#pragma once
#include <cstdint>

namespace sestina::host {

// All eight tiles have 16 rows of 64 bytes. The configuration is static, since compilers know no more of the
// instruction that loads it than that it reads the first eight bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static constexpr TileConfig tile_config;

}  // namespace sestina::host
