"""Verbs on several ranks of this machine, as `torchrun` starts them."""

import subprocess
import sys

from command_line import environment

TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run"),
    *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
)


def torchrun(*arguments, cwd, ranks=2) -> subprocess.CompletedProcess[str]:
    """Run a verb on each rank, and expect that all succeed."""
    done = subprocess.run(
        [*TORCHRUN, "--nproc-per-node", str(ranks), "-m", "mixerloop", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment(cwd),
    )
    assert done.returncode == 0, done.stderr
    return done
