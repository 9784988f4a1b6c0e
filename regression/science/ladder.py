"""L05, L1, L2, L5, L30: optimizers compared at the end of training, at 20 bytes of text for each parameter besides the
embeddings (ladder.toml), by the rules of "Fantastic pretraining optimizers" (arXiv 2509.02046): each has the best rate of its own
grid, the schedule ends at zero, and only ends are compared. R05: refreshes of SOAP in every update, in every tenth, and
by a worker.
"""

from cells import Cell, Experiment
from judge import chain, loss

STEPS = {"05": 1170, "1": 2450, "2": 4650, "5": 2940, "30": 4900}  # of 8,192 bytes; of 32,768 and 131,072
SIZES = {"05": (),
         "1": ("model.hidden_size=128", "model.intermediate_size=352", "model.num_hidden_layers=5"),
         "2": ("model.hidden_size=160", "model.intermediate_size=448", "model.num_hidden_layers=6",
               "model.num_attention_heads=5"),
         "5": ("model.hidden_size=256", "model.intermediate_size=704", "model.num_hidden_layers=6", "train.global_batch=256",
               "train.micro_batch=64"),
         "30": ("model.hidden_size=512", "model.intermediate_size=1408", "model.num_hidden_layers=10",
                "model.num_attention_heads=8", "train.global_batch=1024", "train.micro_batch=64")}
BALL = ("optimizer.hyperball=true",)
METHODS = {"adamw": ("AdamW", 3e-3, ()),
           "muon": ("Muon", 1e-2, ("optimizer.kind=muon",)),
           "normuon": ("NorMuon", 1e-2, ("optimizer.kind=normuon",)),
           "shampoo": ("Shampoo", 3e-3, ("optimizer.kind=shampoo", "optimizer.refresh.every=10")),
           "soap": ("SOAP", 3e-3, ("optimizer.kind=soap", "optimizer.refresh.every=10")),
           "kl-soap": ("KL-SOAP", 3e-3, ("optimizer.kind=kl-soap", "optimizer.refresh.every=10")),
           "soap-muon": ("SOAP-Muon", 1e-2, ("optimizer.kind=soap-muon", "optimizer.refresh.every=1",
                                             "optimizer.scale=match_rms_adamw")),
           "muon-ball": ("Muon on hyperballs", 1e-2, ("optimizer.kind=muon", *BALL)),
           "soap-muon-ball": ("SOAP-Muon on hyperballs", 1e-2, ("optimizer.kind=soap-muon", "optimizer.refresh.every=1",
                                                                *BALL))}
REFRESHES = {"soap-1": ("SOAP, a refresh in each update", ("optimizer.refresh.every=1",)),
             "soap-late": ("SOAP, in every second update by a worker, one update late",
                           ("optimizer.refresh.every=2", "optimizer.refresh.mode=async",
                            "optimizer.refresh.staleness=1"))}
CELLS = {}
EXPERIMENTS = {}
for size, model in SIZES.items():
    for method, (label, rate, keys) in METHODS.items():
        name = f"ladder{size}_{method}"
        CELLS[name] = Cell(name, label, "-", (*model, *keys), rate, deck="ladder.toml")
    names = tuple(f"ladder{size}_{method}" for method in METHODS)
    EXPERIMENTS[f"L{size}"] = Experiment(
        f"L{size}: optimizers at 20 bytes a parameter", names, baseline=f"ladder{size}_adamw", baseline_label="AdamW",
        steps=STEPS[size], claims=(chain("SOAP ends below AdamW", lambda r, size=size: [
                    loss(r, f"ladder{size}_soap"), loss(r, f"ladder{size}_adamw")], "loss"),
                chain("SOAP before Muon ends below Muon alone", lambda r, size=size: [
                    loss(r, f"ladder{size}_soap-muon"), loss(r, f"ladder{size}_muon")], "loss")))
for method, (label, keys) in REFRESHES.items():
    name = f"ladder05_{method}"
    CELLS[name] = Cell(name, label, "-", ("optimizer.kind=soap", *keys), 3e-3, rate_of="ladder05_soap", deck="ladder.toml")
EXPERIMENTS["R05"] = Experiment("R05: refreshes of SOAP", ("ladder05_soap", *(f"ladder05_{m}" for m in REFRESHES)),
                                baseline="ladder05_soap", baseline_label="a refresh in every tenth update",
                                steps=STEPS["05"])
