"""Ranks that are far from one another: each is a node of its own (a network namespace with a TUN device), and a hub in this
process hands each packet on over links with a rate and a delay. Standard library alone (Python 3.11), for root."""

import ctypes
import fcntl
import heapq
import itertools
import json
import os
import pathlib
import selectors
import struct
import subprocess
import tempfile
import threading
import time

from nodes import ip, remove_space

NETWORK, MTU = "10.231.78", 32000
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000


def enter(space):
    """Moves this thread into a network namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Hub:
    """The nodes, and a thread that carries their packets. Each node has a link to the hub and one back, on which packets
    follow one another at `rate` bytes a second (0: at once); between them lies `delay`, in seconds."""

    def __init__(self, ranks, delay, rate=0):
        self.spaces, self.delay, self.rate = [f"sl{os.getpid()}n{i}" for i in range(ranks)], delay, rate
        self.devices, self.due, self.over = [], [], False
        self.out_free, self.in_free, self.numbers = [0.0] * ranks, [0.0] * ranks, itertools.count()
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
        for i, device in enumerate(self.devices):
            ready.register(device, selectors.EVENT_READ, i)
        while not self.over:
            left = self.due[0][0] - time.monotonic() if self.due else 0.1
            for key, _ in ready.select(max(0, left)):
                self.take(key.fd, key.data)
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                _, _, to, packet = heapq.heappop(self.due)
                try:
                    os.write(self.devices[to], packet)
                except OSError:
                    pass  # TCP sends it again

    def take(self, device, sender):
        """Takes what a node has sent, and says when it arrives."""
        while True:
            try:
                packet = os.read(device, MTU)
            except BlockingIOError:
                return
            to = packet[19] - 1 if packet[0] >> 4 == 4 and packet[16:19] == bytes(map(int, NETWORK.split("."))) else -1
            if not 0 <= to < len(self.devices):
                continue
            seconds = len(packet) / self.rate if self.rate else 0
            self.out_free[sender] = max(self.out_free[sender], time.monotonic()) + seconds
            self.in_free[to] = max(self.in_free[to], self.out_free[sender] + self.delay) + seconds
            heapq.heappush(self.due, (self.in_free[to], next(self.numbers), to, packet))

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

    def train(self, folder, program, deck, keys):
        """Trains a deck with a rank on each node; returns the lines of its updates. One sequence a rank unless keys say otherwise."""
        run = pathlib.Path(tempfile.mkdtemp(dir=folder))
        words = [str(pathlib.Path(program).resolve()), "train", "-i", str(deck), "-d", str(run / "run"), f"train.global_batch={len(self.spaces)}",
                 "train.micro_batch=1", *keys]
        surroundings = dict(os.environ, OMP_NUM_THREADS="1", OMP_PROC_BIND="false")
        done = subprocess.run([*self.mpirun(run), *words], cwd=run, capture_output=True, text=True, env=surroundings)
        if done.returncode:
            raise SystemExit(f"{program} {' '.join(keys)}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return [line for line in map(json.loads, (run / "run/metrics.jsonl").read_text().splitlines()) if line["kind"] == "train"]

    def remove(self):
        self.over = True
        self.thread.join()
        for space in self.spaces:
            remove_space(space)
        for device in self.devices:
            os.close(device)
