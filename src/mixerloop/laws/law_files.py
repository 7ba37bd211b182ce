"""The files of a law: law.json, and the numbers and pictures of each loop's figure."""

from pathlib import Path

from mixerloop.files import check_can_hold, json_text
from mixerloop.laws.figures import law_figures
from mixerloop.laws.law_result import LawResult
from mixerloop.ownership import Ledger
from mixerloop.reports.drawing import draw_figures
from mixerloop.reports.figure_files import figure_files, undrawn_warning

LAW = "law.json"


def write_law(result: LawResult, folder: Path | str, *, overwrite: bool = False) -> str | None:
    """Write a law and its figures into a folder.

    Returns a warning if figures could not be drawn; their numbers are written all the same.
    `overwrite` also replaces files that this program did not write.
    """
    folder = Path(folder)
    check_can_hold(folder)
    figures = law_figures(result)
    drawings = draw_figures(figures)
    files = {folder / LAW: json_text(result.to_json())}
    Ledger(folder).write({**files, **figure_files(figures, drawings, folder)}, overwrite=overwrite)
    return undrawn_warning(figures, drawings)
