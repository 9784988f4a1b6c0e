#!/usr/bin/env python3
"""Walks the whole way as a user, in seconds: init, a tokenizer, JSONL to tokens, training, Ctrl-C, going on, report,
export, loading with transformers, generating, importing the folder, evaluating with its tokenizer. Every number that
has another program to stand next to is compared with it where transformers and tokenizers are installed."""
import fcntl
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

from user import DATA, PROGRAM, SIZES, answer, keys, lines, python_packages, run, write_corpus


def read_tokens(prefix):
    """Documents of a Megatron pair."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    count = struct.unpack_from("<Q", index, 18)[0]
    lengths = struct.unpack_from(f"<{count}i", index, 34)
    data = pathlib.Path(f"{prefix}.bin").read_bytes()
    ids = struct.unpack(f"<{len(data) // 2}H", data)
    documents, at = [], 0
    for length in lengths:
        documents.append(list(ids[at : at + length]))
        at += length
    return documents


def prepare(work):
    """Deck, tokenizer and tokens; returns the documents."""
    corpus = work / "corpus.jsonl"
    texts = write_corpus(corpus)
    out = run("init", "mine", "--data", corpus, "-o", work / "mine.toml")
    assert f"{PROGRAM} train -i {work}/mine.toml" in out, out  # the program as it was called: it need not be on the PATH
    run("data", "train-tokenizer", corpus, "--vocab-size", 512, "-o", work / "mine.tokenizer.json")
    run("train", "-i", work / "mine.toml", "-n", f"data.tokenizer={work}/mine.tokenizer.json")
    out = run("data", "tokenize", corpus, "--tokenizer", work / "mine.tokenizer.json", "-o", work / "tokens")
    documents = read_tokens(work / "tokens")
    assert len(documents) == len(texts), (len(documents), len(texts), out)
    packages = python_packages()
    if packages:
        theirs = packages[1].Tokenizer.from_file(str(work / "mine.tokenizer.json"))
        end = theirs.token_to_id("<|endoftext|>")
        for text, ids in zip(texts, documents):
            assert ids == theirs.encode(text).ids + [end], text
    return texts


def deck_words(work):
    source = f'data.source=[{{path="{work}/corpus.jsonl"}}]'
    return ["model.family=llama", *keys(SIZES), f"data.tokenizer={work}/mine.tokenizer.json", source,
            "data.validation_fraction=0.1", "run.name=mine", "checkpoint.keep=1", "checkpoint.keep_every=20"]


def train(work):
    """Starts, is interrupted, goes on with another total."""
    run_dir = work / "run"
    words = ["train", *deck_words(work), "-d", str(run_dir), "--progress", "never"]
    process = subprocess.Popen([PROGRAM, *words, "run.steps=100000", "schedule.steps=60"], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    deadline = time.time() + 60
    while time.time() < deadline and not ((run_dir / "metrics.jsonl").exists() and len(lines(run_dir, "train")) > 2):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out = process.communicate(timeout=60)[0]
    assert process.returncode == 75, (process.returncode, out)
    assert "\033" not in out, "a bar in a file"
    reached = lines(run_dir, "train")[-1]["step"]
    total = reached + 20
    out = run(*words, "-r", "auto", f"run.steps={total}", "schedule.steps=60", "checkpoint.every=10")
    assert "the learning rate of step" not in out, out
    assert "resumed from" in out and f"at step {reached}" in out, out
    check_metrics(run_dir, total)
    kept = sorted(int(path.name[5:]) for path in (run_dir / "checkpoints").glob("step_*"))
    assert kept == sorted({step for step in range(reached, total + 1) if step % 20 == 0} | {total}), (kept, reached)
    # The horizon follows the total where nobody keeps it: told, with both numbers.
    out = run("train", "-d", str(work / "jump"), *deck_words(work), "run.steps=4", "--progress", "never",
              env={"OMP_NUM_THREADS": "1"})
    check_start(work, out)
    out = run("train", "-d", str(work / "jump"), *deck_words(work), "run.steps=40", "-r", "auto", "--progress", "never")
    assert "schedule.steps=4 keeps it" in out, out
    return run_dir


def check_start(work, out):
    """What the start says of model, optimizer, layout, device, memory and data, against what it is."""
    plan = answer("plan", *deck_words(work), "--json")
    available = int(re.search(r"MemAvailable: +(\d+) kB", pathlib.Path("/proc/meminfo").read_text()).group(1)) * 1024e-9
    corpus = sum(len(document) for document in read_tokens(work / "tokens"))
    for pattern in (rf"^model +llama, 2 layers, {plan['model']['parameters']} parameters, fp32$",
                    r"^optimizer +adamw, peak lr 0.003, batch 8 x 32 tokens in micro-batches of \d+$",
                    r"^layout +1 x 1 x 1 ranks", r"^device +\w+, 1 thread per rank$", rf"^data +.*corpus.jsonl: {corpus} tokens of "):
        assert re.search(pattern, out, re.MULTILINE), (pattern, out)
    planned, free = map(float, re.search(r"^memory +([\d.]+) GB planned, ([\d.]+) GB available$", out, re.MULTILINE).groups())
    assert abs(planned - 1e-9 * plan["ranks"][0]["bytes"]["total"]) <= 0.0051, (planned, plan["ranks"])
    assert abs(free - available) <= 0.5 * available, (free, available)


def check_metrics(run_dir, total):
    all_lines = lines(run_dir)
    assert all_lines[0]["kind"] == "run" and len(lines(run_dir, "run")) == 2, all_lines[:2]
    first = all_lines[0]
    for key in ("version", "commit", "build", "device", "command_line", "deck_digest", "started"):
        assert first[key], first
    assert first["ranks"] == 1 and len(first["hosts"]) == 1 and first["threads"] >= 1, first
    assert first["command_line"].startswith("sestina train "), first
    times = [line["time"] for line in all_lines]
    assert times == sorted(times) and abs(times[-1] - time.time()) < 300, times
    assert lines(run_dir, "train")[-1]["step"] == total


def on_terminal(words, **environment):
    """Output of the program on a pseudo-terminal of 50 columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 50, 0, 0))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI"))}
    process = subprocess.Popen([PROGRAM, *words], stdout=follower, stderr=follower, env={**clean, **environment})
    os.close(follower)
    out = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        out += part
    os.close(leader)
    assert process.wait(timeout=60) == 0, out
    return out.decode()


