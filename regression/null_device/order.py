#!/usr/bin/env python3
"""Whether the messages of a run's ranks have one order (NULL_DEVICE_MESSAGES, messages.cpp). Standard library alone.

  order.py FILE...    one file for each rank of the run

An operation ends when those of its peers have begun that its messages come from and go to. A device may hold one
operation back until another has ended, whichever communicator either belongs to; so there has to be one list of all
operations of all ranks in which each rank's stand in the order of its calls. Where there is none, ranks can wait for
each other in a circle.
"""

import collections
import graphlib
import pathlib
import sys


class Failure(Exception):
    pass


class Rank:
    """What one rank told: its operations in order, each (group, [(out, peer, bytes)])."""

    def __init__(self, lines):
        self.place, self.operations = {}, []  # place: of this rank in its groups
        for line in lines:
            kind, group, *rest = line.split()
            if kind == "group":
                self.place[group] = int(rest[0])
            else:
                messages = [(word[0] == ">", *map(int, word[1:].split(":"))) for word in rest]
                self.operations.append((group, messages))


def matched(ranks):
    """Pairs of operations, each (rank, number), that a message joins: the first message from a rank to another in a
    group is the first that is received there, and so on."""
    sent, received = collections.defaultdict(list), collections.defaultdict(list)
    for number, rank in enumerate(ranks):
        for at, (group, messages) in enumerate(rank.operations):
            own = rank.place[group]
            for out, peer, size in messages:
                way = (group, own, peer) if out else (group, peer, own)
                (sent if out else received)[way].append(((number, at), size))
    for way in sent.keys() | received.keys():
        sizes = [[size for _, size in messages[way]] for messages in (sent, received)]
        if sizes[0] != sizes[1]:
            raise Failure(f"group {way[0]}, rank {way[1]} to {way[2]}: sent {sizes[0][:8]}, received {sizes[1][:8]}")
        yield from ((a, b) for (a, _), (b, _) in zip(sent[way], received[way]))


def one_order(ranks):
    """The number of operations that are common to their ranks. Failure where they have no order."""
    parent = {(r, i): (r, i) for r, rank in enumerate(ranks) for i in range(len(rank.operations))}

    def root(at):
        while parent[at] != at:
            parent[at] = at = parent[parent[at]]
        return at

    for a, b in matched(ranks):
        parent[root(a)] = root(b)
    before = {root(at): set() for at in parent}
    for r, rank in enumerate(ranks):
        for i in range(1, len(rank.operations)):
            if root((r, i)) == root((r, i - 1)):
                raise Failure(f"rank {r}, operations {i - 1} and {i}: each waits for the other through its peers")
            before[root((r, i))].add(root((r, i - 1)))
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError as error:
        names = [f"rank {r}, operation {i} ({ranks[r].operations[i][0]})" for r, i in error.args[1]]
        raise Failure("no order: " + "; ".join(names)) from None
    return len(before)


def check(paths):
    return one_order([Rank(pathlib.Path(path).read_text().splitlines()) for path in paths])


if __name__ == "__main__":
    try:
        print(f"{check(sys.argv[1:])} operations in one order")
    except Failure as failure:
        sys.exit(str(failure))
