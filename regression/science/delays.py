"""Optimizers under the delays of an asynchronous pipeline (delay.toml): methods, under delay scales, with options, in
the order in which they are trained, and what the paper (arXiv 2602.03515) claims."""

from cells import Cell, Experiment
from judge import chain, highest, loss, scaled

SCALES = (0, 1, 4)  # parallel.delay_scale


def rotation(source, geometry):
    return ("optimizer.kind=basis-rotation", f"optimizer.source={source}", f"optimizer.geometry={geometry}",
            "optimizer.beta2=0.99", "optimizer.factor_beta=0.99", "optimizer.weight_decay=0.01",
            "optimizer.scalar.beta2=0.99", "optimizer.scalar.weight_decay=0.01")


def matrix(kind, *more):
    """With the program's own decays of averages."""
    return (f"optimizer.kind={kind}", "optimizer.weight_decay=0.01", "optimizer.scalar.beta2=0.99",
            "optimizer.scalar.weight_decay=0.01", *more)


ADAMW = ("optimizer.beta2=0.99", "optimizer.weight_decay=0.01")
# name: (label, settings, middle of the grid without delay, and with)
METHODS = {
    "adamw": ("AdamW", ADAMW, 3e-3, 1e-3),
    "br-2nd-bi": ("basis rotation, 2nd moment, bilateral", rotation("2nd", "bilateral"), 3e-3, 3e-3),
    "br-1st-bi": ("basis rotation, 1st moment, bilateral", rotation("1st", "bilateral"), 3e-3, 3e-3),
    "br-2nd-uni": ("basis rotation, 2nd moment, unilateral", rotation("2nd", "unilateral"), 3e-3, 3e-3),
    "br-1st-uni": ("basis rotation, 1st moment, unilateral", rotation("1st", "unilateral"), 3e-3, 1e-3),
    "muon": ("Muon", matrix("muon"), 3e-3, 3e-3),
    "normuon": ("NorMuon", matrix("normuon"), 3e-3, 3e-3),
    "soap": ("SOAP", matrix("soap"), 3e-3, 3e-3),
    "kl-soap": ("KL-SOAP", matrix("kl-soap"), 3e-3, 3e-3),
    "shampoo": ("Shampoo", matrix("shampoo"), 3e-3, 1e-3),
}
CELLS = {}


def cell(method, scale, tag="", label="", settings=(), own=None, **more):
    """Registers a cell of the family of delays and gives its name."""
    title, base, free, late = METHODS[method]
    name = f"{method}{'_' + tag if tag else ''}_d{scale}"
    more = {"rate": late if scale else free, "own": f"{method}_d0" if own is None else own, **more}
    settings = (*base, f"parallel.delay_scale={scale}", *settings)
    CELLS.setdefault(name, Cell(name, title + label, scale, settings, **more))
    return name


PAPER = {"adamw": "5.81", "br-1st-uni": "2.55", "br-1st-bi": "1.77", "br-2nd-uni": "1.66", "br-2nd-bi": "1.27"}
VARIANTS = ("br-2nd-bi", "br-1st-bi", "br-2nd-uni", "br-1st-uni")
KINDS = ("muon", "normuon", "soap", "kl-soap", "shampoo")


def corrected(method, kind, label, *settings, tag=None, **more):
    return cell(method, 4, tag or kind, f" + {label}", (f"parallel.delay_correction={kind}", *settings), **more)


b2 = [cell("adamw", 0), cell("adamw", 4, paper=PAPER["adamw"]), cell("br-2nd-bi", 4, paper=PAPER["br-2nd-bi"]),
      corrected("adamw", "pipedream-lr", "PipeDream-LR", paper="4.24"), cell("br-2nd-bi", 0)]
b2 += [cell(method, scale, paper=PAPER[method] if scale else "") for method in VARIANTS[1:] for scale in (4, 0)]
side = [cell(method, scale) for scale in (4, 0) for method in KINDS]
side += [cell(method, 1) for method in ("adamw", "br-2nd-bi", *KINDS)]
side_rows = [cell(method, scale) for method in ("adamw", "br-2nd-bi", *KINDS) for scale in SCALES]

