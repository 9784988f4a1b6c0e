#!/usr/bin/env python3
"""Unicode's general categories and scripts as the Python package `tokenizers` (0.23.3: Oniguruma, Unicode 16.0) has them.

  unicode_tables.py write IO_TOKENIZER_FOLDER   writes unicode_categories.cpp and unicode_scripts.cpp: every code point asked
  unicode_tables.py classes CLASSES.json        every class that a pattern may name: how many code points, CRC-32 of them;
                                                the unit test holds Sestina's patterns to golden/tokenizer/classes.json
"""
import json
import pathlib
import struct
import sys
import zlib

from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cs Cn".split()
WHOLE = ["L", "M", "N", "P", "S", "Z", "C", "LC", "Any", "Assigned", "White_Space"]
SCRIPTS = """Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki Bopomofo
Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Chorasmian Common Coptic
Cuneiform Cypriot Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs Elbasan Elymaic
Ethiopic Garay Georgian Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi Gurmukhi Gurung_Khema Han Hangul
Hanifi_Rohingya Hanunoo Hatran Hebrew Hiragana Imperial_Aramaic Inherited Inscriptional_Pahlavi Inscriptional_Parthian
Javanese Kaithi Kannada Katakana Kawi Kayah_Li Kharoshthi Khitan_Small_Script Khmer Khojki Khudawadi Kirat_Rai Lao Latin
Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen Masaram_Gondi
Medefaidrin Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani Myanmar
Nabataean Nag_Mundari Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Ol_Onal Old_Hungarian
Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage Osmanya
Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian
Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Sunuwar Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le
Tai_Tham Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Todhri Toto Tulu_Tigalari Ugaritic
Unknown Vai Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square""".split()
POINTS = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
TEXT = "".join(map(chr, POINTS))


def members(name):
    """Ranges [first, last] of the code points that Split finds for \\p{name}; surrogates are none."""
    kept = pre_tokenizers.Split(Regex(rf"\p{{{name}}}+"), "removed").pre_tokenize_str(TEXT)
    gaps, at = [], 0
    for _, (begin, end) in kept + [("", (len(TEXT), len(TEXT)))]:
        if at < begin:
            gaps.append([POINTS[at], POINTS[begin - 1]])
        at = end
    return [r for first, last in gaps for r in
            ([[first, 0xD7FF], [0xE000, last]] if first < 0xD800 and last >= 0xE000 else [[first, last]])]


def runs(names, surrogate):
    """(first code point, index into names) where the value changes."""
    owner = [names.index(surrogate)] * 0x110000
    for i, name in enumerate(names):
        for first, last in members(name):
            owner[first:last + 1] = [i] * (last + 1 - first)
    return [(p, v) for p, v in enumerate(owner) if p == 0 or owner[p - 1] != v]


def table(kind, name, words):
    lines, line = [], "   "
    for word in ", ".join(words).split(" "):
        if len(line) + len(word) + 1 > 118:
            lines, line = lines + [line], "   "
        line += " " + word
    return (f"// clang-format off\nstatic const {kind} {name}_values[] = {{\n" + "\n".join(lines + [line]) +
            f"}};\n// clang-format on\nconst std::span<const {kind}> {name}{{{name}_values}};\n")


def source(title, tables):
    return (f"// Made by regression/oracle/unicode_tables.py. {title}\n#include \"io/tokenizer/unicode_class.hpp\"\n\n"
            "namespace sestina {\n\n" + "\n".join(tables) + "\n}  // namespace sestina\n")


def packed(values, shift):
    return [f"0x{p << shift | v:X}" for p, v in values]


def write(folder, categories=None, scripts=None):
    folder = pathlib.Path(folder)
    categories, scripts = categories or runs(CATEGORIES, "Cs"), scripts or runs(SCRIPTS, "Unknown")
    (folder / "unicode_categories.cpp").write_text(
        source("First code point << 5 | Category of each run.",
               [table("std::uint32_t", "unicode_category_runs", packed(categories, 5))]))
    names = [f'"{name}"' for name in SCRIPTS]
    (folder / "unicode_scripts.cpp").write_text(
        source("First code point << 8 | number of the name of each run.",
               [table("std::uint32_t", "unicode_script_runs", packed(scripts, 8)),
                table("char* const", "unicode_script_names", names)]))


def classes(path):
    result = {}
    for name in CATEGORIES + WHOLE + SCRIPTS:
        ranges = members(name)
        crc = 0
        for first, last in ranges:
            crc = zlib.crc32(struct.pack("<II", first, last), crc)
        result[name] = [sum(last + 1 - first for first, last in ranges), crc]
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in result.items()]
    pathlib.Path(path).write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "classes"):
        sys.exit(__doc__)
    {"write": write, "classes": classes}[sys.argv[1]](sys.argv[2])
