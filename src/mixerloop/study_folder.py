"""The folder of a study, as it is written by studies and read by reports.

FOLDER/plan.json                parts, models and cells
FOLDER/data/PART                prepared data
FOLDER/PART/ARM-seedN           runs, with their results
FOLDER/PART/comparison.json     differences between the models of a part
FOLDER/prefill.json             how long prompts take
FOLDER/cells/PART/ARM-seedN/    lock, config, log and state of a cell
FOLDER/cells/PART/data/         the same of a part's data
FOLDER/report.html, report.md, figures/
"""

from pathlib import Path
from typing import Any

from mixerloop.files import read_json

PLAN = "plan.json"
DATA = "data"
COMPARISON = "comparison.json"
PREFILL = "prefill.json"
CELLS, LOG, STATE, ERROR = "cells", "log.txt", "cell.json", "error.txt"
REPORT, REPORT_TEXT, FIGURES = "report.html", "report.md", "figures"

NLL, HOPS, CORE, TRANSPORT = "nll.json", "hops.json", "core.json", "transport.json"
"""Results of a run, in its own folder."""
MEASURED = {"nll": NLL, "hops": HOPS, "core": CORE, "transport": TRANSPORT}
"""What can be measured, and where it is kept."""

PLAN_KEYS = {"title", "about", "parts", "cells", "prefill"}
PART_KEYS = {
    *("name", "match", "measure", "seeds", "data", "compute_dtype"),
    *("transport", "arms"),
}
CELL_KEYS = {"number", "name", "part", "arm", "seed", "measure"}


def record_of(folder: Path, cell: str) -> Path:
    """Where the lock, the log and the state of a cell are."""
    return folder / CELLS / cell


def read_plan(folder: Path) -> dict[str, Any]:
    """What the folder of a study says of itself."""
    path = folder / PLAN
    plan = read_json(path)
    try:
        known = (
            plan.keys() >= PLAN_KEYS
            and all(part.keys() >= PART_KEYS for part in plan["parts"])
            and all(cell.keys() >= CELL_KEYS for cell in plan["cells"])
            and all(isinstance(one["name"], str) for one in (*plan["parts"], *plan["cells"]))
            and all({*cell["measure"]} <= MEASURED.keys() for cell in plan["cells"])
        )
    except (AttributeError, TypeError):
        known = False
    if not known:
        raise ValueError(f"{path}: not a plan as this version writes it; study into another folder")
    return plan
