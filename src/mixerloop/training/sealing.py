"""The data of a session, which is hashed in the background while the run trains.

A checkpoint is written once all files are known to be as they were prepared. A checkpoint that a
signal asks for does not wait, and says so. Damage on a rank stops every rank.
"""

from pathlib import Path

from mixerloop.data.data_check import DataCheck
from mixerloop.data.prepared import Prepared
from mixerloop.training.parallel import Ranks
from mixerloop.training.signals import Signals


class SealedData:
    """The check of a session's data, over all ranks."""

    def __init__(self, prepared: Prepared, ranks: Ranks, *, began_unchecked: bool) -> None:
        self.ranks, self.began_unchecked = ranks, began_unchecked
        """Whether the newest checkpoint was written before its data was checked."""
        self.check = DataCheck(prepared.sealed_files() if ranks.is_first_of_machine else ())

    def close(self) -> None:
        """Stop the check."""
        self.check.close()

    def finish(self, received: Signals, *, newest: Path) -> OSError | ValueError | None:
        """Wait for the check; raises on every rank if a rank has damaged data.

        A file that cannot be read is returned, for the caller to raise after the work is saved. A
        signal ends the wait.
        """
        damage = unreadable = None
        try:
            self.check.finish(stopped=received.__bool__)
        except (OSError, ValueError) as error:
            if self.check.damage is None:
                unreadable = error
            else:
                damage = error
        num_damaged, num_unreadable = self.ranks.total(damage is not None, unreadable is not None)
        if num_damaged:
            raise self.unusable(damage, newest=newest)
        if num_unreadable and unreadable is None:
            unreadable = ValueError("another rank cannot read its data")
        return unreadable

    def require(self, received: Signals, *, newest: Path) -> None:
        """Wait for the check, and raise for data that is damaged or cannot be read."""
        if (unreadable := self.finish(received, newest=newest)) is not None:
            raise unreadable

    def is_complete(self) -> bool:
        """Whether all files of all ranks are known to be as they were prepared."""
        return not any(self.ranks.total(not self.check.is_complete))

    def unusable(self, damage: Exception | None, *, newest: Path) -> ValueError:
        """The error of damaged data, on whichever rank it is."""
        problem = "another rank has found damaged data" if damage is None else str(damage)
        before = ", which was written before its data was checked" if self.began_unchecked else ""
        return ValueError(f"{problem}; the last checkpoint is {newest}{before}")
