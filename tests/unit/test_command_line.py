"""A verb that the tests run in their own process ends as it does in one of its own."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from command_line import in_a_process, mixerloop
from mixerloop import machine, start


def surroundings():
    """All of this process that a verb is given in another form."""
    return {
        "folder": Path.cwd(),
        "variables": dict(os.environ),
        "arguments": sys.argv,
        "streams": (sys.stdout, sys.stderr),
        "descriptors": [os.fstat(number).st_ino for number in (1, 2)],
        "hook": sys.unraisablehook,
        "handlers": [signal.getsignal(number) for number in start.STOPPING],
        "threads": torch.get_num_threads(),
        "allocator": machine.keep_freed_memory,
    }


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["configs"], 0),
        (["describ"], 2),
        (["train", "--help"], 0),
    ],
)
def test_it_prints_and_exits_as_a_process_does(tmp_path, arguments, code):
    before = surroundings()
    here = mixerloop(*arguments, cwd=tmp_path, code=code)
    assert surroundings() == before
    there = in_a_process(*arguments, cwd=tmp_path, code=code)
    assert (here.stdout, here.stderr) == (there.stdout, there.stderr)
    assert here.stdout + here.stderr


def test_an_error_of_ours_is_raised_and_everything_restored(tmp_path, monkeypatch):
    def broken():
        os.chdir("/")
        os.environ["LEFT_BEHIND"] = "yes"
        torch.set_num_threads(torch.get_num_threads() + 1)
        raise RuntimeError("a bug")

    monkeypatch.setattr("mixerloop.cli.main._run", broken)
    before = surroundings()
    with pytest.raises(RuntimeError, match="a bug"):
        mixerloop("describe", "nano", cwd=tmp_path)
    assert surroundings() == before


def test_output_of_compiled_code_and_of_children_is_caught(monkeypatch):
    def loud():
        os.write(1, b"compiled\n")
        print("Python", flush=True)
        os.system("echo child >&2")

    monkeypatch.setattr("mixerloop.cli.main._run", loud)
    ended = mixerloop()
    assert (ended.stdout, ended.stderr) == ("compiled\nPython\n", "child\n")
