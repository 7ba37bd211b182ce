"""Run the compiled kernels with one instruction set or another."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mixerloop.ops import native_library


def sets_here() -> tuple[str, ...]:
    """The instruction sets of this machine; portable code runs everywhere."""
    loaded = native_library.library()
    assert loaded is not None
    return native_library.INSTRUCTION_SETS[: loaded.mixerloop_best_set() + 1]


@contextmanager
def running_with(instruction_set: str) -> Iterator[None]:
    """Inside the block the kernels use this instruction set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native_library.SET_VARIABLE, instruction_set)
        native_library.reread_instruction_set()
        yield
    native_library.reread_instruction_set()
