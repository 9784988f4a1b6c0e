"""A Slurm of the test's own: munged, slurmctld and one slurmd per node, on this machine, with their own key, ports of
127.0.0.1 and a temporary folder. Nothing of it is a service of the machine, and nothing of it outlives the test.

Its limits are far longer than what they limit takes on an idle machine: on a loaded one a batch script may start after
Slurm's usual 10 s, and then Slurm takes the job for lost and revokes it while it runs."""

import getpass
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
SKIPPED = 77  # what CTest takes for a skipped test
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")  # states of a job that will not start again
# Lines of the daemons' logs that every start has.
USUAL = ("state file", "backup state", "reservation state", "spmix_appdir", ": No such file or directory (2)", "hardware:")

CONFIGURATION = """ClusterName=sestina
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
TaskProlog={folder}/task_prolog
Prolog={folder}/prolog
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout={node_timeout}
KillWait={kill_wait}
MessageTimeout=60
BatchStartTimeout=300
OverTimeLimit=10
MinJobAge=3600
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,bf_interval=1
NodeName=DEFAULT CPUs={cpus} RealMemory=100000 Gres=gpu:2
{nodes}
PartitionName=work Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE OverSubscribe=NO GraceTime={kill_wait}
PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE OverSubscribe=NO
"""

# Shared memory of its own for each acted node: Open MPI names it by the host, which they have in common. Ranks yield where
# they share cores; on cores of their own they would keep the daemons off these cores for minutes (parallel/comm/poll.hpp).
TASK_PROLOG = """#!/bin/sh
echo "export OMPI_MCA_btl_vader_backing_directory={folder}/tmp.$SLURMD_NODENAME"
echo "export OMPI_MCA_btl_tcp_if_include=lo"
echo "export OMPI_MCA_btl_vader_single_copy_mechanism=none"
[ "$SLURM_NTASKS" -le "$(nproc)" ] && echo "unset OMPI_MCA_mpi_yield_when_idle" || echo "export OMPI_MCA_mpi_yield_when_idle=1"
"""

# Limits of Slurm are whole minutes, but an operator may move the end of a job to any second. Before a job starts this
# does so, where `limit` holds a number of seconds.
PROLOG = """#!/bin/sh
[ ! -s {folder}/limit ] || scontrol update JobId="$SLURM_JOB_ID" EndTime="now+$(cat {folder}/limit)"
"""


