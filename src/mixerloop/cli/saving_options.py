"""The options of verbs that save results, and may replace files."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mixerloop.cli.subject_options import Measuring, Opening

if TYPE_CHECKING:
    from mixerloop.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Saving(Measuring):
    """The options of every verb that saves a result."""

    overwrite: bool = False
    """Replace files that mixerloop did not write, or that were changed since."""

    def open_run(self, run: Path) -> "Subject":
        """Load the model of a run, or of one of its checkpoints."""
        return replace(super().open_run(run), overwrite=self.overwrite)


@dataclass(frozen=True, kw_only=True)
class Evaluating(Saving, Opening):
    """The options of every verb that measures a run and saves the result."""
