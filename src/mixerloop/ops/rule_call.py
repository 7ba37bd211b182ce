"""What all forms of a rule share: inputs that fit together, and the types they are computed in."""

from collections.abc import Callable, Mapping
from functools import reduce

import torch
from torch import Tensor

from mixerloop.config import Form

TOKENS = ("query", "key", "value", "erase_key")
"""What a form that reads bfloat16 may be given in bfloat16; the rest is float32 or wider."""
READ_BFLOAT16 = ("native", "fla")


def check_tensor(name: str, given: object) -> None:
    """Reject an argument that is no tensor with a number in every place, by name."""
    if not isinstance(given, Tensor):
        raise TypeError(
            f"{name} must be a tensor, got {type(given).__name__}; torch.as_tensor makes one"
        )
    if given.layout is not torch.strided or given.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got a nested or sparse one")


def check_tensors(*, optional: Mapping[str, object], **required: object) -> None:
    """Reject arguments of an operator that are no dense tensors; an optional one may be None."""
    for name, given in (*required.items(), *optional.items()):
        if given is not None or name in required:
            check_tensor(name, given)


def run_form(
    run: Callable[..., tuple[Tensor, Tensor]], form: Form, **inputs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Check the inputs of a rule, convert their types, and run a form of the rule on them."""
    given = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    _check(given)
    key, value = given["key"], given["value"]
    wide = reduce(torch.promote_types, (tensor.dtype for tensor in given.values()), torch.float32)
    if "initial_state" not in given and form != "native":
        batch, _, heads, d_key = key.shape
        state = value.new_zeros(batch, heads, d_key, value.shape[-1], dtype=wide)
        given["initial_state"] = state
    narrow = {tensor.dtype for name, tensor in given.items() if name in TOKENS} == {torch.bfloat16}
    keeps_narrow = narrow and wide == torch.float32 and form in READ_BFLOAT16
    dtypes = {name: torch.bfloat16 if keeps_narrow and name in TOKENS else wide for name in given}
    with torch.autocast(value.device.type, enabled=False):
        converted = {name: tensor.to(dtypes[name]) for name, tensor in given.items()}
        output, final_state = run(**{name: converted.get(name) for name in inputs})
    return output.to(value.dtype), final_state


def _check(given: dict[str, Tensor]) -> None:
    """Reject tensors whose shapes or types do not fit together, by name."""
    for name, tensor in given.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
    key, value = given["key"], given["value"]
    for name, tensor in given.items():
        if tensor.device != value.device:
            raise ValueError(f"{name} is on {tensor.device}, and value on {value.device}")
    if key.ndim != 4 or value.ndim != 4:
        raise ValueError("key and value must have the shape [batch, seq, heads, width]")
    batch, seq, heads, d_key = key.shape
    if seq == 0:
        raise ValueError("the sequence is empty")
    of_head, of_channel = (batch, seq, heads), (batch, seq, heads, d_key)
    expected = {
        "query": [of_channel],
        "value": [(batch, seq, heads, value.shape[-1])],
        "log_decay": [of_head, of_channel],
        "erase_key": [of_channel],
        "write_strength": [of_head],
        "initial_state": [(batch, heads, d_key, value.shape[-1])],
    }
    for name, shapes in expected.items():
        if name in given and tuple(given[name].shape) not in shapes:
            got, wanted = tuple(given[name].shape), " or ".join(map(str, shapes))
            raise ValueError(f"{name} must have the shape {wanted} to fit key and value, got {got}")
