"""Verbs that take a moment where what they measure and draw is not the subject of a test."""

import pytest

from mixerloop.data.tasks.task import NUM_SEQUENCES
from mixerloop.laws import law_files
from mixerloop.reports import page, transport_figures
from mixerloop.reports.drawing import Drawings, Drawn

FEW = 64
"""Held-out sequences of a synthetic task, instead of 4,096."""
BLANK = Drawn(spec="{}", svg="<svg></svg>", png=b"\x89PNG")


def save_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure on few held-out sequences, and draw blank pictures."""

    def blank(figures, *, with_script=False):
        drawn = {figure.name: BLANK for figure in figures}
        return Drawings(drawn=drawn, script="" if with_script else None)

    monkeypatch.setitem(NUM_SEQUENCES, "held_out", FEW)
    for module in (page, transport_figures, law_files):
        monkeypatch.setattr(module, "draw_figures", blank)
