"""P1 to P6: forms of weights (POET-X, LoRA) and projected gradients (GaLore, APOLLO) compared with AdamW (forms.toml)."""

import statistics

from cells import Cell, Experiment
from delays import ADAMW, matrix
from judge import FAILS, HOLDS, MISSING, Precise, chain, highest, loss
from spectrum import drift

CELLS = {}


def cell(name, label, rate, *settings, paper="", rate_of=""):
    name = f"form_{name}"
    after = drift if name in ("form_adamw", "form_poet32") else None
    CELLS[name] = Cell(name, label, "-", settings, rate, paper=paper, rate_of=rate_of, deck="forms.toml", after=after)
    return name


def poet(block, *more, tag="", label="", paper="", optimizer=ADAMW, rate_of=""):
    return cell(f"poet{block}{tag}", f"POET-X, blocks of {block}{label}", 1e-2, *optimizer, "model.linear.form=poet-x",
                f"model.linear.block_size={block}", "model.linear.merge_every=100", "model.linear.clip_warmup_steps=10",
                "model.linear.clip_start_ratio=0.1", "model.linear.clip_warmup_until=1500", *more, paper=paper,
                rate_of=rate_of)


low_rank = ("optimizer.refresh.every=200", "optimizer.rank=16", "optimizer.weight_decay=0.01")
adamw = cell("adamw", "AdamW", 3e-3, *ADAMW, paper="26.7")
# The paper has blocks of an eighth, a quarter and a half of the width too.
blocks = [poet(8, paper="29.5"), poet(16, paper="26.9"), poet(32, paper="25.3"), poet(64)]
lora = cell("lora", "LoRA, rank 16", 3e-3, *ADAMW, "model.linear.form=lora", "model.linear.rank=16", paper="39.7")
galore = cell("galore", "GaLore, rank 16", 1e-2, "optimizer.kind=galore", *low_rank, paper="29.8")
apollo = cell("apollo", "APOLLO, rank 16", 1e-2, "optimizer.kind=apollo", *low_rank)
gaussian = poet(32, "model.linear.init=gaussian", tag="-gaussian", label=", weights not normalised")
quantised = poet(32, "model.linear.variant=xq", "model.linear.group_size=64", tag="-xq", label=", weights in 8 bits")


def coded(bits, residual=False, *more, tag="", label=""):
    """At the rate of weights in fp32."""
    label = f", weights in {bits} bits" + (", merges compensated" if residual else "") + label
    return poet(32, "model.linear.variant=xq", "model.linear.group_size=64", f"model.linear.base_bits={bits}",
                f"model.linear.merge_residual={str(residual).lower()}", *more,
                tag=f"-xq{bits}" + ("r" if residual else "") + tag, label=label, rate_of=blocks[2])


bits8, bits8_kept, bits4, bits4_kept = coded(8), coded(8, True), coded(4), coded(4, True)
# 150 merges, where a run of the paper has 250; thresholds do not rise behind each of them.
OFTEN = ("model.linear.merge_every=10", "model.linear.clip_warmup_steps=0")
often = poet(32, *OFTEN, tag="-often", label=", 150 merges", rate_of=blocks[2])
often4, often4_kept = (coded(4, kept, *OFTEN, tag="-often", label=", 150 merges") for kept in (False, True))
muon = cell("muon", "Muon", 3e-3, *matrix("muon"))
by_muon = poet(32, tag="-muon", label=", rotations by Muon", optimizer=matrix("muon"))
by_soap = poet(32, tag="-soap", label=", rotations by SOAP", optimizer=matrix("soap"))
galore8 = cell("galore8", "GaLore, rank 16, moments in 8 bits", 1e-2, "optimizer.kind=galore", "optimizer.state_bits=8",
               *low_rank)
q_galore = cell("q-galore", "Q-GaLore, rank 16: weights and moments in 8 bits, projectors in 4", 1e-2,
                "optimizer.kind=galore", "optimizer.weight_bits=8", "optimizer.state_bits=8", "optimizer.projector_bits=4",
                *low_rank, paper="17.74 at 3B")