# Nearly the same delay everywhere: two stages, the first with seven of the eight blocks.
UNIFORM = ("parallel.pp=2", "parallel.stage_layers=[7,1]")
b7 = [corrected("muon", "prediction", "weight prediction"),
      *(cell(m, n, "uniform", f", one delay for 7 of 8 blocks", UNIFORM) for n in (14, 28) for m in ("muon", "adamw"))]
budget = lambda kind, label: cell("br-2nd-bi", 4, f"budget-{kind}", f", refreshes {label}",
                                  ("optimizer.refresh.every=20", f"optimizer.refresh.budget={kind}"),
                                  rate_of="br-2nd-bi_d4")
b4 = [budget("uniform", "uniform"), budget("stage-aware", "stage-aware"), budget("reversed", "reversed")]
b3 = [cell(m, 4, stash, f", stash {stash}", (f"parallel.stash={stash}",))
      for stash in ("recompute", "saved") for m in ("adamw", "br-2nd-bi")]


def deep(method, layers):
    size = (f"model.num_hidden_layers={layers}", f"parallel.pp={layers}")
    return cell(method, 2, f"K{layers}", f", {layers} blocks in {layers} stages", size, own="")


def of_32_blocks(method, stages):
    """The delays of so many stages, at the rate that is best with the most; and without delay, at its own."""
    free = stages == 1
    size = ("model.num_hidden_layers=32", f"parallel.pp={stages}")
    return cell(method, 1, f"32K{stages}", f", {stages} stage{'s' * (not free)}", size, own=f"{method}_32K1_d1",
                rate_of="" if free or stages == 32 else f"{method}_32K32_d1")


P32_STAGES = (1, 2, 4, 8, 16, 32)
p32 = [of_32_blocks(method, stages) for stages in (1, 32, 8, 2, 16, 4) for method in ("adamw", "br-2nd-bi")]
p32_rows = [of_32_blocks(method, stages) for method in ("adamw", "br-2nd-bi") for stages in P32_STAGES]
b5 = [deep(method, layers) for layers in (4, 8, 12) for method in ("adamw", "br-2nd-bi")]
corrections = [corrected("adamw", "pipedream-lr", "PipeDream-LR until half of the run", "parallel.correction_steps=750",
                         tag="pipedream-lr-long"),
               corrected("adamw", "nesterov", "Nesterov", "optimizer.beta1=0.99"),
               corrected("adamw", "pipemare", "PipeMare", "parallel.stash=saved", "parallel.pipemare_warmup=45"),
               corrected("adamw", "dc-asgd", "DC-ASGD", "parallel.dc_lambda=1"),
               corrected("adamw", "prediction", "weight prediction"),
               corrected("br-2nd-bi", "prediction", "weight prediction")]
release = [cell(m, 4, "release", ", as released", ("optimizer.dialect=release",)) for m in VARIANTS[1:]]


def gaps(*pairs):
    """Final losses above those of other cells."""
    return lambda results: [loss(results, name, minus) for name, minus in pairs]


ROTATED, RATED, PLAIN = "br-2nd-bi_d4", "adamw_pipedream-lr_d4", "adamw_d4"
# Where a slowdown is measured: at a share of the run without delay, or at the end of the run with it.
PLACES = {"at 50 %": lambda r, *cells: r.slowdown(*cells, 0.5), "at 20 %": lambda r, *cells: r.slowdown(*cells, 0.2),
          "at the end": lambda r, *cells: r.slowdown_at_end(*cells)}
ordered = [chain(f"updates to plain AdamW's loss {place}: basis rotation < PipeDream-LR < plain AdamW",
                 lambda r, at=at: [at(r, name, "adamw_d0") for name in (ROTATED, RATED, PLAIN)], "slowdown")
           for place, at in PLACES.items()]
small = [chain(f"slowdown of basis rotation against itself < 0.6 times that of plain AdamW, {place}",
               lambda r, at=at: [at(r, ROTATED, "br-2nd-bi_d0"), scaled(at(r, PLAIN, "adamw_d0"), 0.6)], "slowdown")
         for place, at in PLACES.items()]
