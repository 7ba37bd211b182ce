import pytest
import torch
from hypothesis import settings

from mixerloop import machine
from mixerloop.config import ModelConfig
from mixerloop.ops import native_library

machine.settle()
torch.set_num_threads(1)  # models this small only wait for a second thread, and so do neighbours
settings.register_profile("mixerloop", deadline=None, derandomize=True)
settings.load_profile("mixerloop")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws without a generator of its own, it draws the same each time."""
    torch.manual_seed(0)


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
