"""The folder of a run, which may be moved or removed while the run trains."""

from pathlib import Path

from mixerloop.files import OpenFolder
from mixerloop.messages import shell_word


class RunPlace:
    """Where a run and its newest checkpoint are; on Linux also after the run was moved."""

    def __init__(self, run: Path, newest: Path, *, is_first: bool) -> None:
        self.run, self.newest = run, newest
        self._is_first = is_first
        self._moved_from: Path | None = None
        self._folder: OpenFolder | None = None

    def open(self) -> "RunPlace":
        """Follow the folder from now on."""
        self._folder = OpenFolder(self.run)
        return self

    def close(self) -> None:
        """Follow it no more."""
        if self._folder is not None:
            self._folder.close()

    def moved(self) -> ValueError | None:
        """The error of a run that was moved; its files are then saved where it is now.

        Raises if the run is gone. Only the first rank writes files, and looks.
        """
        if self._folder is not None and self._is_first:
            self._look(self._folder)
        if self._moved_from is None:
            return None
        return ValueError(
            f"{self._moved_from} was moved to {self.run} while it was trained; all steps are saved "
            f"there; go on: mixerloop train --resume {shell_word(self.run)}"
        )

    def _look(self, folder: OpenFolder) -> None:
        place = folder.place()
        if place is None:
            lost = f"the steps after {self.newest.name} are lost"
            raise ValueError(f"{self.run} is gone; was it moved or removed? {lost}")
        if place != self.run:
            self._moved_from = self._moved_from or self.run
            self.run, self.newest = place, place / self.newest.relative_to(self.run)
