// Text that goes into the page. No Kokkos.
#pragma once
#include <cmath>
#include <string>
#include <string_view>

namespace sestina {

std::string escape_html(std::string_view text);  // & < > " '
std::string json_string(
    std::string_view text);               // quoted; no "<" and no broken UTF-8, so that a script element can hold it
std::string short_number(double value);   // three or four digits: "1.23k", "4.5M"
std::string short_bytes(double value);    // "1.5 GiB"
std::string short_seconds(double value);  // "12 ms", "3.4 s", "5 min 20 s", "3 h 05 min"

}  // namespace sestina
