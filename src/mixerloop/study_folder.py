"""The folder of a study, as it is written by studies and read by reports.

FOLDER/plan.json                parts, models and cells
FOLDER/data/PART                prepared data
FOLDER/PART/ARM-seedN           runs, with their results
FOLDER/PART/comparison.json     differences between the models of a part
FOLDER/prefill.json             how long prompts take
FOLDER/cells/NAME/              lock, config, log and state of a cell
FOLDER/report.html, report.md, figures/
"""

from pathlib import Path

PLAN = "plan.json"
DATA = "data"
COMPARISON = "comparison.json"
PREFILL = "prefill.json"
CELLS, LOG, STATE, ERROR = "cells", "log.txt", "cell.json", "error.txt"
REPORT, REPORT_TEXT, FIGURES = "report.html", "report.md", "figures"

NLL, HOPS, CORE, TRANSPORT = "nll.json", "hops.json", "core.json", "transport.json"
"""Results of a run, in its own folder."""


def record_of(folder: Path, cell: str) -> Path:
    """Where the lock, the log and the state of a cell are."""
    return folder / CELLS / cell.replace("/", "-")
