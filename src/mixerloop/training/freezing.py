"""The weights that a run trains: those that a depth runs and `train.freeze` does not name."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import notation
from mixerloop.training.depth import Depth


@dataclass(frozen=True)
class TrainedWeights:
    """Parameters by name. Others have no gradient, no optimizer state and no weight decay."""

    ever: frozenset[str]
    """Those that some step trains."""
    always: frozenset[str]
    """Those that every step trains; kinds such as experts may still leave some out."""

    @property
    def late(self) -> frozenset[str]:
        """Those that may have had no gradient yet."""
        return self.ever - self.always


def trained_weights(
    model: LoopedLM, depths: Sequence[Depth], *, freeze: Sequence[str] = ()
) -> TrainedWeights:
    """The weights that steps of these depths train.

    Raises if a pattern of `freeze` matches no parameter, and if a depth has none left to train.
    """
    frozen = set(frozen_names(model, freeze))
    of_depths = [_reached(model, depth) - frozen for depth in depths]
    trained = TrainedWeights(frozenset.union(*of_depths), frozenset.intersection(*of_depths))
    for depth, reached in zip(depths, of_depths, strict=True):
        if not reached:
            under = f" under {notation(depth.schedule)}" if len(depths) > 1 else ""
            problem = f"no parameter is left to train{under}"
            raise ValueError(f"train.freeze = {list(freeze)}: {problem}")
    return trained


def train_only(model: LoopedLM, trained: TrainedWeights) -> None:
    """Switch off the gradients of all other weights, which keep their bits."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained.ever)


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


def _reached(model: LoopedLM, depth: Depth) -> frozenset[str]:
    """The parameters that a gradient reaches through the occurrences of a depth."""
    runs = {(occurrence.layer, occurrence.sublayer) for occurrence in depth.with_grad}
    unreached = set[str]()
    for number, layer in enumerate(model.layers):
        for name, _ in layer.named_parameters():
            if (number, "mixer" if name.startswith("mixer") else "ffn") not in runs:
                unreached.add(f"layers.{number}.{name}")
    for rule_name, rule in zip(model.config.pass_rules(), model.pass_rules, strict=True):
        if not any(rule.acts(occurrence) for occurrence in depth.with_grad):
            unreached |= {f"{rule_name}.{name}" for name, _ in rule.named_parameters()}
    if not depth.embeds_with_grad and model.head is not None:
        unreached.add("embedding.weight")
    return frozenset(name for name, _ in model.named_parameters() if name not in unreached)


def _near(pattern: str, names: Sequence[str]) -> str:
    """The nearest name, or the nearest pattern for all names of a module."""
    modules = [name.split(".")[:depth] for name in names for depth in range(1, name.count(".") + 1)]
    known = dict.fromkeys([*names, *(".".join((*module, "*")) for module in modules)])
    near = difflib.get_close_matches(pattern, known, n=1)
    return f"; did you mean {near[0]}?" if near else f", such as {names[0]}"
