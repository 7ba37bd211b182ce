"""`record`: the activations of a subject at chosen addresses, as arrays with named axes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mixerloop.model.lens import Address, Axes, matching
from mixerloop.model.looped_lm import LoopedLM, in_form
from mixerloop.notation import notation
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.ops.precision import compute_in
from mixerloop.parsing import checked
from mixerloop.results import Provenance
from mixerloop.schedule import Schedule
from mixerloop.subject import Subject

SLICE_TOKENS = 2048
"""The most tokens of a walk, except in a longer window."""


@dataclass(frozen=True, eq=False, repr=False)
class NamedArray:
    """An array whose axes have names; the first is `window`."""

    values: np.ndarray
    axes: Axes

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by its name."""
        return dict(zip(self.axes, self.values.shape, strict=True))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        sizes = [f"{axis} {size}" for axis, size in self.sizes.items()]
        return ", ".join([*sizes, str(self.values.dtype)])


@dataclass(frozen=True, eq=False, repr=False)
class Recording(Mapping[str, NamedArray]):
    """Arrays by the text of their address, in order of execution."""

    arrays: dict[str, NamedArray]
    schedule: str
    """The schedule that was run, in notation; occurrences after the last address were left out."""
    provenance: Provenance
    """With the forms that ran: those of the subject, or torch."""

    def __getitem__(self, address: str) -> NamedArray:
        return self.arrays[address]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __repr__(self) -> str:
        return "\n".join(f"{address}: {array}" for address, array in self.items())


@checked
@torch_defaults()
def record(
    subject: Subject,
    tokens: str | np.ndarray | Tensor | Sequence[Sequence[int]],
    patterns: str | Sequence[str],
    *,
    reduce: Callable[[Tensor], Tensor] | None = None,
) -> Recording:
    """Record the activations whose addresses match patterns, such as `layer*.mixer.*.update`.

    `tokens` are ids [window, token], or a text, which is one window. A few windows run at a time,
    so that only the arrays that are returned grow with the windows. `reduce` makes less of an
    activation of some windows before it is stored: any tensor with the same windows. Axes keep
    their names if there are as many; otherwise those after `window` are `axis1`, `axis2`, ...

    If the patterns match more addresses in form torch than in the form of the subject, whose
    kernels may hide what is inside a sublayer, the model runs in form torch.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not patterns:
        raise ValueError("patterns: name an address, such as layer0.mixer.pass0.update")
    ids = _ids(subject, tokens)
    model, schedule = _opened(subject, patterns)
    arrays: dict[str, NamedArray] = {}

    def keep(address: Address, activation: Tensor) -> None:
        axes = model.points(address.occurrence)[address.point]
        if reduce is not None:
            activation, axes = _reduced(reduce, activation, axes, address)
        values, name = _as_numpy(activation), str(address)
        if name not in arrays:
            whole = np.empty((len(ids), *values.shape[1:]), values.dtype)
            arrays[name] = NamedArray(whole, axes)
        arrays[name].values[here] = values

    at_once = max(1, SLICE_TOKENS // ids.shape[1])
    for start in range(0, len(ids), at_once):
        here = slice(start, start + at_once)
        part = torch.from_numpy(ids[here]).to(subject.device)
        with torch.inference_mode(), compute_in(subject.compute_dtype, subject.device.type):
            model.walk(model.embed(part), schedule, lens=dict.fromkeys(patterns, keep))
    return Recording(
        arrays,
        schedule=notation(subject.schedule),
        provenance=replace(subject, model=model).provenance(),
    )


def _ids(
    subject: Subject, tokens: str | np.ndarray | Tensor | Sequence[Sequence[int]]
) -> Int[np.ndarray, "window token"]:
    if isinstance(tokens, str):
        tokens = [subject.tokenizer().encode(tokens)]
    try:
        ids = tokens.cpu().numpy() if isinstance(tokens, Tensor) else np.asarray(tokens)
    except ValueError:
        raise ValueError("tokens must be windows of equal length") from None
    if ids.dtype == np.uint64 and ids.size and ids.max() > np.iinfo(np.int64).max:
        raise ValueError(f"tokens: {ids.max()} is no token id")
    if ids.ndim != 2 or ids.size == 0 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"tokens must be whole numbers [window, token], got {ids.dtype} of {ids.shape}"
        )
    return ids.astype(np.int64)


def _opened(subject: Subject, patterns: Sequence[str]) -> tuple[LoopedLM, Schedule]:
    """A model that has every address that patterns match, and the schedule up to the last."""
    model, schedule = subject.model, subject.schedule
    in_torch = in_form(model, "torch")
    known = in_torch.addresses(schedule)
    matched = {address for pattern in patterns for address in matching(pattern, known)}
    last = max(schedule.index(address.occurrence) for address in matched)
    has_all = matched <= set(model.addresses(schedule))
    return model if has_all else in_torch, schedule[: last + 1]


def _reduced(
    reduce: Callable[[Tensor], Tensor], activation: Tensor, axes: Axes, address: Address
) -> tuple[Tensor, Axes]:
    """What `reduce` returns, and the names of its axes."""
    reduced = reduce(activation.clone())
    if not isinstance(reduced, Tensor) or reduced.shape[:1] != activation.shape[:1]:
        raise ValueError(
            f"reduce: {address} must stay a tensor whose first axis is {len(activation)} windows"
        )
    if reduced.ndim != activation.ndim:
        axes = (axes[0], *(f"axis{number}" for number in range(1, reduced.ndim)))
    return reduced, axes


def _as_numpy(x: Tensor) -> np.ndarray:
    """In float32 if the tensor is bfloat16, which numpy does not have."""
    return (x.float() if x.dtype == torch.bfloat16 else x).cpu().numpy()
