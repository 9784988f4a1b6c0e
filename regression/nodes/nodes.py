"""Two nodes acted on this machine: two network namespaces with host names of their own, joined by one cable (a veth pair)
with addresses of its own. Open MPI starts its ranks on both, and they speak TCP over the cable. Nothing of it is seen
outside, and the kernel removes it with the last process and the names."""

import os
import pathlib
import shutil
import subprocess

NETWORK = "10.231.77"
SKIPPED = 77


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


def why_missing():
    for program in ("ip", "unshare", "mpirun"):
        if shutil.which(program) is None:
            return f"not installed: {program}"
    name = f"sx{os.getpid()}p"
    made = ip("netns", "add", name, check=False)
    if made.returncode != 0:
        return "network namespaces are forbidden: " + made.stderr.strip()
    joined = ip("-n", name, "link", "add", "name", "one", "type", "veth", "peer", "name", "other", check=False)
    ip("netns", "del", name)
    return "" if joined.returncode == 0 else "no veth pairs: " + joined.stderr.strip()


def remove_space(space):
    """Ends what runs in a network namespace, and gives up its name."""
    for number in ip("netns", "pids", space, check=False).stdout.split():
        try:
            os.kill(int(number), 9)
        except OSError:
            pass
    ip("netns", "del", space, check=False)


class Nodes:
    """Both nodes, "left" (where mpirun is) and "right"."""

    def __init__(self, folder):
        self.spaces = {"left": f"sx{os.getpid()}l", "right": f"sx{os.getpid()}r"}
        self.addresses = {"left": f"{NETWORK}.1", "right": f"{NETWORK}.2"}
        self.agent = pathlib.Path(folder) / "start_on_node"
        # mpirun's remote shell: HOST COMMAND...
        self.agent.write_text("#!/bin/sh\nshift\n" + " ".join(self.inside("right")) + ' sh -c "$*"\n')
        self.agent.chmod(0o755)
        try:
            for space in self.spaces.values():
                ip("netns", "add", space)
                ip("-n", space, "link", "set", "lo", "up")
            ip("-n", self.spaces["left"], "link", "add", "name", "cable", "type", "veth", "peer", "name", "cable", "netns", self.spaces["right"])
            for node, space in self.spaces.items():
                ip("-n", space, "addr", "add", f"{self.addresses[node]}/24", "dev", "cable")
                ip("-n", space, "link", "set", "cable", "up")
                # A launcher whose words to the other side are lost gives up in seconds, not in a quarter of an hour.
                ip("netns", "exec", space, "sh", "-c", "echo 4 > /proc/sys/net/ipv4/tcp_retries2")
        except BaseException:
            self.remove()
            raise

    def inside(self, node):
        """The words before a command that is to run on a node, under that node's host name."""
        return ["ip", "netns", "exec", self.spaces[node], "unshare", "--uts", "sh", "-c", f"'hostname {node} && exec \"$@\"'", "sh"]

    def mpirun(self, ranks_of_node=2):
        """The words before a program that is to run on both nodes."""
        words = [word.strip("'") for word in self.inside("left")]
        hosts = ",".join(f"{address}:{ranks_of_node}" for address in self.addresses.values())
        network = f"{NETWORK}.0/24"
        return [*words, "mpirun", "-n", str(2 * ranks_of_node), "--host", hosts, "--map-by", "slot", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent",
                str(self.agent), "--mca", "pml", "ob1", "--mca", "btl", "tcp,self,vader", "--mca", "btl_tcp_if_include", network, "--mca",
                "oob_tcp_if_include", network, "--mca", "oob_tcp_keepalive_time", "15", "--mca", "oob_tcp_keepalive_intvl", "1", "--mca",
                "oob_tcp_keepalive_probes", "3"]

    def sent(self):
        """Bytes that have left both nodes over the cable."""
        total = 0
        for space in self.spaces.values():
            done = subprocess.run(["ip", "netns", "exec", space, "cat", "/sys/class/net/cable/statistics/tx_bytes"], capture_output=True, text=True)
            total += int(done.stdout)
        return total

    def cut(self):
        ip("-n", self.spaces["right"], "link", "set", "cable", "down")

    def slow(self):
        """Leaves the cable a thousand bytes a second; False where this kernel cannot (token bucket filter)."""
        return ip("netns", "exec", self.spaces["right"], "tc", "qdisc", "add", "dev", "cable", "root", "tbf", "rate", "8kbit", "burst", "2000",
                  "latency", "2s", check=False).returncode == 0

    def ranks(self):
        """Processes of the program on both nodes."""
        found = []
        for space in self.spaces.values():
            for number in ip("netns", "pids", space, check=False).stdout.split():
                try:
                    if pathlib.Path(f"/proc/{number}/comm").read_text().strip() == "sestina":
                        found.append(int(number))
                except OSError:
                    pass
        return found

    def remove(self):
        for space in self.spaces.values():
            remove_space(space)
