"""The batch scripts lie in share/sestina/slurm of an installation, where they find each other."""

import os
import pathlib
import subprocess
import tempfile
import unittest


class Installed(unittest.TestCase):
    def test_installed(self):
        with tempfile.TemporaryDirectory() as prefix:
            subprocess.run(["cmake", "--install", os.environ["BUILD"], "--prefix", prefix, "--component", "slurm"], check=True,
                           stdout=subprocess.DEVNULL)
            folder = pathlib.Path(prefix, "share/sestina/slurm")
            found = {path.name for path in folder.iterdir()}
            self.assertEqual(found, {"train.sbatch", "train_gpu.sbatch", "array.sbatch", "regression.sbatch", "chain.sh"})
            # As in a job: the program is on the PATH, its prefix holds the scripts.
            (pathlib.Path(prefix) / "bin").mkdir()
            program = pathlib.Path(prefix, "bin/sestina")
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
            bin_path = pathlib.Path(prefix, "stubs")
            bin_path.mkdir()
            for name, text in (("srun", 'while [ "$1" != sestina ]; do shift; done; exec "$@"'), ("squeue", "exit 1")):
                (bin_path / name).write_text("#!/bin/sh\n" + text + "\n")
                (bin_path / name).chmod(0o755)
            environment = {"PATH": f"{prefix}/bin:{bin_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
            done = subprocess.run(["bash", folder / "train.sbatch", "-i", "x"], env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("sestina job 7: done", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
