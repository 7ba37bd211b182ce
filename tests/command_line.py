"""The program as a user runs it: in a process, with nothing of ours in its environment."""

import os
import subprocess
import sys


def mixerloop(*arguments, cwd, code=0):
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HOME": str(cwd)}
    done = subprocess.run(
        [sys.executable, "-m", "mixerloop", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == code, done.stderr
    return done
