"""Modules that a user names in the environment, for kinds of their own on the command line."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import environment
from mixerloop.plugins import VARIABLE

TOY = Path(__file__).parents[1] / "toys" / "running_mean.py"
CONFIG = '[model]\npreset = "nano"\nmixer = "running_mean"\nd_mean = 4\n'


def describe(folder, **variables):
    """`mixerloop describe` in a process whose modules are those of a user."""
    return subprocess.run(
        [sys.executable, "-m", "mixerloop", "describe", "own.toml"],
        cwd=folder,
        env=environment(folder) | variables,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_verb_knows_the_kinds_of_a_users_module(tmp_path):
    shutil.copy(TOY, tmp_path / "my_mixer.py")
    (tmp_path / "own.toml").write_text(CONFIG)
    unknown = describe(tmp_path)
    assert unknown.returncode == 2
    assert "unknown mixer 'running_mean'" in unknown.stderr
    described = describe(tmp_path, **{VARIABLE: "my_mixer"})
    assert described.returncode == 0, described.stderr
    assert "parameters" in described.stdout


def test_a_module_that_is_not_there_is_named(tmp_path):
    done = describe(tmp_path, **{VARIABLE: "no_such_module"})
    assert done.returncode == 2
    assert f"{VARIABLE}: cannot import no_such_module" in done.stderr
