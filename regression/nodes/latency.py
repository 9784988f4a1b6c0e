"""Update steps of ranks that are far from one another, by hand: each rank is a node of its own (a network namespace with a
TUN device), and a hub in this process hands each packet on after a delay. Two programs, or two sets of keys, run in turn.

    python3 regression/nodes/latency.py --program build/bin/sestina --program other/sestina --ranks 8 --delay-ms 1 [KEY=VALUE ...]

Standard library alone (Python 3.11), for root; prints the median step time of each."""

import argparse
import collections
import ctypes
import fcntl
import json
import os
import pathlib
import selectors
import statistics
import struct
import subprocess
import tempfile
import threading
import time

from nodes import ip, remove_space

NETWORK, MTU = "10.231.78", 32000
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
DECK = pathlib.Path(__file__).resolve().parents[2] / "inputs/tiny_ranks.toml"


def enter(space):
    """Moves this thread into a network namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Hub:
    """The nodes, and a thread that carries their packets: what comes at t from one leaves for another at t + delay."""

    def __init__(self, ranks, delay):
        self.spaces, self.delay = [f"sl{os.getpid()}n{i}" for i in range(ranks)], delay
        self.devices, self.due, self.over = [], collections.deque(), False
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        for i, space in enumerate(self.spaces):
            ip("netns", "add", space)
            there = os.open(f"/run/netns/{space}", os.O_RDONLY)
            enter(there)
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22s", b"far", IFF_TUN | IFF_NO_PI, b""))
            enter(home)
            os.close(there)
            self.devices.append(device)
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "addr", "add", f"{self.address(i)}/24", "dev", "far")
            ip("-n", space, "link", "set", "far", "mtu", str(MTU), "txqueuelen", "10000", "up")
        os.close(home)
        self.thread = threading.Thread(target=self.carry, daemon=True)
        self.thread.start()

    def address(self, rank):
        return f"{NETWORK}.{rank + 1}"

    def carry(self):
        ready = selectors.DefaultSelector()
        for device in self.devices:
            ready.register(device, selectors.EVENT_READ)
        while not self.over:
            left = self.due[0][0] - time.monotonic() if self.due else 0.1
            for key, _ in ready.select(max(0, left)):
                while True:
                    try:
                        packet = os.read(key.fd, MTU)
                    except BlockingIOError:
                        break
                    self.due.append((time.monotonic() + self.delay, packet))
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                packet = self.due.popleft()[1]
                to = packet[19] - 1 if packet[0] >> 4 == 4 and packet[16:19] == bytes(map(int, NETWORK.split("."))) else -1
                if 0 <= to < len(self.devices):
                    try:
                        os.write(self.devices[to], packet)
                    except OSError:
                        pass  # TCP sends it again

    def inside(self, rank):
        return ["ip", "netns", "exec", self.spaces[rank], "unshare", "--uts", "sh", "-c", f"hostname far{rank} && exec \"$@\"", "sh"]

    def mpirun(self, folder):
        agent = pathlib.Path(folder) / "start_on_node"
        cases = "".join(f"{self.address(i)}) space={space};;\n" for i, space in enumerate(self.spaces))
        agent.write_text("#!/bin/sh\ncase $1 in\n" + cases + "esac\nname=far${1##*.}\nshift\n"
                         "exec ip netns exec $space unshare --uts sh -c \"hostname $name && $*\"\n")
        agent.chmod(0o755)
        hosts = ",".join(f"{self.address(i)}:1" for i in range(len(self.spaces)))
        network = f"{NETWORK}.0/24"
        return [*self.inside(0), "mpirun", "--allow-run-as-root", "-n", str(len(self.spaces)), "--host", hosts, "--map-by", "slot", "--mca", "plm", "rsh",
                "--mca", "plm_rsh_agent", str(agent), "--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", network,
                "--mca", "oob_tcp_if_include", network, "--mca", "mpi_yield_when_idle", "1"]

    def remove(self):
        self.over = True
        self.thread.join()
        for space in self.spaces:
            remove_space(space)
        for device in self.devices:
            os.close(device)


def step_times(hub, folder, program, keys, steps):
    run = pathlib.Path(tempfile.mkdtemp(dir=folder))
    words = [str(pathlib.Path(program).resolve()), "train", "-i", str(DECK), "-d", str(run / "run"), f"run.steps={steps}",
             f"parallel.dp={len(hub.spaces)}", "parallel.tp=1", "checkpoint.every=0", f"train.global_batch={len(hub.spaces)}", "train.micro_batch=1", *keys]
    surroundings = dict(os.environ, OMP_NUM_THREADS="1", OMP_PROC_BIND="false")
    done = subprocess.run([*hub.mpirun(run), *words], cwd=run, capture_output=True, text=True, env=surroundings)
    if done.returncode:
        raise SystemExit(f"{program}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    lines = [line for line in map(json.loads, (run / "run/metrics.jsonl").read_text().splitlines()) if "step_s" in line]
    return [line["step_s"] for line in lines][steps // 4:], lines[-1]["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", required=True)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--delay-ms", type=float, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("keys", nargs="*")
    asked = parser.parse_args()
    hub, seen = Hub(asked.ranks, asked.delay_ms / 1000), collections.defaultdict(list)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(asked.rounds):
                for program in asked.program:
                    times, loss = step_times(hub, folder, program, asked.keys, asked.steps)
                    seen[program].append((statistics.median(times), loss))
    finally:
        hub.remove()
    for program, rounds in seen.items():
        print(f"{program}: {1e3 * statistics.median(t for t, _ in rounds):.1f} ms a step (medians of rounds: "
              + ", ".join(f"{1e3 * t:.1f}" for t, _ in rounds) + f"), loss {rounds[0][1]}")


if __name__ == "__main__":
    main()
