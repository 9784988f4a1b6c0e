#!/usr/bin/env python3
"""order.py finds what has no order, in lists written by hand: two ranks, and two communicators of them, X and Y."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import order  # noqa: E402


def rank(place, size, *operations):
    return order.Rank([f"group {group} {place} {size}" for group in "XYZ"] + [f"messages {text}" for text in operations])


class Orders(unittest.TestCase):
    def test_the_same_order_on_both_ranks(self):
        ranks = [rank(0, 2, "X >1:8 <1:8", "Y >1:4"), rank(1, 2, "X >0:8 <0:8", "Y <0:4")]
        self.assertEqual(order.one_order(ranks), 2)

    def test_two_communicators_in_turn(self):
        ranks = [rank(0, 2, "X >1:8", "Y >1:4"), rank(1, 2, "Y <0:4", "X <0:8")]
        self.assertRaisesRegex(order.Failure, "no order", order.one_order, ranks)

    def test_a_circle_of_three_ranks(self):
        ranks = [rank(0, 3, "X >1:8", "Z <2:8"), rank(1, 3, "Y >2:8", "X <0:8"), rank(2, 3, "Z >0:8", "Y <1:8")]
        self.assertRaisesRegex(order.Failure, "no order", order.one_order, ranks)
        ranks[2] = rank(2, 3, "Y <1:8", "Z >0:8")
        self.assertEqual(order.one_order(ranks), 3)

    def test_one_operation_that_waits_for_a_later_one(self):
        ranks = [rank(0, 2, "X >1:8", "X <1:8"), rank(1, 2, "X <0:8 >0:8")]
        self.assertRaisesRegex(order.Failure, "each waits for the other", order.one_order, ranks)

    def test_messages_of_another_size(self):
        ranks = [rank(0, 2, "X >1:8"), rank(1, 2, "X <0:4")]
        self.assertRaisesRegex(order.Failure, "sent .8., received .4.", order.one_order, ranks)


if __name__ == "__main__":
    unittest.main()
