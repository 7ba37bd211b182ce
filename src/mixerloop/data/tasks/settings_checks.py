"""Checks that the settings of several tasks have in common."""

from mixerloop.data.tasks.task import TaskSettings

SMALLEST_LOG2_SEQUENCES = 40  # 10^7 training sequences then hit the 4,096 held-out ones 0.04 times
LARGEST = 2**20
"""No size of a task is larger."""


def check_sizes(task: str, settings: TaskSettings, **least: int) -> None:
    """Raise if a named field, or the seed, is not from its least value to `LARGEST`."""
    for name, smallest in (*least.items(), ("seed", 0)):
        if not smallest <= (value := getattr(settings, name)) <= LARGEST:
            raise ValueError(f"{task}.{name} must be from {smallest} to 2^20, got {value}")


def check_variety(log2_sequences: float) -> None:
    """Raise if there are so few different sequences that training repeats held-out ones."""
    if log2_sequences < SMALLEST_LOG2_SEQUENCES:
        raise ValueError("so small a puzzle repeats itself: held-out sequences would be trained on")