def why_missing():
    """What this machine lacks for a Slurm, or "" when nothing."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    if absent:
        return "not installed: " + ", ".join(absent) + " (Debian: munge slurmctld slurmd slurm-client)"
    plugins = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, env=os.environ | {"SLURM_CONF": minimal()})
    if "pmix" not in plugins.stdout + plugins.stderr:
        return "this Slurm has no PMIx plugin: " + (plugins.stdout + plugins.stderr).strip()
    return ""


def minimal():
    """A configuration that is enough for `srun --mpi=list`."""
    path = pathlib.Path(tempfile.gettempdir()) / f"sestina-slurm-probe-{os.getuid()}.conf"
    path.write_text(f"ClusterName=probe\nSlurmctldHost={socket.gethostname()}(127.0.0.1)\nNodeName=probe\n")
    return str(path)


def free_ports(count):
    """Ports that were free a moment ago, below those that the system gives to outgoing connections: a node that comes
    back finds its port as it left it."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = []
    for port in random.sample(range(max(1024, first - 12000), first), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError(f"no {count} free ports below {first}")


def started(folder, node=None):
    """Processes of this cluster, or of one of its nodes: those that mind job steps, then all others. Known by their
    environment (jobs, daemons) or, those of steps, which write over theirs, by the log that they have open."""
    mark, steps, others = os.fsencode(folder) + b"/slurm.conf", [], []
    own = b"" if node is None else f"SLURMD_NODENAME={node}".encode()
    log = f"{folder}/slurmd." + ("" if node is None else f"{node}.log")
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if b"slurmstepd" in (entry / "cmdline").read_bytes():
                if any(os.readlink(file).startswith(log) for file in (entry / "fd").iterdir()):
                    steps.append(int(entry.name))
            else:
                environment = (entry / "environ").read_bytes()
                if mark in environment and own in environment:
                    others.append(int(entry.name))
        except OSError:
            pass
    return steps, others


def kill_all(numbers):
    for number in numbers:
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:
            pass


def sweep(folder):
    """Kills whatever this cluster has started."""
    for _ in range(50):
        steps, others = started(folder)
        if not steps + others:
            return
        kill_all(steps + others)
        time.sleep(0.05)


class Slurm:
    """nodes: how many slurmd. node_timeout: seconds until a silent node counts as lost; kill_wait: from TERM to KILL."""

    def __init__(self, nodes=2, cpus=2, task_plugin="task/none", node_timeout=120, kill_wait=60):
        self.folder = tempfile.mkdtemp(prefix="sestina-slurm-")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "SRUN"))}
        self.environment |= {"SLURM_CONF": f"{self.folder}/slurm.conf", "PATH": SEARCH}
        # Whatever ends this process ends the pipe too, and then the keeper cleans up.
        self.keeper = subprocess.Popen([sys.executable, __file__, self.folder], stdin=subprocess.PIPE, start_new_session=True)
        self.names = [f"n{i + 1}" for i in range(nodes)]
        self.daemons = {}
        try:
            self.configure(cpus=cpus, task_plugin=task_plugin, node_timeout=node_timeout, kill_wait=kill_wait)
            self.start_daemons()
        except BaseException as error:
            error.add_note(self.logs())
            self.stop()
            raise

    def configure(self, **settings):
        ports = free_ports(len(self.names) + 1)
        host = socket.gethostname().split(".")[0]
        nodes = "\n".join(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}" for name, port in zip(self.names, ports[1:]))
        text = CONFIGURATION.format(host=host, control_port=ports[0], user=getpass.getuser(), folder=self.folder, nodes=nodes,
                                    **settings)
        pathlib.Path(self.folder, "slurm.conf").write_text(text)
        for name in ("state", *(f"{kind}.{node}" for kind in ("spool", "tmp") for node in self.names)):
            os.makedirs(f"{self.folder}/{name}")
        for name, script in (("task_prolog", TASK_PROLOG), ("prolog", PROLOG)):
            path = pathlib.Path(self.folder, name)
            path.write_text(script.format(folder=self.folder))
            path.chmod(0o755)
        # Slurm does not look what these are; no rank opens them.
        pathlib.Path(self.folder, "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        key = pathlib.Path(self.folder, "munge.key")
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)

    def start(self, name, *command):
        with open(f"{self.folder}/{name}.out", "a") as log:
            self.daemons[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)

    def start_daemons(self):
        folder = self.folder
        self.start("munged", "munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
                   f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munged.seed", f"--log-file={folder}/munged.log", "--num-threads=2")
        self.wait_for(lambda: os.path.exists(f"{folder}/munge.socket"), "munged")
        self.start("slurmctld", "slurmctld", "-D", "-c", "-f", f"{folder}/slurm.conf")
        for name in self.names:
            self.start_node(name)
        self.wait_for(lambda: self.states() == dict.fromkeys(self.names, "idle"), "all nodes to be idle")

    def start_node(self, name):
        self.start(name, "slurmd", "-D", "-N", name, "-f", f"{self.folder}/slurm.conf")

    def kill_node(self, name):
        """Its slurmd and everything that it runs, as when the machine loses power."""
        self.daemons[name].kill()
        self.daemons[name].wait()
        steps, others = started(self.folder, name)
        kill_all(steps + others)

    def limit(self, seconds):
        """The time limit of jobs that start from now on, in seconds; None: that of their submission."""
        pathlib.Path(self.folder, "limit").write_text("" if seconds is None else str(seconds))

    def at_rest(self):
        """Nothing of a job runs or ends on any node, and the controller has no message under way."""
        states = self.states()
        counts = re.findall(r"^Agent.*?:\s*(\d+)", self.run("sdiag", check=False), re.MULTILINE)
        return (set(states) == set(self.names) and not any("comp" in state for state in states.values())
                and not started(self.folder)[0] and len(counts) >= 2 and not any(map(int, counts)))

    def release(self, number):
        """Starts a requeued job now. Slurm lets it wait for two minutes, so that no message about its last start can reach
        the next one; this waits until there is none. A node tells starts of a job apart by whole seconds."""
        self.wait_for(self.at_rest, "nodes and controller to be at rest")
        second = int(time.time())
        self.wait_for(lambda: int(time.time()) > second + 1, "another second")
        self.run("scontrol", "update", f"JobId={number}", "StartTime=now")

    def empty(self):
        """Cancels whatever is left, and waits until the nodes are free."""
        self.limit(None)
        self.run("scancel", "--full", "--signal=KILL", "--user", getpass.getuser(), check=False)
        self.run("scancel", "--user", getpass.getuser(), check=False)
        self.wait_for(lambda: not self.run("squeue", "-h").strip(), "an empty queue")

    def states(self):
        output = self.run("sinfo", "-h", "-N", "-p", "work", "-o", "%N %t", check=False)
        return dict(line.split() for line in output.splitlines() if len(line.split()) == 2)

    def log_sizes(self):
        return {path: path.stat().st_size for path in sorted(pathlib.Path(self.folder).glob("*.log"))}

    def logs(self, since=None, lines=25):
        """The last lines of every daemon's log, written since it had these sizes. Where there is none, what it printed."""
        found = []
        for path in sorted(self.log_sizes()) or sorted(pathlib.Path(self.folder).glob("*.out")):
            written = path.read_bytes()[(since or {}).get(path, 0):].decode(errors="replace").splitlines()
            written = [line for line in written if not any(word in line for word in USUAL)]
            found.append(f"--- {path.name}, the last of {len(written)} lines\n" + "\n".join(written[-lines:]))
        return "\n".join(found)

    def wait_for(self, condition, what, seconds=180):
        """what: text, or a function that returns it when the time is over."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {seconds} s for {what() if callable(what) else what}")
            time.sleep(0.05)

    def run(self, *command, check=True, **options):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=self.environment, timeout=120, **options)
        if check and done.returncode != 0:
            raise RuntimeError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def submit(self, *arguments, environment=None, **options):
        done = subprocess.run(["sbatch", "--parsable", *map(str, arguments)], capture_output=True, text=True, check=False,
                              env=self.environment | (environment or {}), **options)
        if done.returncode != 0:
            raise RuntimeError(f"sbatch {arguments}: {done.stderr}")
        return done.stdout.split(";")[0].strip()

    def job(self, number):
        """What `scontrol show job` says, as a dictionary; of an array: one such for each element, by index."""
        output = self.run("scontrol", "-o", "show", "job", number, check=False)
        found = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in output.splitlines() if line]
        return found[0] if len(found) == 1 and "ArrayTaskId" not in found[0] else {job.get("ArrayTaskId"): job for job in found}

    def wait_state(self, number, *states):
        """Until the job is in one of these states (JobState of scontrol); returns what it says of the job."""
        job = {}

        def is_there():
            nonlocal job
            job = self.job(number)
            return job.get("JobState") in states
        self.wait_for(is_there, lambda: f"job {number} to be {' or '.join(states)}, is {job}")
        return job

    def wait_end(self, number):
        """Until the job has ended for good; its exit code."""
        return int(self.wait_state(number, *ENDS)["ExitCode"].split(":")[0])

    def stop(self):
        self.keeper.stdin.close()
        self.keeper.wait()
        for daemon in self.daemons.values():
            daemon.wait()


def main():
    """unittest's main for the tests of this folder: skipped, with the reason, where there is no Slurm."""
    import unittest
    reason = why_missing()
    if reason:
        print("skipped:", reason)
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)


if __name__ == "__main__":  # the keeper
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    sweep(sys.argv[1])
    shutil.rmtree(sys.argv[1], ignore_errors=True)
