"""What may change between two sessions of one run, and what may not."""

from mixerloop import config as configs
from mixerloop.config import RunConfig


def check_same_run(old: RunConfig, new: RunConfig, *, where: str) -> None:
    """Refuse a config under which the run would compute something else, and name the key."""
    for key, (before, after) in configs.differences(old, new).items():
        if key not in configs.MAY_CHANGE:
            raise ValueError(
                f"{where}: {key} was {_said(before)} and would be {_said(after)}; it decides what "
                "is computed, so start a new run to change it"
            )


def _said(value: object) -> str:
    return "not set" if value is None else str(value)
