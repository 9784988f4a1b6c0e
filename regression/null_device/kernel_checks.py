"""`sestina check` on the null device, and the checks at a start (run.check). Nothing is computed there, so that all kernels
of a device that is judged are wrong. Standard library alone."""

import pathlib

import products

INPUTS = pathlib.Path(__file__).resolve().parents[2] / "inputs"
UNAVAILABLE = 69


def all_run(device):
    """All kernels run, of each family and type, and nothing is judged; a start checks them once for a device and a build."""
    for deck in ("tiny_llama", "tiny_gpt", "tiny_moe"):
        for precision in ("fp32", "bf16"):
            _, done = device.call(f"check of {deck} in {precision}", ["check", "-i", INPUTS / f"{deck}.toml", "data.source=[]", f"train.precision={precision}"], fill=63)
            if "this device computes nothing" not in done.stdout or "attention: backward" not in done.stdout or "WRONG" in done.stdout:
                raise products.Failure(f"{deck} in {precision}: not the table of a device that computes nothing:\n{done.stdout}")
    for when, checked in (("first", False), ("always", True)):
        _, done = device.train("tiny_llama", "run.steps=2", f"run.check={when}")
        if ("of which nothing was computed" in done.stdout + done.stderr) != checked:
            raise products.Failure(f"a start that should {'' if checked else 'not '}check its kernels:\n{done.stdout}{done.stderr}")


def replaces_libraries(device):
    """Devices of another name are judged. What something else can do is tried once more by that: LAPACK decomposes what lies
    there, so that of all kernels the decompositions hold."""
    _, done = device.train("tiny_llama", "run.steps=2", "run.check=always", "train.precision=bf16", "run.deterministic=false", ranks=2, devices=2,
                           allowed=(UNAVAILABLE,), NULL_DEVICE_NAME="idle device")
    said = done.stdout + done.stderr
    for left in ("attention is wrong on this machine by cuDNN", "decompositions are wrong on this machine by cuSOLVER, and left to LAPACK on the host: rank 0",
                 "what ranks send each other is wrong on this machine by NCCL"):
        if left not in said:
            raise products.Failure(f"not said: {left}\n{said}")
    wrong = said[said.index("kernels that are wrong on this machine"):]
    if "inverse fourth root (" not in wrong or ": eigh" in wrong or ": qr" in wrong:
        raise products.Failure(f"decompositions were not left to the host:\n{wrong}")


def check(device):
    all_run(device)
    replaces_libraries(device)
