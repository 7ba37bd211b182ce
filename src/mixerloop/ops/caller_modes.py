"""The modes of torch that a caller is in, such as autocast, change no number of a public function.

A public function that computes is decorated with `torch_defaults()`. The modes of a thread are left
inside it and entered again behind it. The default type belongs to the whole process: it is float32
until the last function has returned.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock

import torch

_lock = Lock()
_inside: list[torch.dtype] = []
"""The caller's default type, once for each function that runs now."""


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Compute with the defaults of a new process: gradients on, no autocast, float32, the CPU."""
    with (
        torch.inference_mode(False),  # which also switches gradients on
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        _on_cpu(),
        _float32(),
    ):
        yield


def _on_cpu() -> AbstractContextManager[object]:
    """New tensors are on the CPU; nothing is entered for a caller to whom that is so."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


@contextmanager
def _float32() -> Iterator[None]:
    with _lock:
        _inside.append(_inside[0] if _inside else torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        with _lock:
            callers = _inside.pop()
            if not _inside:
                torch.set_default_dtype(callers)