def progress(work):
    words = ["train", *deck_words(work), "run.steps=3", "metrics.every=2"]
    bar = on_terminal([*words, "-d", str(work / "t1")], TERM="xterm")
    drawn = [part.split("\033[K")[0] for part in bar.split("\r") if "3/3" in part and "step" not in part]
    assert drawn and all(len(line) < 50 for line in drawn), bar
    for number, environment in enumerate(({"TERM": "dumb"}, {"TERM": "xterm", "OMPI_COMM_WORLD_SIZE": "1"})):
        assert "\033" not in on_terminal([*words, "-d", str(work / f"n{number}")], **environment)
    assert "\033" not in on_terminal([*words, "-d", str(work / "n2"), "--progress", "never"], TERM="xterm")
    out = run(*words, "-d", work / "a", "--progress", "always")
    assert "\033[K" in out
    for line in (work / "a" / "log.txt").read_text().splitlines():
        text = line.split(" I ", 1)[-1]
        if text.startswith("step") and "loss" in text and "validation" not in text:
            assert len(text) <= 100 and sum(map(int, text.split("%")[0].split()[-1].split("+"))) == 100, text


def report(work, run_dir):
    (work / "empty").mkdir()
    out = run("report", run_dir, work / "empty", "-o", work / "report.html")
    assert "empty: no metrics.jsonl" in out, out
    assert "<svg" in (work / "report.html").read_text()
    run("report", work / "empty", code=66)


def evaluated(work, *words):
    held_out = f'data.validation=[{{path="{DATA}/harbour.txt"}}]'
    return answer("eval", *words, held_out, "data.sequence_length=32", "data.shuffle=false", "train.global_batch=4",
                  "train.micro_batch=4", "metrics.eval_batches=8", "--json")


