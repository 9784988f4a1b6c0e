# Functions for setup.sh: train a small model on real text with two optimizers, from nothing to a report and a sample.

first_run() {
  local work="$build/first_run" runs="$root/runs/first_run" sestina="$build/bin/sestina" text kind better precision
  mkdir -p "$work"
  prepare_text "$work"
  if [ ! -f "$work/tokenizer.json" ]; then
    say "training a tokenizer of 4096 tokens"
    "$sestina" data train-tokenizer "$text" --vocab-size 4096 -o "$work/tokenizer.json"
  fi
  if [ ! -f "$work/tokens.idx" ]; then
    say "turning the text into tokens"
    "$sestina" data tokenize "$text" --tokenizer "$work/tokenizer.json" -o "$work/tokens"
  fi
  say "training the same model twice (inputs/first_run.toml; Ctrl-C stops with a checkpoint, the same command resumes)"
  precision=$(fast_precision)
  for kind in adamw muon; do
    say "with $kind"
    train_with "$kind" "$runs/$kind"
  done
  "$sestina" report "$runs/adamw" "$runs/muon" -o "$runs/report.html"
  for kind in adamw muon; do
    say "validation loss with $kind: $(LC_ALL=C printf %.4f "$(last_validation "$runs/$kind")")"
  done
  better=$(better_run "$runs/adamw" "$runs/muon")
  say "the better one is ${better##*/}; what its model writes after \"The kernel\":"
  "$sestina" generate -r "$better" --prompt "The kernel" --tokens 120 --temperature 0.7
  say "losses, learning rates and times of both as plots: $runs/report.html"
  say "the deck: inputs/first_run.toml; the runs: ${runs#"$root/"}; delete that folder to train again"
  say "your own text next: build/bin/sestina init mine --data PATH"
}

# train_with KIND RUN: a run that was stopped is resumed. Each optimizer has the learning rate that was best for it in short
# runs; Muon's steps are scaled to those of AdamW, which updates the embedding and the head next to it.
train_with() {
  local code=0 steps
  local -a keys=("train.precision=$precision")
  [ "$1" = adamw ] || keys+=("optimizer.kind=$1" optimizer.scale=match_rms_adamw schedule.lr=5e-3)
  steps=$(chosen_steps "$2")
  if [ -z "$steps" ]; then
    steps=$(fitting_steps "${keys[@]}")
    say "   $steps steps: what this machine does in three minutes, but at least 100"
  fi
  # The deck's numbers are those of 600 steps.
  keys+=("run.steps=$steps" "schedule.warmup_steps=$((steps / 15))" "metrics.eval_every=$((steps / 6))"
    "checkpoint.every=$((steps / 3))")
  "$sestina" train -i "$root/inputs/first_run.toml" -d "$2" -r auto "${keys[@]}" || code=$?
  ((code != 75)) || say "stopped early: ./setup.sh run resumes from here"
  ((code == 0)) || exit "$code"
}

# chosen_steps RUN: how many steps a run was begun with; nothing where there is none.
chosen_steps() {
  [ ! -f "$1/deck.resolved.toml" ] || sed -n '/^\[run\]/,/^\[model/s/^steps = \([0-9]*\)$/\1/p' "$1/deck.resolved.toml"
}

# fitting_steps KEYS...: measures a step of the deck with these keys; prints how many fit into three minutes, of which
# evaluations and checkpoints take a few seconds.
fitting_steps() {
  local measured
  measured=$("$sestina" bench step -i "$root/inputs/first_run.toml" --warmup 2 --steps 5 --json "$@" 2>/dev/null) || measured=
  # Where it could not be measured training says why.
  sed 's/.*"step_s":\([-+.e0-9]*\).*/\1/' <<<"${measured:-1}" | LC_ALL=C awk '{ n = int(170 / ($1 > 0 ? $1 : 1)); print n < 100 ? 100 : n }'
}

# better_run RUN...: the one whose last validation loss is lowest.
better_run() {
  local run
  for run in "$@"; do
    printf '%s %s\n' "$(last_validation "$run")" "$run"
  done | sort -g | head -n 1 | cut -d ' ' -f 2-
}

last_validation() { grep '"kind":"val"' "$1/metrics.jsonl" | tail -n 1 | sed 's/.*"loss":\([0-9.]*\).*/\1/'; }

# bf16 where the processor multiplies it faster, else fp32.
fast_precision() {
  if "$sestina" info --json | grep -q '"bf16_products": true'; then echo bf16; else echo fp32; fi
}

# prepare_text WORK: sets `text` to the folder or file to train on.
prepare_text() {
  local source
  text=${SESTINA_TEXT:-$1/text}
  if [ -n "${SESTINA_TEXT:-}" ]; then
    [ -e "$text" ] || fail 66 "SESTINA_TEXT=$text: no such file or folder"
    # Another text than last time: its tokenizer and tokens are made again.
    [ "$(cat "$1/source" 2>/dev/null)" = "$text" ] || rm -f "$1/tokenizer.json" "$1/tokens.bin" "$1/tokens.idx"
    echo "$text" >"$1/source"
    return
  fi
  [ -f "$text/.complete" ] && return
  say "fetching the Linux kernel's documentation (37 MB, Debian's linux-doc) as text to train on"
  source=$(documentation_package)
  rm -rf "$text" "$1"/tokenizer.json "$1"/tokens.*
  mkdir -p "$text"
  # The sources of the HTML pages, in English.
  dpkg-deb --fsys-tarfile "$source" | tar x --directory "$text" --strip-components=7 --wildcards \
    './usr/share/doc/*/html/_sources/*.txt' --exclude='*/_sources/translations/*'
  touch "$text/.complete"
  echo "linux-doc" >"$1/source"
  say "$(find "$text" -name '*.txt' | wc -l) documents, $(du -sh --apparent-size "$text" | cut -f1)"
}

# Downloads Debian's package of the kernel's documentation into the cache and prints its path. Needs no root: nothing is
# installed.
documentation_package() {
  local name
  mkdir -p "$cache"
  if ! ls "$cache"/linux-doc-[0-9]*.deb >/dev/null 2>&1; then
    command -v apt-get >/dev/null || fail 66 "no apt-get here to fetch text with: give some with SESTINA_TEXT=PATH"
    name=$(documentation_name)
    if [ -z "$name" ] && ((EUID == 0)); then
      apt-get update -qq >&2
      name=$(documentation_name)
    fi
    [ -n "$name" ] || fail 66 "apt knows no linux-doc package: run apt-get update, or give text with SESTINA_TEXT=PATH"
    (cd "$cache" && apt-get download -qq -o APT::Sandbox::User=root "$name" >&2) || fail 66 "cannot fetch $name: give text with SESTINA_TEXT=PATH"
  fi
  ls "$cache"/linux-doc-[0-9]*.deb | head -n 1
}
documentation_name() { apt-cache depends linux-doc 2>/dev/null | sed -n 's/^ *Depends: \(linux-doc-[0-9].*\)/\1/p' | head -n 1; }