B2_CLAIMS = (
    *ordered, *small,
    chain("the paper's order of the variants in final loss: 2nd bilateral < 2nd unilateral < 1st bilateral"
          " < 1st unilateral",
          gaps(*((f"{m}_d4", None) for m in ("br-2nd-bi", "br-2nd-uni", "br-1st-bi", "br-1st-uni"))), "loss"),
    chain("each variant ends below PipeDream-LR: the worst one", lambda r: [
        highest(r, [f"{m}_d4" for m in VARIANTS]), loss(r, "adamw_pipedream-lr_d4")], "loss"))
B3_CLAIMS = tuple(
    chain(f"loss added by stash = {stash}: basis rotation < AdamW",
          gaps((f"br-2nd-bi_{stash}_d4", "br-2nd-bi_d4"), (f"adamw_{stash}_d4", "adamw_d4")), "loss")
    for stash in ("recompute", "saved"))
B4_CLAIMS = (chain("stage-aware < uniform < reversed in final loss",
                   gaps(*((f"br-2nd-bi_budget-{budget}_d4", None) for budget in ("stage-aware", "uniform", "reversed"))), "loss"),)
B5_CLAIMS = (
    chain("plain AdamW: the loss of 4 blocks in 4 stages < that of 12 in 12 (deeper is worse)",
          gaps(("adamw_K4_d2", None), ("adamw_K12_d2", None)), "loss"),
    chain("basis rotation: 12 blocks in 12 stages < 4 in 4 (deeper is better)",
          gaps(("br-2nd-bi_K12_d2", None), ("br-2nd-bi_K4_d2", None)), "loss"))
P32_CLAIMS = (
    chain("plain AdamW: final loss grows with the stages: 2 < 8 < 32",
          gaps(*((f"adamw_32K{stages}_d1", None) for stages in (2, 8, 32))), "loss"),
    chain("loss added by 32 stages: basis rotation < AdamW",
          gaps(("br-2nd-bi_32K32_d1", "br-2nd-bi_32K1_d1"), ("adamw_32K32_d1", "adamw_32K1_d1")), "loss"))
B7_CLAIMS = (
    chain("loss added by the delay: Muon < AdamW", gaps(("muon_d4", "muon_d0"), ("adamw_d4", "adamw_d0")), "loss"),
    chain("Muon with weight prediction < Muon", gaps(("muon_prediction_d4", None), ("muon_d4", None)), "loss"),
    *(chain(f"{m}: stages' own delays (0 to 28) < 28 for 7 of 8 blocks",
            gaps((f"{m}_d4", None), (f"{m}_uniform_d28", None)), "loss") for m in ("muon", "adamw")))

EXPERIMENTS = {
    "B2": Experiment("B2: slowdown under delay", tuple(b2), claims=B2_CLAIMS),
    "side": Experiment("Matrix optimizers side by side", tuple(side), rows=tuple(side_rows)),
    "B7": Experiment("B7: Muon, weight prediction, one delay for all", tuple(b7),
                     rows=("muon_d0", "muon_d4", "adamw_d0", "adamw_d4", *b7), claims=B7_CLAIMS),
    "B4": Experiment("B4: refresh budgets", tuple(b4), claims=B4_CLAIMS),
    "B3": Experiment("B3: without a stash", tuple(b3), rows=("adamw_d4", "br-2nd-bi_d4", *b3), claims=B3_CLAIMS),
    "B5": Experiment("B5: deeper models in more stages", tuple(b5), claims=B5_CLAIMS),
    "P32": Experiment("P32: 1 to 32 stages of 32 blocks", tuple(p32), rows=tuple(p32_rows), claims=P32_CLAIMS,
                      baseline="adamw_32K1_d1", baseline_label="plain AdamW in one stage", steps=3000),
    "corrections": Experiment("Corrections for delay", tuple(corrections),
                              rows=("adamw_d0", "adamw_d4", "adamw_pipedream-lr_d4", *corrections)),
    "release": Experiment("Basis rotation as released", tuple(release),
                          rows=(*(f"{m}_d4" for m in VARIANTS), *release)),
}
