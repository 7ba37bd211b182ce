import os

from mixerloop import machine

machine.settle()  # before torch is loaded

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

from mixerloop.cli import main  # noqa: E402
from mixerloop.config import ModelConfig  # noqa: E402
from mixerloop.ops import native_library  # noqa: E402

torch.set_num_threads(1 if os.environ.get("PYTEST_XDIST_WORKER") else torch.get_num_threads())
settings.register_profile("mixerloop", deadline=None, derandomize=True)
settings.load_profile("mixerloop")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws without a generator of its own, it draws the same each time."""
    torch.manual_seed(0)


@pytest.fixture
def refusal(monkeypatch):
    """What a command is refused with, without a process of its own for it."""

    def refuse(*arguments, cwd) -> str:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr("sys.argv", ["mixerloop", *map(str, arguments)])
        monkeypatch.setattr(machine, "keep_freed_memory", lambda: None)
        with pytest.raises(ValueError, match=r"\w") as caught:
            main._run()
        return str(caught.value)

    return refuse


@pytest.fixture
def tiny() -> ModelConfig:
    """Small enough to run in milliseconds, with sizes that are all different."""
    return ModelConfig(num_layers=3, d_model=20, num_heads=2, d_head=8, d_ffn=28, vocab_size=50)


def sets_here() -> tuple[str, ...]:
    """The instruction sets the compiled kernels can run with on this machine."""
    loaded = native_library.library()
    return (
        () if loaded is None else native_library.INSTRUCTION_SETS[: loaded.mixerloop_best_set() + 1]
    )


@pytest.fixture(params=sets_here())
def instruction_set(request, monkeypatch) -> str:
    """Run a test with each of them; without a compiled kernel it is skipped."""
    monkeypatch.setenv(native_library.SET_VARIABLE, request.param)
    return request.param
