#!/usr/bin/env python3
"""Writes regression/data/*.txt: made-up prose with enough regularity to learn and enough variety to need a tokenizer.

Every word comes from the tables below and a fixed seed; run it again to get the same files.
"""
import pathlib
import random

PEOPLE = ["Maren", "Tobias", "Ilse", "Okonkwo", "Père Lucien", "Yuki", "Señora Vidal", "Anselm", "Ruža", "old Harrow"]
PLACES = ["the north quay", "the drying loft", "the upper orchard", "the ferry house", "the glass works", "the salt road",
          "the reading room", "the lower lock", "the mill pond", "the signal hill"]
THINGS = ["a coil of rope", "three lanterns", "the brass level", "a ledger", "nine loaves", "a crate of pears", "the spare rudder",
          "a map on oiled cloth", "two kettles", "the loom weights", "a clock without hands", "a jar of blue dye"]
WEATHER = ["Rain came before noon", "The wind turned west", "Fog lay over the water", "It was clear and cold", "Snow fell without a sound",
           "The heat did not break", "A storm passed to the south", "Frost stood on every rail"]
DEEDS = ["carried", "mended", "counted", "painted", "weighed", "forgot", "hid", "traded", "measured", "lost", "found", "washed"]
REASONS = ["because the tide would not wait", "so that nobody had to ask twice", "although the bell had rung", "while the others slept",
           "before the barge left", "since the bridge was closed", "as the rule demands", "for the third time that week"]
SAYINGS = ["What floats is not always light.", "Count it twice, then count it again.", "A door is also a wall.", "Don't hurry the glue.",
           "We'll see what the river says.", "It's the second knot that holds.", "They've always done it so.", "I'd rather be early than dry."]
NUMBERS = ["four", "seven", "eleven", "nineteen", "thirty-two", "a hundred and six"]


def sentence(rng):
    who, other = rng.sample(PEOPLE, 2)
    thing, place = rng.choice(THINGS), rng.choice(PLACES)
    return rng.choice([
        f"{who} {rng.choice(DEEDS)} {thing} at {place} {rng.choice(REASONS)}.",
        f"At {place} {who} met {other} and {rng.choice(DEEDS)} {thing}.",
        f"\"{rng.choice(SAYINGS)}\" said {who}, and {other} {rng.choice(DEEDS)} {thing} all the same.",
        f"There were {rng.choice(NUMBERS)} of them in {place}, and {who} {rng.choice(DEEDS)} each one.",
        f"{rng.choice(WEATHER)}, and {who} went to {place} with {thing}.",
        f"Nobody knew why {thing} lay in {place}; {who} thought that {other} had {rng.choice(['left', 'sold', 'borrowed'])} it.",
    ])


def entry(rng, day):
    lines = [f"Day {day}. {rng.choice(WEATHER)}; the gauge read {rng.randint(80, 420) / 100:.2f} m at {rng.randint(5, 21)}:{rng.randint(0, 59):02d}."]
    for _ in range(rng.randint(2, 4)):
        lines.append(" ".join(sentence(rng) for _ in range(rng.randint(2, 5))))
    if rng.random() < 0.25:
        lines.append("\n".join(f"  - {thing}: {rng.randint(1, 40)} × {rng.randint(2, 90)} ¢" for thing in rng.sample(THINGS, 3)))
    return "\n".join(lines)


def main():
    folder = pathlib.Path(__file__).resolve().parent.parent / "data"
    folder.mkdir(exist_ok=True)
    for name, seed, days in (("harbour", 11, 50), ("orchard", 12, 40), ("workshop", 13, 20)):
        rng = random.Random(seed)
        text = "\n\n".join(entry(rng, day + 1) for day in range(days)) + "\n"
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
