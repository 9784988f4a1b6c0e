#include "io/report/page.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace sestina {
namespace {

// Writes three digits, without trailing zeros after the point.
std::string digits(double value) {
  const double size = std::abs(value);
  std::string text = fmt::format("{:.{}f}", value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string json_string(std::string_view text) {
  const std::string quoted =
      nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string out;
  for (const char c : quoted) {
    if (c == '<')
      out += "\\u003c";  // no "</script>" and no "<!--"
    else
      out += c;
  }
  return out;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size != 0 && size < 0.01) return fmt::format("{:.3g}", value);
  constexpr const char* suffixes[] = {"", "k", "M", "G", "T", "P"};
  std::size_t power = 0;
  while (power + 1 < std::size(suffixes) && std::abs(value) >= (power == 0 ? 9999.5 : 999.5)) value /= 1000, ++power;
  if (power == 0 && value == std::round(value)) return fmt::format("{:.0f}", value);
  if (std::abs(value) >= 999.5) return fmt::format("{:.0f}{}", value, suffixes[power]);
  return digits(value) + suffixes[power];
}

std::string short_bytes(double value) {
  if (!std::isfinite(value)) return "–";
  constexpr const char* suffixes[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t power = 0;
  while (power + 1 < std::size(suffixes) && value >= 1023.5) value /= 1024, ++power;
  return digits(value) + " " + suffixes[power];
}

std::string short_seconds(double value) {
  if (!std::isfinite(value)) return "–";
  if (value < 1e-3) return digits(value * 1e6) + " µs";
  if (value < 0.9995) return digits(value * 1e3) + " ms";
  if (value < 60) return digits(value) + " s";
  const auto s = static_cast<long long>(value + 0.5);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s % 3600 / 60);
}

}  // namespace sestina
