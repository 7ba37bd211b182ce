"""Many policies over the same windows, each no more work than where it differs.

A policy is the unmodified model up to its first marked step. So the unmodified residual is walked
once, and each policy leaves it where it differs; from there on, policies whose next step is the
same run as one batch. Once no token can see another any more, only the chosen positions go on.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.walk import NO_TAPS, Kept
from mixerloop.transport.policies import Policy, Step, first_difference, last_mixing

BATCH_TOKENS = 2048
"""On a CPU, where the activations of more tokens do not stay in a core's cache."""
ACCELERATOR_BATCH_TOKENS = 8192


@dataclass
class _Branch:
    """A policy on its way."""

    policy: Policy
    residual: Tensor
    kept: Kept
    """Of the pass rules."""
    is_narrow: bool = False
    """Whether only the chosen positions are left of it."""


def shared_residuals(
    model: LoopedLM,
    tokens: Int[Tensor, "windows context"],
    positions: Int[Tensor, " positions"],
    policies: Sequence[Policy],
    *,
    intact: Policy,
) -> tuple[
    Float[Tensor, "windows positions d_model"], list[Float[Tensor, "windows positions d_model"]]
]:
    """The residual before the readout, of the unmodified model and of every policy.

    The unmodified model runs by itself and at every token, so it is the model bit for bit.
    """
    leave_at = defaultdict(list)
    for number, policy in enumerate(policies):
        leave_at[first_difference(policy, intact)].append(number)
    last_mixings = [last_mixing(policy) for policy in policies]
    embedded = model.embed(tokens)
    trunk = _Branch(intact, embedded, tuple(rule.start(embedded) for rule in model.pass_rules))
    branches: dict[int, _Branch] = {}
    for at, step in enumerate(intact):
        for number in leave_at.pop(at, []):
            branches[number] = _Branch(policies[number], trunk.residual, trunk.kept)
        together = defaultdict(list)
        for number, branch in branches.items():
            if at > last_mixings[number] and not branch.is_narrow:
                _narrow(branch, positions)
            together[branch.policy[at], branch.is_narrow].append(branch)
        for (its_step, _), group in together.items():
            _advance_in_batches(model, its_step, group)
        _advance(model, step, [trunk])
    for number in leave_at.pop(len(intact), []):  # those that do not differ
        branches[number] = trunk
    assert not leave_at, "a policy never left the trunk"
    found = [
        branch.residual if branch.is_narrow else branch.residual[:, positions]
        for _, branch in sorted(branches.items())
    ]
    return trunk.residual[:, positions], found


def _narrow(branch: _Branch, positions: Tensor) -> None:
    branch.residual = branch.residual[:, positions]
    branch.kept = tuple(None if kept is None else kept[:, positions] for kept in branch.kept)
    branch.is_narrow = True


def _advance_in_batches(model: LoopedLM, step: Step, branches: list[_Branch]) -> None:
    residual = branches[0].residual
    most_tokens = BATCH_TOKENS if residual.device.type == "cpu" else ACCELERATOR_BATCH_TOKENS
    many = max(1, most_tokens // residual.shape[:2].numel())
    for at in range(0, len(branches), many):
        _advance(model, step, branches[at : at + many])


def _advance(model: LoopedLM, step: Step, branches: list[_Branch]) -> None:
    """One step for branches of one shape, as one batch."""
    occurrence, mark = step
    has_rule = any(
        rule.passes.opens(occurrence) or rule.passes.closes(occurrence) for rule in model.pass_rules
    )
    if mark == "skipped" and not has_rule:
        return
    walked = model.walk(
        torch.cat([branch.residual for branch in branches]),
        (occurrence,),
        context_off=(occurrence,) if mark == "context_off" else (),
        taps={(occurrence, "update"): torch.zeros_like} if mark == "skipped" else NO_TAPS,
        kept=tuple(_together(kept) for kept in zip(*(one.kept for one in branches), strict=True)),
    )
    num = len(branches)
    residuals = walked.residual.chunk(num)
    kept_parts = [[None] * num if kept is None else kept.chunk(num) for kept in walked.kept]
    for number, branch in enumerate(branches):
        branch.residual = residuals[number]
        branch.kept = tuple(parts[number] for parts in kept_parts)


def _together(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The tensors of all branches as one batch; a rule keeps a tensor in all of them or in none."""
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors) if tensors else None
