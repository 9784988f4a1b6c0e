"""A1: preconditioners that come S updates late (refreshes.toml) change the final loss by less than seeds do; S = 0 is
the inline refresh, bit for bit."""

from cells import Cell, Experiment
from delays import matrix
from judge import FAILS, HOLDS, MISSING

STALENESS = (0, 1, 3, 5)
KINDS = {"soap": "SOAP", "kl-shampoo": "KL-Shampoo", "shampoo": "Shampoo"}
CELLS = {}
for kind, title in KINDS.items():
    base = matrix(kind, "optimizer.refresh.every=10")
    inline = f"refresh_{kind}_inline"
    CELLS[inline] = Cell(inline, f"{title}, inline", "-", base, 3e-3, deck="refreshes.toml")
    for s in STALENESS:
        name = f"refresh_{kind}_S{s}"
        late = (*base, "optimizer.refresh.mode=async", f"optimizer.refresh.staleness={s}",
                "optimizer.refresh.visibility=fixed")
        CELLS[name] = Cell(name, f"{title}, S = {s}", "-", late, 3e-3, rate_of=inline, deck="refreshes.toml")


def same(kind):
    def judge(results):
        inline, zero = (results.curves(f"refresh_{kind}_{end}") for end in ("inline", "S0"))
        if not inline or len(zero) != len(inline):
            return MISSING, "-"
        differ = max(abs(a[2] - b[2]) for x, y in zip(inline, zero) for a, b in zip(x, y))
        return (HOLDS if differ == 0 else FAILS), f"largest difference of a validation loss {differ:g}"

    return f"{KINDS[kind]}: S = 0 has the losses of inline refreshes, bit for bit", judge


def harmless(kind):
    def judge(results):
        inline = results.loss(f"refresh_{kind}_inline")
        late = [results.loss(f"refresh_{kind}_S{s}") for s in STALENESS[1:]]
        if inline is None or None in late:
            return MISSING, "-"
        spread, worst = results.spread(f"refresh_{kind}_inline"), max(abs(x - inline) for x in late)
        return (HOLDS if worst < spread else FAILS), f"{worst:.4f} of {spread:.4f}"

    return f"{KINDS[kind]}: S = 1, 3, 5 move the mean final loss by less than the spread over seeds", judge


EXPERIMENTS = {"A1": Experiment("A1: refreshes that come late", tuple(CELLS), baseline="",
                                claims=tuple(claim(kind) for kind in KINDS for claim in (same, harmless)))}
