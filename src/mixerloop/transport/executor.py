"""Run many policies over the same windows, and share the steps they have in common.

A policy equals the unmodified model up to its first marked step. The unmodified model (the trunk)
therefore runs once, and each policy branches off at its first difference. From there on, policies
with the same next step run as one batch. After the last step at which a token can see another, a
branch runs the chosen positions only.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.model.lens import Address, Lens
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.walk import Kept
from mixerloop.transport.policies import Policy, Step, first_difference, last_mixing

BATCH_TOKENS = 2048
"""The limit on a CPU; the activations of more tokens do not fit in a core's cache."""
ACCELERATOR_BATCH_TOKENS = 8192


def _nothing(address: Address, update: Tensor) -> Tensor:
    return torch.zeros_like(update)


SKIPPED: Lens = {"*.update": _nothing}
"""A skipped occurrence adds nothing; pass rules still act."""


@dataclass
class _Branch:
    """The current residual of a policy."""

    policy: Policy
    residual: Tensor
    kept: Kept
    """The tensors that pass rules keep between passes."""
    is_narrow: bool = False
    """Whether the residual holds the chosen positions only."""


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

    The unmodified model runs separately and at every token, so that its residual equals that of
    the model's own forward bit for bit.
    """
    leave_at = defaultdict(list)
    for number, policy in enumerate(policies):
        leave_at[first_difference(policy, intact)].append(number)
    last_mixings = [last_mixing(policy, model.mixes_tokens) for policy in policies]
    embedded = model.embed(tokens)
    trunk = _Branch(intact, embedded, tuple(rule.start(embedded) for rule in model.pass_rules))
    branches: dict[int, _Branch] = {}
    for at, step in enumerate(intact):
        for number in leave_at.pop(at, []):
            branches[number] = _Branch(policies[number], trunk.residual, trunk.kept)
        groups = defaultdict(list)
        for number, branch in branches.items():
            if at > last_mixings[number] and not branch.is_narrow:
                _narrow(branch, positions)
            groups[branch.policy[at], branch.is_narrow].append(branch)
        for (group_step, _), group in groups.items():
            _advance_in_batches(model, group_step, group)
        _advance(model, step, [trunk])
    for number in leave_at.pop(len(intact), []):  # policies without a difference
        branches[number] = trunk
    assert not leave_at, "a policy never left the trunk"
    residuals = [
        branch.residual if branch.is_narrow else branch.residual[:, positions]
        for _, branch in sorted(branches.items())
    ]
    return trunk.residual[:, positions], residuals


def _narrow(branch: _Branch, positions: Tensor) -> None:
    branch.residual = branch.residual[:, positions]
    branch.kept = tuple(None if kept is None else kept[:, positions] for kept in branch.kept)
    branch.is_narrow = True


def _advance_in_batches(model: LoopedLM, step: Step, branches: list[_Branch]) -> None:
    residual = branches[0].residual
    most_tokens = BATCH_TOKENS if residual.device.type == "cpu" else ACCELERATOR_BATCH_TOKENS
    at_once = max(1, most_tokens // residual.shape[:2].numel())
    for start in range(0, len(branches), at_once):
        _advance(model, step, branches[start : start + at_once])


def _advance(model: LoopedLM, step: Step, branches: list[_Branch]) -> None:
    """Run one step of branches of equal shape as one batch."""
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
        lens=SKIPPED if mark == "skipped" else None,
        kept=tuple(
            _concatenated(parts)
            for parts in zip(*(branch.kept for branch in branches), strict=True)
        ),
    )
    num = len(branches)
    residuals = walked.residual.chunk(num)
    kept_parts = [[None] * num if kept is None else kept.chunk(num) for kept in walked.kept]
    for number, branch in enumerate(branches):
        branch.residual = residuals[number]
        branch.kept = tuple(parts[number] for parts in kept_parts)


def _concatenated(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate a rule's tensors; the rule keeps a tensor in all branches or in none."""
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors) if tensors else None
