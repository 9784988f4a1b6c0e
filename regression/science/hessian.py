"""B6: the (1,1)-norm of the Hessian in the coordinates of the weights and in the bases of basis rotation."""

import json
import statistics

from cells import Cell, Experiment
from delays import VARIANTS, METHODS
from judge import Number, chain
from results import runs


def diagnose(sestina, folder):
    said = runs.call(sestina, "diagnose", "hessian", "-r", folder, "--vectors", 50, "--json", "run.threads=1")
    return json.loads(said)


CELLS = {f"hessian_{m}": Cell(f"hessian_{m}", METHODS[m][0], "-", METHODS[m][1], 3e-3, deck="hessian.toml",
                              after=diagnose) for m in VARIANTS}


def ratio(results, name):
    """Rotated over original, over all tensors, mean over seeds; None: not run."""
    found = [result["total"]["ratio"] for result in results.after(name)]
    return Number(statistics.mean(found)) if len(found) == len(results.seeds) else None



def ordered(source):
    names = [f"hessian_br-{source}-{sides}" for sides in ("bi", "uni")]
    return chain(f"rotated / original, {source} moment: bilateral < unilateral < 1",
                 lambda r: [*(ratio(r, name) for name in names), Number(1.0)], "slowdown")


CLAIMS = (chain("rotated / original (1,1)-norm, 2nd moment, bilateral < 0.8",
                lambda r: [ratio(r, "hessian_br-2nd-bi"), Number(0.8)], "slowdown"), ordered("2nd"), ordered("1st"))
EXPERIMENTS = {"B6": Experiment("B6: Hessian in rotated coordinates", tuple(CELLS), claims=CLAIMS, baseline="")}
