"""Damage to good inputs. The same choice (random.Random of a seed) gives the same bytes. Python 3.11, standard library alone."""

import copy
import json
import re

NUMBERS = [b"0", b"-1", b"1", b"1.5", b"1e308", b"1e999", b"-0", b"255", b"65536", b"2147483648", b"4294967295", b"9223372036854775807",
           b"9223372036854775808", b"18446744073709551615", b"18446744073709551616", b"-9223372036854775808", b"nan", b"inf", b"0x7f", b"1_000",
           b"00", b"\"\"", b"null", b"true", b"[]", b"{}", b"\"x\"", b"1e-320", b"36893488147419103232"]
VALUES = [0, -1, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -2**63, 1.5, 1e308, 1e-320, "", "x", "\u0000", "../x", "/", "a" * 300, None,
          True, [], {}, [[]], [0], [-1], {"a": 1}]
WORDS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF]


def piece(data, choose, most=64):
    """Begin and end of a range, short more often than long."""
    begin = choose.randrange(len(data) + 1)
    return begin, min(len(data), begin + (choose.randint(1, most) if choose.random() < 0.7 else choose.randint(1, len(data) + 1)))


def flip(data, choose, _):
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 1, 2, 8))):
        changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
    return bytes(changed)


def cut_end(data, choose, _):
    return data[:choose.randrange(len(data))]


def cut_middle(data, choose, _):
    begin, end = piece(data, choose)
    return data[:begin] + data[end:]


def splice(data, choose, others):
    other = choose.choice(others)
    return data[:choose.randrange(len(data) + 1)] + other[choose.randrange(len(other) + 1):]


def repeat(data, choose, _):
    begin, end = piece(data, choose)
    at = choose.choice((end, choose.randrange(len(data) + 1)))
    return data[:at] + data[begin:end] * choose.choice((1, 1, 2, 30)) + data[at:]


def noise(data, choose, _):
    begin, end = piece(data, choose)
    return data[:begin] + choose.randbytes(end - begin) + data[end:]


def word(data, choose, _):
    """An extreme number in 1, 2, 4 or 8 bytes, mostly where such a number would lie."""
    size = choose.choice((1, 2, 4, 8))
    at = choose.randrange(min(len(data), choose.choice((64, 1 << 40)))) // size * size if choose.random() < 0.8 else choose.randrange(len(data))
    return data[:at] + (choose.choice(WORDS) & ((1 << 8 * size) - 1)).to_bytes(size, "little") + data[at + size:]


def number(data, choose, _):
    """Another number, or a value of another type, for one that is written out."""
    found = list(re.finditer(rb"-?\d[\d.]*", data))
    if not found:
        return flip(data, choose, _)
    at = choose.choice(found)
    new = choose.choice(NUMBERS) if choose.random() < 0.7 else choose.choice(found).group()
    return data[:at.start()] + new + data[at.end():]


def lines(data, choose, others):
    """Lines removed, doubled, in another order, or out of another input."""
    rows = data.split(b"\n")
    at, what = choose.randrange(len(rows)), choose.randrange(4)
    if what == 0:
        del rows[at:at + choose.choice((1, 1, 3))]
    elif what == 1:
        rows.insert(choose.randrange(len(rows) + 1), rows[at])
    elif what == 2:
        rows.insert(choose.randrange(len(rows)), rows.pop(at))
    else:
        rows[at] = choose.choice(choose.choice(others).split(b"\n"))
    return b"\n".join(rows)


class Pairs(list):
    """A JSON object whose keys may be there twice."""


def json_text(value):
    if isinstance(value, Pairs):
        return "{" + ", ".join(json.dumps(k) + ": " + json_text(v) for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(json_text, value)) + "]"
    return json.dumps(value)


def containers(value):
    """Every object and list in a value that is not empty."""
    if isinstance(value, list) and value:
        yield value
        for inner in value:
            yield from containers(inner[1] if isinstance(value, Pairs) else inner)


def structure(data, choose, _):
    """An entry of a JSON object or list removed, doubled, moved, renamed, or with another value; the text stays JSON."""
    start = data.find(b"{")
    whole = data[start:].decode("utf-8", "surrogateescape")
    try:
        value, end = json.JSONDecoder(object_pairs_hook=Pairs).raw_decode(whole)
    except (ValueError, RecursionError):
        return number(data, choose, _)
    places = list(containers(value))
    if start < 0 or not places:
        return number(data, choose, _)
    place = choose.choice(places)
    at, what = choose.randrange(len(place)), choose.randrange(6)
    if what == 0:
        del place[at]
    elif what == 1:
        place.insert(choose.randrange(len(place) + 1), place[at])
    elif what == 2:
        place.insert(choose.randrange(len(place)), place.pop(at))
    else:
        other = choose.choice(choose.choice(places))
        new = copy.deepcopy(choose.choice(VALUES) if choose.random() < 0.6 else other[1] if isinstance(other, tuple) else other)
        if isinstance(place, Pairs):
            place[at] = (place[at][0], new) if what < 5 else (choose.choice(("", "x", place[0][0])), place[at][1])
        else:
            place[at] = new
    head = data[:start]
    text = json_text(value).encode()
    if start == 8 and choose.random() < 0.9:  # safetensors: the length of the header stays right
        head = len(text).to_bytes(8, "little")
    return head + text + whole[end:].encode("utf-8", "surrogateescape")


BYTES = (flip, flip, cut_end, cut_middle, splice, repeat, noise, word)
TOML = BYTES + (number, number, lines, lines)
JSON = TOML + (structure,) * 12


def damaged(data, choose, others, ways):
    """The input, which is not empty, with one to three kinds of damage; never the input itself."""
    assert data
    result = data
    while result == data:
        for _ in range(choose.choice((1, 1, 1, 2, 3))):
            if result:
                result = choose.choice(ways)(result, choose, others)
    return result
