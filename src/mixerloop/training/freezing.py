"""The weights that a run trains: those that its schedule runs and `train.freeze` does not name."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from mixerloop.model.looped_lm import LoopedLM


def choose_trained(model: LoopedLM, *, freeze: Sequence[str] = ()) -> None:
    """Switch off the gradients of weights that never run, and of those that a pattern matches.

    Weights without a gradient have no optimizer state and no weight decay, and keep their bits.
    Raises if a pattern matches no parameter, and if no parameter is left to train.
    """
    hold_what_never_runs(model)
    for name in frozen_names(model, freeze):
        model.get_parameter(name).requires_grad_(False)
    if not num_trained(model):
        raise ValueError(f"train.freeze = {list(freeze)}: no parameter is left to train")


def frozen_names(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """The names of the parameters that the patterns match, in the model's order."""
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"train.freeze: '{pattern}' matches no parameter{_near(pattern, names)}"
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def num_trained(model: nn.Module) -> int:
    """The number of values that have a gradient."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def hold_what_never_runs(model: LoopedLM) -> None:
    """Switch off the gradients of sublayers and pass rules that the schedule never runs."""
    scheduled = {(occurrence.layer, occurrence.sublayer) for occurrence in model.schedule}
    for index, layer in enumerate(model.layers):
        for name, parameter in layer.named_parameters():
            sublayer = "mixer" if name.startswith("mixer") else "ffn"
            parameter.requires_grad_((index, sublayer) in scheduled)
    for rule in model.pass_rules:
        is_used = any(rule.acts(occurrence) for occurrence in model.schedule)
        rule.requires_grad_(is_used)


def _near(pattern: str, names: Sequence[str]) -> str:
    """The nearest name, or the nearest pattern for all names of a module."""
    modules = [name.split(".")[:depth] for name in names for depth in range(1, name.count(".") + 1)]
    known = dict.fromkeys([*names, *(".".join((*module, "*")) for module in modules)])
    near = difflib.get_close_matches(pattern, known, n=1)
    return f"; did you mean {near[0]}?" if near else f", such as {names[0]}"
