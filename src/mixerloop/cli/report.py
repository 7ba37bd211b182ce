"""`mixerloop report`: a page from the results of a study, or of runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mixerloop.files import json_text
from mixerloop.messages import printable
from mixerloop.progress_line import to_stderr

HELP = """Write one self-contained page, report.md beside it and a folder of figures.

Only result files are read, so a report can be made again anywhere. Files that mixerloop did not
write are replaced only with --overwrite.

examples:
  mixerloop report runs/quick
  mixerloop report runs/quick runs/text-small --out all.html
  mixerloop report runs/mixer_loop runs/full_loop --out both.html
"""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The options of `mixerloop report`."""

    paths: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of studies, names of studies in runs/, or runs with results."""
    out: Path | None = None
    """The page to write; by default report.html in the study's folder."""
    overwrite: bool = False
    """Replace files that mixerloop did not write, or that were changed since."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Write the report and print its findings, or JSON."""
        from mixerloop.studies.reporting import make_report

        report = make_report(self.paths, self.out, overwrite=self.overwrite)
        if report.warning is not None:
            to_stderr(f"{report.warning}\n")
        if self.json:
            print(json_text(report.to_json()), end="")
            return
        print(*map(printable, report.findings), f"report: {report.page}", sep="\n")
