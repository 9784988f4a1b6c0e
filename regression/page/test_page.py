"""The report in a real browser: what a reader does with it (actions.js) on a page of ten runs (make_runs.py). Ends with 77,
"skipped", where no Chromium is installed. The program is named by SESTINA."""
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import make_runs

HERE = pathlib.Path(__file__).parent
BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


def report(*arguments):
    return subprocess.run([os.environ["SESTINA"], "report", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def results_of(page, folder, width):
    """Opens the page with actions.js after its own scripts and reads what that found."""
    copy = folder / f"acted_{width}.html"
    copy.write_text(page.read_text().replace("</body>", f"<script>{(HERE / 'actions.js').read_text()}</script></body>"))
    done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/profile",
                           f"--window-size={width},900", "--virtual-time-budget=5000", "--dump-dom", copy.as_uri()],
                          capture_output=True, text=True, timeout=240)
    found = re.search(r'<pre id="results">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the browser ended with {done.returncode}: {done.stderr[-2000:]}"
    return json.loads(html.unescape(found.group(1)))


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        cls.runs = make_runs.make(cls.folder / "runs")
        cls.page = cls.folder / "page.html"
        made = report(*cls.runs, "-o", cls.page)
        assert made.returncode == 0, made.stderr
        cls.seen = results_of(cls.page, cls.folder, 1400)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def test_no_script_failed_and_nothing_was_injected(self):
        self.assertNotIn("error", self.seen)
        self.assertLess(self.page.stat().st_size, 4_000_000)

    def test_every_run_has_its_line_style_in_the_one_legend(self):
        self.assertEqual((self.seen["curves"], self.seen["faint"], self.seen["legends"]), (10, 9, 1))  # 30 steps are too few to smooth
        self.assertEqual(self.seen["lineStyles"], 10)
        self.assertEqual(self.seen["dashes"], 4)

    def test_validation_is_dashed(self):
        self.assertEqual(self.seen["checks"], 9)  # one run is too short for any
        self.assertRegex(self.seen["checkDash"], r"^5px, ?4px$")

    def test_diverged_and_resumed_runs_are_marked(self):
        self.assertEqual((self.seen["crosses"], self.seen["resumes"]), (1, 1))
        text = self.page.read_text()
        self.assertEqual(text.count('<span class="badge bad">diverged</span>'), 1)
        self.assertEqual(text.count('<span class="badge">resumed</span>'), 1)

    def test_every_series_has_its_chart(self):
        for card in ("loss", "lr", "grad_norm", "bits_per_byte", "step_s", "tokens_per_s", "memory_peak_bytes", "reduce_s", "gather_s",
                     "refresh_wait_s", "preconditioner_age_max", "preconditioner_age_mean_stage", "staleness", "drift", "tensors", "updates-1", "updates-2",
                     "rotation_norm", "rotation_defect", "sigma_max", "sigma_min", "rotations-2"):
            self.assertIn(card, self.seen["cards"])
        self.assertEqual(self.seen["curvesOfStages"], 3)  # curves of one run in one card

    def test_hover_reads_out_all_runs_and_marks_all_charts(self):
        self.assertIn("step 200", self.seen["tip"])
        for word in ("0 adamw", "9 muon_high", "training", "mean", "validation"):
            self.assertIn(word, self.seen["tip"])
        self.assertGreater(self.seen["cursors"], 8)
        self.assertTrue(self.seen["tipAfter"])

    def test_dragging_zooms_all_charts_and_a_double_click_ends_it(self):
        self.assertEqual((self.seen["zoom"], self.seen["brush"]), ([100, 900], 1))
        self.assertEqual(self.seen["zoomOfOthers"], [100, 900])
        self.assertIn("zoom=", self.seen["zoomAddress"])
        self.assertIsNone(self.seen["zoomAfter"])

    def test_the_keyboard_reads_and_zooms(self):
        low, high = self.seen["keyZoom"]
        self.assertAlmostEqual(high - low, 6000, delta=10)
        self.assertTrue(self.seen["keyMoved"])
        self.assertIsNone(self.seen["keyZoomAfter"])

    def test_a_click_hides_a_run_everywhere(self):
        self.assertEqual((self.seen["hiddenCurves"], self.seen["hiddenStacks"], self.seen["shownAgain"]), (9, 9, 10))
        self.assertEqual((self.seen["hiddenRow"], self.seen["hiddenPressed"], self.seen["rangeWithout"]), (True, "false", 2000))

    def test_axes_are_logarithmic_on_demand(self):
        self.assertTrue(self.seen["logDiffers"] and self.seen["logLow"])
        self.assertAlmostEqual(self.seen["logX"], 110, delta=5)  # the middle between 1 and 12000

    def test_scales_leave_outliers_out(self):
        clipped, whole = self.seen["clipped"]
        self.assertLess(clipped, 3)
        self.assertGreater(whole, 30)

    def test_time_is_an_axis(self):
        label, last = self.seen["timeAxis"]
        self.assertIn("training time", label)
        self.assertGreater(last, 1000)

    def test_step_time_is_one_stacked_bar_per_run(self):
        self.assertEqual(self.seen["stacks"], 10)
        self.assertEqual(self.seen["stackSums"], [100] * 10)
        self.assertRegex(self.seen["stackOfFirst"], r"forward and backward 50 ms \(\d+ %\), .*optimizer 10 ms")

    def test_ten_runs_stay_readable(self):
        self.assertLess(self.seen["stackRows"], 300)  # a line for each run next to a chart of 245 pixels
        self.assertEqual(self.seen["touching"], 0)  # circles of validations

    def test_loads_stand_beside_the_plan(self):
        self.assertEqual(self.seen["loads"], [[4, 4], [8, 8], [6, 6]])

    def test_stages_have_a_bar_each_where_the_drift_is_known(self):
        self.assertEqual(self.seen["stages"], [2])

    def test_a_card_that_is_alone_is_as_large_as_others(self):
        self.assertLess(self.seen["tallest"], 300)  # that of the one run with stages would fill the page

    def test_updates_are_a_heat_map_by_layer(self):
        self.assertEqual(self.seen["updates"], [[2, 4, 4]] * 2)  # a cell over all layers for what is of none, and a layer without the tensor
        self.assertEqual(self.seen["updateTitles"], [
            "model.embed_tokens.weight, of no layer: 0.005", "model.layers.*.mlp.down_proj.weight, layer 0: 0.02",
            "model.layers.*.mlp.down_proj.weight, layer 1: 0.01", "model.layers.*.mlp.down_proj.weight, layer 3: 0.02"])
        shades = self.seen["updateShades"]
        self.assertEqual(shades[1], shades[3])
        self.assertTrue(shades[0] < shades[2] < shades[1])
        self.assertEqual(shades[1], 1)

    def test_tensors_are_chosen_and_sorted(self):
        self.assertEqual(self.seen["tensor"][0], make_runs.TENSORS[1])
        self.assertIn(make_runs.TENSORS[1], self.seen["tensor"][1])
        self.assertEqual(self.seen["tensor"][2], 3)
        self.assertEqual(self.seen["tensorSorted"], sorted(self.seen["tensorSorted"], reverse=True))

    def test_the_address_keeps_what_is_shown(self):
        self.assertIn("hide=1%2C2", self.seen["address"])
        self.assertEqual(self.seen["readBack"], [1, 2])

    def test_nothing_sticks_out_on_a_narrow_screen(self):
        narrow = results_of(self.page, self.folder, 500)
        self.assertNotIn("error", narrow)
        self.assertEqual((narrow["wide"], self.seen["wide"]), (0, 0))
        self.assertLessEqual(narrow["width"], 500)


if __name__ == "__main__":
    if BROWSER is None:
        print("skipped: no Chromium is installed (apt-get install chromium)")
        sys.exit(77)
    unittest.main()
