# shellcheck shell=bash
# What the batch scripts share: run_chain starts the ranks, hands the warning of the time limit on to them, and puts the
# job back into the queue where the run stopped early with a checkpoint (exit code 75). After any other code the job ends
# with that code, and its last line says why.

say() { echo "sestina job ${SLURM_JOB_ID}: $*"; }

# run_chain MAX_STARTS COMMAND...: the command on all ranks of the allocation.
run_chain() {
  local max_starts=$1 starts=$((${SLURM_RESTART_COUNT:-0} + 1)) code=0
  shift
  say "start $starts of at most $max_starts on ${SLURM_JOB_NODELIST:-?}: $*"
  # srun takes the cores of a task from the job only where it is told so (since Slurm 22.05).
  [ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  export_end_time
  start_ranks "$@"
  case $code in
    0) say "done" ;;
    75) requeue "$starts" "$max_starts" ;;
    76) say "stopped early without a checkpoint (exit code 76): not requeued" ;;
    64 | 65 | 66 | 69 | 70 | 73 | 74 | 78 | 79) say "failed (exit code $code, see the message above): not requeued" ;;
    *) say "ended by a signal or a lost node (exit code $code): not requeued" ;;
  esac
  return "$code"
}

# The program keeps a reserve for its last checkpoint before this moment. Older versions of Slurm do not export it.
export_end_time() {
  local end
  [ -z "${SLURM_JOB_END_TIME:-}" ] || return 0
  end=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e) || return 0
  end=$(date --date="$end" +%s 2>/dev/null) || return 0  # a job without a limit has no date here
  export SLURM_JOB_END_TIME=$end
}

# Sets code. USR1 comes from --signal=B:USR1@seconds. TERM reaches the ranks by itself; srun would kill them on it.
start_ranks() {
  local interrupted=yes status
  srun --mpi=pmix --wait=120 "$@" &
  local ranks=$!
  trap 'interrupted=yes; say "the time limit is near: asking for a checkpoint"; kill -USR1 $ranks 2>/dev/null' USR1
  trap 'interrupted=yes' TERM
  while [ "$interrupted" = yes ]; do
    interrupted=no status=0
    wait "$ranks" || status=$?
    [ "$status" = 127 ] || code=$status # 127: it had ended before, with the code we have
  done
}

# A job that was cancelled is no longer running, and stays so.
requeue() {
  local starts=$1 max_starts=$2 state
  state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format='%T %r') || state=gone
  case $state in
    RUNNING* | *TimeLimit) ;;
    *)
      say "stopped with a checkpoint; the job was cancelled ($state): not requeued"
      return
      ;;
  esac
  if ((starts >= max_starts)); then
    say "stopped with a checkpoint; start $starts was the last that is allowed: not requeued"
    return
  fi
  say "stopped with a checkpoint: requeued for start $((starts + 1))"
  scontrol requeue "$SLURM_JOB_ID" || say "scontrol requeue failed: submit the job again"
}
