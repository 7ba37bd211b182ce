"""Our operator behind the Gated DeltaNet, Kimi delta attention and Mamba2 of `transformers`.

    from mixerloop.interop import transformers_kernels

    with transformers_kernels.install():
        model(tokens, labels=tokens).loss.backward()

`install` replaces functions of `transformers` in this process until `uninstall` is called or the
`with` block ends. Blocks may be nested; the last `uninstall` restores the functions. A layer looks
its function up at every call, so models that were made before are included. A function that was
imported by name (`from ... import torch_chunk_gated_delta_rule`) stays the original. A backward
that recomputes activations (gradient checkpointing) belongs inside the block, too.

Whatever runs on another device, and whatever `transformers_functions.py` does not cover, runs as
before. The single-token update of Mamba2 stays that of `transformers`: it changes its state in
place, and our operator would have to copy the state.
"""

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, Self

from mixerloop.interop import transformers_functions

KNOWN_VERSIONS = "5.22"
"""The versions of `transformers` that the functions were compared with."""

GATED_DELTA_NET = ("olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen4_exp")
KIMI_DELTA_ATTENTION = ("bailing_hybrid", "glm5_next", "kimi_linear")
MAMBA2 = ("bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2")
MODELS = {
    "torch_chunk_gated_delta_rule": GATED_DELTA_NET,
    "torch_recurrent_gated_delta_rule": GATED_DELTA_NET,
    "chunk_kimi_delta_attention": KIMI_DELTA_ATTENTION,
    "recurrent_kimi_delta_attention": KIMI_DELTA_ATTENTION,
    "mamba2_chunk_scan": MAMBA2,
}
"""The models of `transformers` that have a copy of each function."""


class _Replaced(NamedTuple):
    module: ModuleType
    name: str
    original: Callable[..., Any]
    replacement: Callable[..., Any]


_replaced: list[_Replaced] = []
_depth = 0


class Installed:
    """Returned by `install`; calls `uninstall` at the end of a `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        uninstall()


def install() -> Installed:
    """Use our operator in `transformers` on CPUs; raises and changes nothing for other versions."""
    global _depth
    if _depth == 0:
        found = [
            _find(model=model, name=name) for name, models in MODELS.items() for model in models
        ]
        for replaced in found:
            setattr(replaced.module, replaced.name, replaced.replacement)
        _replaced.extend(found)
    _depth += 1
    return Installed()


def uninstall() -> None:
    """Undo one `install`; the last one puts the functions of `transformers` back."""
    global _depth
    if _depth == 0:
        raise ValueError("transformers_kernels: uninstall was called more often than install")
    _depth -= 1
    if _depth > 0:
        return
    for replaced in _replaced:
        # Another package may have replaced the function since; keep its version.
        if getattr(replaced.module, replaced.name, None) is replaced.replacement:
            setattr(replaced.module, replaced.name, replaced.original)
    _replaced.clear()


def _find(*, model: str, name: str) -> _Replaced:
    """A function of `transformers` whose parameters we know, and its replacement."""
    module = _module_of(model)
    original = getattr(module, name, None)
    ours = getattr(transformers_functions, name)
    if original is None:
        raise _unknown(f"{model} has no {name}")
    theirs, known = _parameters(original), _parameters(ours)
    if theirs != known:
        new = [text for text in theirs if text not in known]
        gone = [text for text in known if text not in theirs]
        difference = [
            *([f"it has {', '.join(new)}"] if new else []),
            *([f"it lacks {', '.join(gone)}"] if gone else []),
        ]
        in_words = " and ".join(difference) or "they have another order"
        raise _unknown(f"{model}.{name} has other parameters: {in_words}")
    return _Replaced(module, name, original, _replacement(original, ours))


def _module_of(model: str) -> ModuleType:
    try:
        with warnings.catch_warnings():  # transformers may import fla, which warns without a GPU
            warnings.simplefilter("ignore")
            importlib.import_module("transformers")
            return importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    except ModuleNotFoundError as error:
        if error.name == "transformers":
            raise ValueError(
                "mixerloop.interop.transformers_kernels needs transformers: "
                "pip install 'mixerloop[hf]'"
            ) from None
        raise _unknown(f"there is no module {error.name}") from None


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Names, kinds and defaults, without annotations: `query`, `chunk_size=64`, `**kwargs`."""
    signature = inspect.signature(function)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return [str(parameter) for parameter in plain]


def _unknown(what: str) -> ValueError:
    from transformers import __version__

    return ValueError(
        f"transformers_kernels knows transformers {KNOWN_VERSIONS}, not {__version__}: {what}"
    )


def _replacement(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Our function, and the original for calls that ours does not cover."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        result = ours(*args, **kwargs) if _depth > 0 else None
        return original(*args, **kwargs) if result is None else result

    return replacement
