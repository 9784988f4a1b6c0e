// Packed text to text, whole, in memory. No Kokkos.
#pragma once
#include <string>
#include <string_view>

namespace sestina {

// Several members or frames one after the other are one text; Error(bad_data) names `path` when damaged or cut.
std::string unpack_gzip(std::string_view packed, const std::string& path);
std::string unpack_zstd(std::string_view packed, const std::string& path);

}  // namespace sestina
