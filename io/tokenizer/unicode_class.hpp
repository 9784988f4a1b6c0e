// The classes of code points that a pattern may name, by Unicode 16.0: the regular expressions of the `tokenizers`
// package have this version (Oniguruma 6.9.10); the libraries of a build may be older or newer. No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sestina {

// The categories are in the order of the values of unicode_category_runs.
// clang-format off
enum class Category : std::uint8_t {
  Lu, Ll, Lt, Lm, Lo, Mn, Mc, Me, Nd, Nl, No, Pc, Pd, Ps, Pe, Pi, Pf, Po, Sm, Sc, Sk, So, Zs, Zl, Zp, Cc, Cf, Co, Cs, Cn
};
// clang-format on
Category category_of(char32_t c);

struct CodeRange {
  char32_t first, last;
};

struct UnicodeClass {
  std::vector<CodeRange> ranges;  // ascending, none adjacent, no surrogates
  // Where not empty, the property by which a library of Unicode 14.0 or later finds a part of the class; the part that
  // it lacks is among the code points that were assigned since.
  std::string property;
};

// Returns a general category ("Lu", "L", "Letter") or a script ("Han": code points of that script, not those that
// others share with it), White_Space, Any or Assigned. Case, spaces, '_' and '-' do not matter. Returns nothing for
// another name.
std::optional<UnicodeClass> find_unicode_class(std::string_view name);

std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges);  // without surrogates
std::vector<CodeRange> latin_1(const std::vector<CodeRange>& ranges);     // the part of them below U+0100
std::vector<CodeRange> assigned_since_14(const std::vector<CodeRange>& ranges);
std::string regex_ranges(const std::vector<CodeRange>& ranges);  // "\x{41}-\x{5A}", for the inside of a class

extern const std::span<const std::uint32_t> unicode_category_runs;  // first code point << 5 | Category
extern const std::span<const std::uint32_t>
    unicode_script_runs;  // first code point << 8 | number in unicode_script_names
extern const std::span<const char* const> unicode_script_names;

}  // namespace sestina
