#include "io/tokenizer/unicode_class.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

namespace sestina {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF, kLastPoint = 0x10FFFF;
constexpr std::uint32_t kCategories = 30;

struct CategoryName {
  const char *shorter, *longer;
};
// The names are in the order of Category, then come the groups.
constexpr CategoryName kCategoryNames[] = {{"Lu", "UppercaseLetter"},
                                           {"Ll", "LowercaseLetter"},
                                           {"Lt", "TitlecaseLetter"},
                                           {"Lm", "ModifierLetter"},
                                           {"Lo", "OtherLetter"},
                                           {"Mn", "NonspacingMark"},
                                           {"Mc", "SpacingMark"},
                                           {"Me", "EnclosingMark"},
                                           {"Nd", "DecimalNumber"},
                                           {"Nl", "LetterNumber"},
                                           {"No", "OtherNumber"},
                                           {"Pc", "ConnectorPunctuation"},
                                           {"Pd", "DashPunctuation"},
                                           {"Ps", "OpenPunctuation"},
                                           {"Pe", "ClosePunctuation"},
                                           {"Pi", "InitialPunctuation"},
                                           {"Pf", "FinalPunctuation"},
                                           {"Po", "OtherPunctuation"},
                                           {"Sm", "MathSymbol"},
                                           {"Sc", "CurrencySymbol"},
                                           {"Sk", "ModifierSymbol"},
                                           {"So", "OtherSymbol"},
                                           {"Zs", "SpaceSeparator"},
                                           {"Zl", "LineSeparator"},
                                           {"Zp", "ParagraphSeparator"},
                                           {"Cc", "Control"},
                                           {"Cf", "Format"},
                                           {"Co", "PrivateUse"},
                                           {"Cs", "Surrogate"},
                                           {"Cn", "Unassigned"},
                                           {"L", "Letter"},
                                           {"M", "Mark"},
                                           {"N", "Number"},
                                           {"P", "Punctuation"},
                                           {"S", "Symbol"},
                                           {"Z", "Separator"},
                                           {"C", "Other"},
                                           {"LC", "CasedLetter"}};

// Code points that Unicode 15.0, 15.1 and 16.0 assigned.
constexpr CodeRange kSince14[] = {
    {0x897, 0x897},     {0xCF3, 0xCF3},     {0xECE, 0xECE},     {0x1B4E, 0x1B4F},   {0x1B7F, 0x1B7F},
    {0x1C89, 0x1C8A},   {0x2427, 0x2429},   {0x2FFC, 0x2FFF},   {0x31E4, 0x31E5},   {0x31EF, 0x31EF},
    {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D40, 0x10D65}, {0x10D69, 0x10D85},
    {0x10D8E, 0x10D8F}, {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFF}, {0x1123F, 0x11241}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113C0}, {0x113C2, 0x113C2},
    {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D5}, {0x113D7, 0x113D8}, {0x113E1, 0x113E2},
    {0x116D0, 0x116E3}, {0x11B00, 0x11B09}, {0x11BC0, 0x11BE1}, {0x11BF0, 0x11BF9}, {0x11F00, 0x11F10},
    {0x11F12, 0x11F3A}, {0x11F3E, 0x11F5A}, {0x1342F, 0x1342F}, {0x13439, 0x13455}, {0x13460, 0x143FA},
    {0x16100, 0x16139}, {0x16D40, 0x16D79}, {0x18CFF, 0x18CFF}, {0x1B132, 0x1B132}, {0x1B155, 0x1B155},
    {0x1CC00, 0x1CCF9}, {0x1CD00, 0x1CEB3}, {0x1D2C0, 0x1D2D3}, {0x1DF25, 0x1DF2A}, {0x1E030, 0x1E06D},
    {0x1E08F, 0x1E08F}, {0x1E4D0, 0x1E4F9}, {0x1E5D0, 0x1E5FA}, {0x1E5FF, 0x1E5FF}, {0x1F6DC, 0x1F6DC},
    {0x1F774, 0x1F776}, {0x1F77B, 0x1F77F}, {0x1F7D9, 0x1F7D9}, {0x1F8B2, 0x1F8BB}, {0x1F8C0, 0x1F8C1},
    {0x1FA75, 0x1FA77}, {0x1FA87, 0x1FA89}, {0x1FA8F, 0x1FA8F}, {0x1FAAD, 0x1FAAF}, {0x1FABB, 0x1FABF},
    {0x1FAC6, 0x1FAC6}, {0x1FACE, 0x1FACF}, {0x1FADA, 0x1FADC}, {0x1FADF, 0x1FADF}, {0x1FAE8, 0x1FAE9},
    {0x1FAF7, 0x1FAF8}, {0x1FBCB, 0x1FBEF}, {0x2B739, 0x2B739}, {0x2EBF0, 0x2EE5D}, {0x31350, 0x323AF}};

