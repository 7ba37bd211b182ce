"""Progress: a bar that fits the terminal, or lines without control characters in a log."""

import io
import os
import pty
import struct
import subprocess
import sys
from fcntl import ioctl
from termios import TIOCSWINSZ
from types import SimpleNamespace

import pytest

from command_line import environment
from mixerloop import progress_line
from mixerloop.progress_line import ProgressLine, counting, end_open_line, preparing_progress

PARTS = ("step 40/100", "loss 2.0122", "held-out 2.1", "11,028 tokens/s", "0:17 left")
WORK = """
from mixerloop.program import run_program
from mixerloop.progress_line import ProgressLine
def work():
    ProgressLine().show("step 40/100", "loss 2.0", "0:17 left", share=0.4)
    raise ValueError("the file is damaged")
run_program(work)
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [1000.0]
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(progress_line, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setenv("TERM", "xterm")
    yield stream
    end_open_line()


@pytest.fixture
def log(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(progress_line, "sys", SimpleNamespace(stderr=stream))
    return stream


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (100, "━━━━━━━━──────────── " + " 40%  " + "  ".join(PARTS)),
        (72, "━━━━━━━━────────────  40%  step 40/100  loss 2.0122  0:17 left"),
        (40, "━━━─────  40%  step 40/100  0:17 left"),
        (36, " 40%  step 40/100  0:17 left"),
        (20, " 40%  step 40/10..."),
    ],
)
def test_a_line_fits_the_terminal(terminal, monkeypatch, columns, line):
    monkeypatch.setattr(progress_line, "_columns", lambda: columns)
    ProgressLine().show(*PARTS, share=0.4)
    assert terminal.getvalue() == f"\r{line}\033[K"
    assert len(line) < columns


def test_a_terminal_is_redrawn_ten_times_a_second_at_most(terminal, clock):
    line = ProgressLine()
    for step in range(100):
        line.show(f"step {step}")
        clock[0] += 0.01
    assert 9 <= terminal.getvalue().count("\r") <= 11


def test_a_line_that_stays_erases_the_bar(terminal):
    line = ProgressLine()
    line.show("step 1")
    line.say("saved")
    assert terminal.getvalue().endswith("\r\033[Ksaved\n")
    line.close()
    assert terminal.getvalue().endswith("saved\n")


def test_a_dumb_terminal_gets_a_log(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    ProgressLine().show(*PARTS, share=0.4)
    assert terminal.getvalue() == "  ".join(PARTS) + "\n"


def test_a_log_has_a_line_now_and_then_without_control_characters(log, clock):
    count = counting(ProgressLine(), "tokens")
    for done in range(0, 601, 10):
        count("all passes", done, 600)
        clock[0] += 1
    lines = log.getvalue().splitlines()
    assert lines == [
        "all passes: 0 of 600 tokens",
        "all passes: 300 of 600 tokens  10 tokens/s  0:30 left",
        "all passes: 600 of 600 tokens  10 tokens/s  0:00 left",
    ]
    assert all(line.isprintable() for line in lines)


def test_a_log_names_each_kind_of_preparation_at_once(log, clock):
    progress = preparing_progress()
    progress("training a tokenizer", 0, 1)
    progress("training a tokenizer", 1, 1)
    for done in range(5):
        progress("tokenising", done, 4)
        clock[0] += 20
    assert log.getvalue().splitlines() == [
        "training a tokenizer",
        "tokenising",
        "tokenising: 2 of 4 parts  0.05 parts/s  0:40 left",
        "tokenising: 4 of 4 parts  0.05 parts/s  0:00 left",
    ]


def test_an_error_starts_on_a_line_of_its_own():
    outer, inner = pty.openpty()
    ioctl(inner, TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    done = subprocess.run(
        [sys.executable, "-c", WORK], stderr=inner, env={**environment("."), "TERM": "xterm"}
    )
    os.close(inner)
    said = os.read(outer, 10_000).decode()
    os.close(outer)
    assert done.returncode == 2
    bar, error = said.splitlines()[-2:]
    assert "━━━─────  40%  step 40/100  0:17 left" in bar
    assert error == "mixerloop: the file is damaged"
