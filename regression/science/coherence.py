"""A3: replicas of SOAP's preconditioners on four ranks, two nodes of two (refreshes.toml), each of which uses new bases as
soon as its own worker has them: what synchronisations send, and the final loss, by the updates that replicas may drift."""

from cells import Cell, Experiment
from delays import matrix
from judge import FAILS, HOLDS, MISSING
from results import runs

BUDGETS = (0, 20, 50)  # optimizer.refresh.coherence_every
FIXED = "coherence_fixed"


def traffic(_, folder):
    """Of a run: bytes that all ranks sent in an update in the mean, synchronisations of its replicas, and their drift."""
    lines = runs.lines_of(folder, "train")
    sent = [line.get("coherence_bytes", 0) for line in lines]
    drifts = [line["replica_drift"] for line in lines if line.get("replica_drift") is not None]
    return {"bytes": sum(sent) / len(lines), "updates": sum(x > 0 for x in sent), "drift": max(drifts, default=0.0)}


def replicated(visibility, *more):
    return (*matrix("soap", "optimizer.refresh.every=10"), "optimizer.refresh.mode=async", "optimizer.refresh.staleness=5",
            f"optimizer.refresh.visibility={visibility}", "parallel.dp=4", "parallel.node_size=2",
            "parallel.partition=replicated", *more)


def cell(name, label, settings):
    return Cell(name, label, "-", settings, 3e-3, rate_of="refresh_soap_inline", deck="refreshes.toml", ranks=4,
                after=traffic)


CELLS = {FIXED: cell(FIXED, "SOAP on four ranks, fixed visibility", replicated("fixed"))}
for budget in BUDGETS:
    name = f"coherence_B{budget}"
    CELLS[name] = cell(name, f"SOAP on four ranks, eager, B = {budget}",
                       replicated("eager", f"optimizer.refresh.coherence_every={budget}"))


def mean(results, name, key):
    found = results.after(name)
    return sum(run[key] for run in found) / len(found) if found else None


def falling(results):
    sent = [mean(results, f"coherence_B{budget}", "bytes") for budget in BUDGETS]
    if None in sent:
        return MISSING, "-"
    fine = all(more > less for more, less in zip(sent, sent[1:])) and not mean(results, FIXED, "bytes")
    return (HOLDS if fine else FAILS), " > ".join(f"{x / 1e6:.3f} MB" for x in sent)


def drifting(results):
    drifts = [mean(results, f"coherence_B{budget}", "drift") for budget in BUDGETS]
    if None in drifts:
        return MISSING, "-"
    return (HOLDS if drifts == sorted(drifts) else FAILS), " <= ".join(f"{x:.2e}" for x in drifts)


def harmless(results):
    fixed = results.loss(FIXED)
    losses = [results.loss(f"coherence_B{budget}") for budget in BUDGETS]
    if fixed is None or None in losses:
        return MISSING, "-"
    worst, spread = max(abs(x - fixed) for x in losses), results.spread(FIXED)
    return (HOLDS if worst < spread else FAILS), f"{worst:.4f} of {spread:.4f}"


CLAIMS = ((f"bytes per update of all ranks fall with B = {', '.join(map(str, BUDGETS))}; none with fixed visibility", falling),
          ("the largest drift of weights grows with B", drifting),
          ("the mean final loss moves by less than the spread over seeds", harmless))
EXPERIMENTS = {"A3": Experiment("A3: replicas that drift", tuple(CELLS), baseline=FIXED,
                                baseline_label="fixed visibility", claims=CLAIMS)}
