"""Two nodes of two ranks: what goes over the cable between them, and what happens when it is cut or slow."""

import json
import pathlib
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))
import sestina as fault  # noqa: E402
from hub import Hub  # noqa: E402
from nodes import Nodes, SKIPPED, why_missing  # noqa: E402

MICRO = ("train.micro_batch=1",)
ENDLESS = "run.steps=1000000000"


class TwoNodes(fault.Case):
    def setUp(self):
        super().setUp()
        self.nodes = Nodes(self.work)
        self.addCleanup(self.nodes.remove)

    def start_on_nodes(self, run, *keys):
        words = self.nodes.mpirun()
        program, self.sestina = self.sestina, words[0]
        try:
            return self.start(*words[1:], program, *self.train_arguments(run, *MICRO, *keys), environment=fault.MPI_SURROUNDINGS)
        finally:
            self.sestina = program

    def train_on_nodes(self, run, *keys):
        self.finish(self.start_on_nodes(run, *keys), fault.DONE, 120)

    def bytes_of_a_step(self, run, *keys):
        """Bytes over the cable: what 40 steps more send than 10, start and end being the same."""
        sent = []
        for steps in (10, 50):
            before = self.nodes.sent()
            self.train_on_nodes(f"{run}{steps}", f"run.steps={steps}", *keys)
            sent.append(self.nodes.sent() - before)
        return (sent[1] - sent[0]) / 40

    def test_bulk_data_crosses_once(self):
        """Gradients and weights go over the cable once in two levels, as the plan counts them, and to the same bits."""
        keys = ("optimizer.kind=muon", "model.hidden_size=128", "model.intermediate_size=352")
        two = self.bytes_of_a_step("two", *keys)
        one = self.bytes_of_a_step("one", *keys, "parallel.node_size=1")
        plan = json.loads(self.run_sestina("plan", "-i", self.deck, "--json", *MICRO, *keys, "parallel.dp=4", "parallel.node_size=2"))
        bulk = sum(c["between_nodes_bytes"] for c in plan["collectives"] if c["what"] in ("gradients", "weights"))
        self.assertGreaterEqual(two, bulk)
        self.assertLess(two, 1.15 * bulk)  # headers of TCP, small sums
        self.assertGreaterEqual(one, 1.5 * bulk)  # weights twice; of gradients, what is exchanged directly
        self.train("alone", *MICRO, "run.steps=50", *keys)
        self.assertEqual(self.losses("alone"), self.losses("two50"))
        self.assertEqual(self.losses("alone"), self.losses("one50"))
        print(f"plan {bulk:.0f} bytes, two levels {two:.0f}, one level {one:.0f}")

    def ends_in_time(self, child, timeout):
        """All ranks of both nodes are gone soon after the timeout; the launcher may need longer to let the lost node go."""
        begin = time.monotonic()
        self.assertEqual(len(self.nodes.ranks()), 4)
        while self.nodes.ranks():
            self.assertLess(time.monotonic() - begin, timeout + 20)
            time.sleep(0.1)
        code, output = self.finish(child, None, 60)
        self.assertNotEqual(code, fault.DONE)
        return output

    def test_cut(self):
        child = self.start_on_nodes("run", ENDLESS, "run.abort_timeout=4")
        self.wait_for(lambda: self.steps_done("run") >= 20, child, 60)
        self.nodes.cut()
        output = self.ends_in_time(child, 4)
        self.assertIn("(run.abort_timeout): lost or hanging", output)
        self.assertRegex(output, r"waited 4 s for rank 2, 3 \(node right\)")

    def test_slow(self):
        child = self.start_on_nodes("run", ENDLESS, "run.abort_timeout=4")
        self.wait_for(lambda: self.steps_done("run") >= 20, child, 60)
        if not self.nodes.slow():
            child.kill()
            self.skipTest("this kernel cannot slow a link down (tc tbf)")
        self.assertIn("(run.abort_timeout): lost or hanging", self.ends_in_time(child, 4))


class FarNodes(unittest.TestCase):
    """The links that far_ranks.py and latency.py measure over: as slow and as far as they say, and not much more."""

    SERVE = ("import socket; s = socket.create_server(('', 5005)); c, _ = s.accept()\n"
             "while n := c.recv(1 << 20): got = got + len(n) if 'got' in dir() else len(n)\n"
             "c2, _ = s.accept(); c2.sendall(b'%d' % got); c2.close()")
    SEND = ("import socket, sys, time\n"
            "at = lambda: socket.create_connection((sys.argv[1], 5005))\n"
            "for attempt in range(100):\n"
            "  try: c = at(); break\n"
            "  except OSError: time.sleep(0.05)\n"
            "t = time.monotonic(); c.sendall(bytes(int(sys.argv[2]))); c.shutdown(1); c.close()\n"
            "answer = at().recv(100); print(int(answer), time.monotonic() - t)")

    def test_rate_and_delay(self):
        delay, rate, size = 0.02, 20e6, 8_000_000
        hub = Hub(2, delay, rate)
        self.addCleanup(hub.remove)
        server = subprocess.Popen([*hub.inside(1), sys.executable, "-c", self.SERVE])
        self.addCleanup(server.kill)
        done = subprocess.run([*hub.inside(0), sys.executable, "-c", self.SEND, hub.address(1), str(size)], capture_output=True, text=True, timeout=60)
        got, seconds = done.stdout.split()
        self.assertEqual(int(got), size)
        self.assertGreater(float(seconds), size / rate + 3 * delay)  # the way there, the second connection, its answer
        self.assertLess(float(seconds), 4 * (size / rate + 4 * delay))  # other tests run meanwhile


if __name__ == "__main__":
    reason = why_missing()
    if reason:
        print("skipped:", reason)
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