q_apollo = cell("q-apollo", "Q-APOLLO, rank 16: weights in 8 bits", 1e-2, "optimizer.kind=apollo",
                "optimizer.weight_bits=8", *low_rank, paper="20.49 at 3B")


def within(text, a, b, share):
    """Final losses differ by less than a share of the second."""

    def judge(results):
        x, y = results.loss(a), results.loss(b)
        if x is None or y is None:
            return MISSING, "-"
        return (HOLDS if abs(x - y) < share * y else FAILS), f"{x:.4f}, {y:.4f}"

    return text, judge


def losses(*names):
    return lambda results: [loss(results, name) for name in names]


def spectrum(name, key, factor=1.0):
    """Mean over seeds of what spectrum.py finds."""

    def number(results):
        found = [result[key] for result in results.after(name)]
        return Precise(factor * statistics.mean(found)) if len(found) == len(results.seeds) else None

    return number


def growth(results):
    """The largest growth in POET-X may be none at all: ten times its size."""
    moved = spectrum("form_poet32", "largest_relative_drift", 10)(results)
    return [moved, spectrum("form_adamw", "growth_of_largest")(results)]


P2 = (chain("POET-X: the largest relative drift of a singular value < 2 %",
            lambda r: [spectrum("form_poet32", "largest_relative_drift")(r), Precise(0.02)], "drift"),
      chain("ten times that < growth of AdamW's largest singular value", growth, "drift"))
P1 = (chain("larger blocks, lower loss: 64 < 32 < 16 < 8", losses(*reversed(blocks)), "loss"),
      chain("LoRA is the worst: the worst of the others < LoRA", lambda r: [
          highest(r, (adamw, galore, apollo, *blocks)), loss(r, lora)], "loss"))
P5 = (chain("Muon < AdamW on weights", losses(muon, adamw), "loss"),
      chain("rotations by Muon < by AdamW", losses(by_muon, blocks[2]), "loss"),
      chain("rotations by SOAP < by AdamW", losses(by_soap, blocks[2]), "loss"))
EXPERIMENTS = {
    "P1": Experiment("P1: POET-X, GaLore, APOLLO, LoRA compared with AdamW", (adamw, *blocks, lora, galore, apollo), claims=P1,
                     baseline=adamw, baseline_label="AdamW"),
    "P2": Experiment("P2: singular values", (adamw, blocks[2]), baseline=adamw, baseline_label="AdamW", claims=P2),
    "P3": Experiment("P3: first weights of POET-X", (gaussian,), rows=(blocks[2], gaussian),
                     baseline=adamw, baseline_label="AdamW",
                     claims=(chain("normalised < Gaussian", losses(blocks[2], gaussian), "loss"),)),
    "P4": Experiment("P4: weights or moments in 8 bits", (quantised, galore8, q_galore, q_apollo),
                     rows=(blocks[2], quantised, galore, galore8, q_galore, apollo, q_apollo), baseline=adamw, baseline_label="AdamW",
                     claims=(within("8-bit weights within 5 % of fp32 ones", quantised, blocks[2], 0.05),
                             within("Q-GaLore within 5 % of GaLore", q_galore, galore, 0.05),
                             within("Q-APOLLO within 5 % of APOLLO", q_apollo, apollo, 0.05))),
    "P5": Experiment("P5: matrices and rotations by matrix optimizers", (adamw, muon, blocks[2], by_muon, by_soap),
                     baseline=adamw, baseline_label="AdamW", claims=P5),
    "P6": Experiment("P6: frozen weights in 8 and 4 bits", (blocks[2], bits4_kept, bits4, bits8, bits8_kept, often, often4, often4_kept),
                     baseline=blocks[2], baseline_label="weights in fp32",
                     claims=(within("8 bits within 5 % of fp32", bits8, blocks[2], 0.05),
                             within("4 bits within 5 % of fp32", bits4, blocks[2], 0.05),
                             chain("4 bits, 150 merges: compensated < plain", losses(often4_kept, often4), "loss")))}