def export_and_import(work, run_dir):
    own = evaluated(work, "-r", run_dir)
    run("checkpoint", "export", run_dir, "-o", work / "hf")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (work / "hf" / name).exists(), name
    # The folder brings its tokenizer, and its model replaces that of a deck for another one.
    (work / "other.toml").write_text('[model]\npreset = "llama-8m"\n[data]\ntokenizer = "none.json"\n')
    for words in ([], ["-i", work / "other.toml"]):
        theirs = evaluated(work, "--hf", work / "hf", *words)
        assert theirs["loss"] == own["loss"] and theirs["bits_per_byte"] == own["bits_per_byte"], (own, theirs)
    # Bytes are not what it was trained on.
    (work / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        (work / "bare" / name).write_bytes((work / "hf" / name).read_bytes())
    out = run("eval", "--hf", work / "bare", f'data.validation=[{{path="{DATA}/harbour.txt"}}]',
              "data.sequence_length=32", code=65)
    assert "vocab_size is 512" in out, out
    assert "vocab_size is 512" in run("generate", "--hf", work / "bare", "--prompt", "x", code=65)

    run("checkpoint", "import", work / "hf", "-d", work / "imported")
    assert (work / "imported" / "tokenizer.json").exists()
    again = evaluated(work, "-r", work / "imported")
    assert again["loss"] == own["loss"] and again["bits_per_byte"] == own["bits_per_byte"], (own, again)
    text = [answer("generate", *words, "--prompt", "The harbour", "--tokens", 12, "--temperature", 0, "--json")["text"]
            for words in (["-r", run_dir], ["--hf", work / "hf"], ["-r", work / "imported"])]
    assert text[0] == text[1] == text[2], text
    # An import is gone on from as weights alone, without a word from the user.
    out = run("train", "-r", "auto", "-d", work / "imported", f'data.source=[{{path="{work}/corpus.jsonl"}}]',
              "data.sequence_length=32", "run.steps=2", "--progress", "never")
    assert "only weights" in out, out
    return own


def gpt(work):
    """A gpt goes out as GPT-2 and comes back with the same loss; one that is none says so."""
    words = [*deck_words(work)[1:], "model.family=gpt", "model.tie_word_embeddings=true", "run.steps=2", "--progress", "never"]
    run("train", *words, "model.position=learned", "model.attention_bias=true", "-d", work / "gpt")
    out = run("checkpoint", "export", work / "gpt", "-o", work / "gpt2")
    assert "GPT2LMHeadModel" in out and "GPT2LMHeadModel" in (work / "gpt2" / "config.json").read_text(), out
    assert evaluated(work, "-r", work / "gpt")["loss"] == evaluated(work, "--hf", work / "gpt2")["loss"]
    run("train", *words, "-d", work / "rotary")
    out = run("checkpoint", "export", work / "rotary", "-o", work / "rotary-hf")
    assert "no class for this model (position is rope" in out, out
    assert evaluated(work, "-r", work / "rotary")["loss"] == evaluated(work, "--hf", work / "rotary-hf")["loss"]


def compare(work, own):
    """Loss and tokens in addition to those of transformers."""
    packages = python_packages()
    if not packages:
        print("transformers, tokenizers or torch are not installed: numbers are not compared with theirs")
        return
    transformers, _, torch = packages
    model = transformers.AutoModelForCausalLM.from_pretrained(work / "hf", dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "hf")
    ids = tokenizer((DATA / "harbour.txt").read_text(), add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
    windows = torch.tensor([ids[32 * i : 32 * i + 33] for i in range(own["tokens"] // 32)])
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
    assert abs(loss - own["loss"]) < 1e-5, (loss, own["loss"])
    prompt = tokenizer("The harbour", return_tensors="pt", add_special_tokens=False).input_ids
    theirs = model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)[0].tolist()
    ours = answer("generate", "--hf", work / "hf", "--prompt", "The harbour", "--tokens", 12, "--temperature", 0, "--json")
    assert ours["ids"] == [i for i in theirs if i != tokenizer.eos_token_id], (ours["ids"], theirs)
    print(f"transformers {transformers.__version__}: loss {loss:.7f}, here {own['loss']:.7f}; the same greedy tokens")


def completion(work):
    """Bash itself, with the script that the program made, completes verbs, options, their values and files."""
    (work / "some_deck.toml").touch()
    script = ('source <("$0" manual bash); COMP_WORDS=(sestina "$@"); COMP_CWORD=$#; _sestina; echo "${COMPREPLY[*]}"')
    for words, expected in ((["tr"], "train"), (["data", "tok"], "tokenize"), (["help", "checkp"], "checkpoint"), (["train", "--dry"], "--dry-run"),
                            (["train", "--progress", ""], "auto always never"), (["init", "x", "--preset", "olmo2-1"], "olmo2-1b"),
                            (["train", "-i", "some_d"], "some_deck.toml"), (["train", "some_d"], "some_deck.toml")):
        done = subprocess.run(["bash", "--norc", "-c", script, PROGRAM, *words], text=True, capture_output=True, timeout=60, cwd=work)
        assert done.stdout.strip() == expected, (words, done)


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder).resolve()
        prepare(work)
        run_dir = train(work)
        progress(work)
        completion(work)
        report(work, run_dir)
        own = export_and_import(work, run_dir)
        gpt(work)
        compare(work, own)
    print("walked the whole way")


if __name__ == "__main__":
    sys.exit(main())