std::string normal_name(std::string_view name) {
  std::string normal;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') normal += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return normal;
}

// Returns the ranges of the runs whose value is wanted.
std::vector<CodeRange> select(std::span<const std::uint32_t> runs, int shift,
                              const std::function<bool(std::uint32_t)>& wanted) {
  std::vector<CodeRange> ranges;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!wanted(runs[i] & ((1U << shift) - 1))) continue;
    const char32_t first = runs[i] >> shift, last = i + 1 < runs.size() ? (runs[i + 1] >> shift) - 1 : kLastPoint;
    if (!ranges.empty() && ranges.back().last + 1 == first) {
      ranges.back().last = last;
    } else {
      ranges.push_back({first, last});
    }
  }
  return ranges;
}

std::vector<CodeRange> intersection(const std::vector<CodeRange>& a, std::span<const CodeRange> b) {
  std::vector<CodeRange> both;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const char32_t first = std::max(a[i].first, b[j].first), last = std::min(a[i].last, b[j].last);
    if (first <= last) both.push_back({first, last});
    a[i].last < b[j].last ? ++i : ++j;
  }
  return both;
}

std::vector<CodeRange> without_surrogates(const std::vector<CodeRange>& ranges) {
  constexpr CodeRange kScalars[] = {{0, kFirstSurrogate - 1}, {kLastSurrogate + 1, kLastPoint}};
  return intersection(ranges, kScalars);
}

// Returns the class of the number-th of kCategoryNames.
UnicodeClass category_class(std::size_t number) {
  const std::string name = kCategoryNames[number].shorter;
  const auto belongs = [&](std::uint32_t category) {
    if (number < kCategories) return category == number;
    if (name == "LC") return category <= static_cast<std::uint32_t>(Category::Lt);
    return kCategoryNames[category].shorter[0] == name[0];
  };
  // U+1171E went from Mn to Mc in Unicode 16.0, and code points leave Cn with every version.
  const bool moved = name == "Mn" || name == "Mc" || name[0] == 'C';
  return {without_surrogates(select(unicode_category_runs, 5, belongs)), moved || name == "LC" ? "" : name};
}

}  // namespace

Category category_of(char32_t c) {
  const auto after = std::upper_bound(unicode_category_runs.begin(), unicode_category_runs.end(), c,
                                      [](char32_t value, std::uint32_t run) { return value < run >> 5; });
  return static_cast<Category>(*std::prev(after) & 31);
}

std::optional<UnicodeClass> find_unicode_class(std::string_view name) {
  const std::string wanted = normal_name(name);
  for (std::size_t i = 0; i < std::size(kCategoryNames); ++i) {
    if (wanted == normal_name(kCategoryNames[i].shorter) || wanted == normal_name(kCategoryNames[i].longer))
      return category_class(i);
  }
  for (std::uint32_t script = 0; script < unicode_script_names.size(); ++script) {
    if (wanted != normal_name(unicode_script_names[script])) continue;
    const auto belongs = [&](std::uint32_t value) { return value == script; };
    return UnicodeClass{without_surrogates(select(unicode_script_runs, 8, belongs)), ""};
  }
  if (wanted == "any") return UnicodeClass{complement({}), ""};
  if (wanted == "assigned") return UnicodeClass{complement(find_unicode_class("Cn")->ranges), ""};
  if (wanted == "whitespace") {
    return UnicodeClass{{{9, 13},
                         {32, 32},
                         {0x85, 0x85},
                         {0xA0, 0xA0},
                         {0x1680, 0x1680},
                         {0x2000, 0x200A},
                         {0x2028, 0x2029},
                         {0x202F, 0x202F},
                         {0x205F, 0x205F},
                         {0x3000, 0x3000}},
                        ""};
  }
  return std::nullopt;
}

std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges) {
  std::vector<CodeRange> others;
  char32_t next = 0;
  for (const CodeRange& range : ranges) {
    if (next < range.first) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastPoint) others.push_back({next, kLastPoint});
  return without_surrogates(others);
}

std::vector<CodeRange> latin_1(const std::vector<CodeRange>& ranges) {
  constexpr CodeRange kLatin1[] = {{0, 0xFF}};
  return intersection(ranges, kLatin1);
}

std::vector<CodeRange> assigned_since_14(const std::vector<CodeRange>& ranges) {
  return intersection(ranges, kSince14);
}

std::string regex_ranges(const std::vector<CodeRange>& ranges) {
  std::string text;
  for (const CodeRange& range : ranges) {
    text += fmt::format("\\x{{{:X}}}", static_cast<std::uint32_t>(range.first));
    if (range.first < range.last) text += fmt::format("-\\x{{{:X}}}", static_cast<std::uint32_t>(range.last));
  }
  return text;
}

}  // namespace sestina
