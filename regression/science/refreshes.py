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
# What KL-Shampoo is compared with: the same bases with second moments in them, and itself without the bound of its
# authors on inverse roots.
KL_SHAMPOO, KL_SOAP, UNBOUNDED = "refresh_kl-shampoo_inline", "refresh_kl-soap_inline", "refresh_kl-shampoo_unbounded"
CELLS[KL_SOAP] = Cell(KL_SOAP, "KL-SOAP, inline", "-", matrix("kl-soap", "optimizer.refresh.every=10"), 3e-3,
                      deck="refreshes.toml")
CELLS[UNBOUNDED] = Cell(UNBOUNDED, "KL-Shampoo, inline, clamp = false", "-",
                        matrix("kl-shampoo", "optimizer.refresh.every=10", "optimizer.clamp=false"), 3e-3,
                        deck="refreshes.toml")


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


def within_seeds_of_kl_soap(name):
    def judge(results):
        own, other = results.loss(name), results.loss(KL_SOAP)
        if own is None or other is None:
            return MISSING, "-"
        spread = min(results.spread(name), results.spread(KL_SOAP))
        return (HOLDS if own - other < spread else FAILS), f"{own - other:+.4f} of {spread:.4f}"

    return f"{CELLS[name].label}: ends above KL-SOAP by less than the smaller spread over seeds", judge


EXPERIMENTS = {"A1": Experiment("A1: refreshes that come late", tuple(CELLS), baseline="",
                                claims=(*(claim(kind) for kind in KINDS for claim in (same, harmless)),
                                        within_seeds_of_kl_soap(KL_SHAMPOO), within_seeds_of_kl_soap(UNBOUNDED)))}
