"""Figures that cannot be drawn take nothing with them."""

import base64
import json
import os
import resource
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mixerloop.reports import drawing
from mixerloop.reports.charts import _prefill_chart
from mixerloop.reports.drawing import draw_figures, png_of
from mixerloop.reports.figure import Figure, Point

ROWS: list[Point] = [
    {"size": "</text>=<b>", "batch": 1, "mixer_over_full": 2.0, "low": 1.0, "high": 3.0}
]
GOOD = Figure("good", "Good", ROWS, partial(_prefill_chart, ROWS))


def test_neither_an_error_in_one_figure_nor_a_module_in_the_users_folder_harms_the_others(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("altair", "json", "mixerloop", "vl_convert"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('run')")
    raises: Any = partial(int, "x")
    bad = Figure("bad", "Bad", ROWS, raises)
    drawings = draw_figures([bad, GOOD])
    assert drawings.drawn.keys() == {"good"}
    assert drawings.problem == "invalid literal for int() with base 10: 'x'"
    drawn = drawings.drawn["good"]
    assert drawn.svg.startswith("<svg")
    assert "&lt;/text&gt;=&lt;b&gt;" in drawn.svg
    assert drawn.png.startswith(b"\x89PNG")
    assert '"batch:O"' not in drawn.spec
    assert drawings.script is None


def process(*statements: str) -> tuple[str, ...]:
    """A drawing process that answers the first job and then goes wrong."""
    answer = [0, {"svg": "<svg/>", "png": base64.b64encode(b"PNG").decode()}, None]
    first = f"import os, signal, time; os.write(1, {(json.dumps(answer) + chr(10)).encode()!r})"
    return (sys.executable, "-c", "; ".join([first, *statements]))


def test_a_crash_leaves_what_was_drawn_before(monkeypatch):
    crash = process("os.write(1, b'[1, \"cut')", "signal.raise_signal(signal.SIGSEGV)")
    monkeypatch.setattr(drawing, "COMMAND", crash)
    drawings = draw_figures([GOOD, GOOD.renamed("other")])
    assert drawings.drawn.keys() == {"good"}
    assert drawings.drawn["good"].png == b"PNG"
    assert drawings.problem == "the drawing process was ended by SIGSEGV"


def test_a_process_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(drawing, "MOST_SECONDS", 1)
    monkeypatch.setattr(drawing, "COMMAND", process("time.sleep(60)"))
    drawings = draw_figures([GOOD])
    assert drawings.problem == "not finished after 1 seconds"
    assert drawings.drawn.keys() <= {"good"}


def test_too_little_memory_to_draw_is_a_problem_and_no_crash():
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = os.sysconf("SC_PAGE_SIZE") * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, limits[1]))
    try:
        drawings = draw_figures([GOOD])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert drawings.drawn == {}
    assert drawings.problem


def test_a_picture_is_also_drawn_as_png():
    assert png_of('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>').startswith(
        b"\x89PNG"
    )
    with pytest.raises(ValueError, match=r"cannot be drawn as PNG: .*; an \.svg file can"):
        png_of("no picture")
