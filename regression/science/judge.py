"""Claims about results: (text, function of the results), which gives (verdict, numbers). What fails is said."""

from results import Number

HOLDS, FAILS = "**holds**", "**does not hold**"
CLOSE, OPEN, MISSING = "within the margin", "open: bounds alone", "not run"
# Of a ratio; of nats per byte, the error of a mean over three seeds; of a relative movement.
MARGINS = {"slowdown": 0.02, "loss": 0.01, "drift": 0.0}


def less(a, b, kind):
    """Verdict on a < b. A bound is below the true number."""
    if a is None or b is None:
        return MISSING
    if a.bound and (b.bound or a.value < b.value):
        return OPEN
    if abs(a.value - b.value) <= MARGINS[kind] and not b.bound:
        return CLOSE
    return HOLDS if a.value < b.value else (OPEN if b.bound else FAILS)


def worst(verdicts):
    return max(verdicts, key=[HOLDS, CLOSE, OPEN, FAILS, MISSING].index)


def show(value):
    return "-" if value is None else str(value)


def chain(text, numbers, kind):
    """numbers: of the results, each less than the next."""

    def judge(results):
        values = numbers(results)
        return worst(less(a, b, kind) for a, b in zip(values, values[1:])), " < ".join(map(show, values))

    return text, judge


def loss(results, name, minus=None):
    """Final loss, or by how much it is above another cell's."""
    mine, other = results.loss(name), results.loss(minus) if minus else 0.0
    return None if mine is None or other is None else Precise(mine - other)


def highest(results, names):
    """The largest final loss; None: one of them was not run."""
    losses = [loss(results, name) for name in names]
    return None if None in losses else max(losses, key=lambda x: x.value)


class Precise(Number):
    def __str__(self):
        return f"{self.value:.4f}"


def scaled(number, factor):
    return None if number is None else Number(number.value * factor, number.bound)
