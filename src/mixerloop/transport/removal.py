"""The cost of removals: the change of the NLL without a pass, without an ffn, or with both swapped.

Removals run on the same executor as the policies of transport. Transport shows whether a pass is
novel at the readout. Removal shows whether the model needs the pass: a novel pass may be useless,
and a redundant pass indispensable.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.config import ComputeDtype
from mixerloop.data.windows import DrawnWindows
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.ops.precision import check_finite, compute_in
from mixerloop.ops.workers import map_on_cores
from mixerloop.schedule import Occurrence, Schedule
from mixerloop.transport.executor import shared_residuals
from mixerloop.transport.policies import Policy, intact, skipped, swapped
from mixerloop.transport.windows import Batch, batches_of

Removal = Literal["skip", "ffn_off", "swap_order"]
"""Skip a mixer pass; skip an ffn; run an ffn before the mixer pass that precedes it."""


@dataclass(frozen=True)
class Costs:
    """The increase of the NLL by each intervention of a kind, window by window."""

    kind: Removal
    occurrences: tuple[Occurrence, ...]
    nll: Float[np.ndarray, "occurrences windows"]
    """Nats per position, minus those of the unmodified model."""


def removals(schedule: Schedule, kind: Removal) -> dict[Occurrence, Policy]:
    """Every intervention of a kind that is possible in a schedule."""
    if kind == "skip":
        return {
            occurrence: skipped(schedule, occurrence)
            for occurrence in schedule
            if occurrence.sublayer == "mixer"
        }
    if kind == "ffn_off":
        return {
            occurrence: skipped(schedule, occurrence)
            for occurrence in schedule
            if occurrence.sublayer == "ffn"
        }
    assert kind == "swap_order", kind
    follows_its_mixer = [
        occurrence
        for before, occurrence in pairwise(schedule)
        if occurrence.sublayer == "ffn"
        and before.sublayer == "mixer"
        and before.layer == occurrence.layer
    ]
    return {occurrence: swapped(schedule, occurrence) for occurrence in follows_its_mixer}


def removal_costs(
    model: LoopedLM,
    windows: DrawnWindows,
    *,
    schedule: Schedule | None = None,
    compute_dtype: ComputeDtype = "float32",
) -> dict[Removal, Costs]:
    """The cost of every intervention of every kind, from one walk of the unmodified model."""
    schedule = model.schedule if schedule is None else schedule
    chosen: dict[Removal, dict[Occurrence, Policy]] = {
        "skip": removals(schedule, "skip"),
        "ffn_off": removals(schedule, "ffn_off"),
        "swap_order": removals(schedule, "swap_order"),
    }
    policies = [policy for of_kind in chosen.values() for policy in of_kind.values()]
    nll = np.zeros((len(policies), len(windows.tokens)))
    device = model.embedding.weight.device

    def costs_of(batch: tuple[slice, Batch]) -> tuple[slice, list[np.ndarray]]:
        here, (tokens, positions, targets) = batch
        with torch.inference_mode(), compute_in(compute_dtype, device.type):
            unmodified, residuals = shared_residuals(
                model, tokens, positions, policies, intact=intact(schedule)
            )
            before = _nll(model, unmodified, targets)
            return here, [
                (_nll(model, residual, targets) - before).cpu().numpy() for residual in residuals
            ]

    for here, by_policy in map_on_cores(costs_of, batches_of(windows, device), device=device):
        check_finite(*by_policy, what="logits")
        nll[:, here] = by_policy
    costs: dict[Removal, Costs] = {}
    at = 0
    for kind, of_kind in chosen.items():
        costs[kind] = Costs(kind, tuple(of_kind), nll[at : at + len(of_kind)])
        at += len(of_kind)
    return costs


def _nll(
    model: LoopedLM,
    residual: Float[Tensor, "windows positions d_model"],
    targets: Int[Tensor, "windows positions"],
) -> Float[Tensor, " windows"]:
    log_p = model.read_out(residual).log_softmax(-1)
    return -log_p.gather(-1, targets[..., None])[..., 0].double().mean(-1)


def spearman(first: np.ndarray, second: np.ndarray) -> Float[np.ndarray, "..."]:
    """Rank correlation over the last axis; NaN if all values of an argument are equal."""
    if first.shape[-1] < 2:
        return np.full(first.shape[:-1], np.nan)
    ranks = [_ranks(values) for values in (first, second)]
    first_ranks, second_ranks = (rank - rank.mean(axis=-1, keepdims=True) for rank in ranks)
    sizes = np.sqrt((first_ranks**2).sum(axis=-1) * (second_ranks**2).sum(axis=-1))
    products = (first_ranks * second_ranks).sum(axis=-1)
    return np.divide(products, sizes, out=np.full_like(products, np.nan), where=sizes > 0)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks over the last axis; equal values share the mean of their ranks."""
    below = (values[..., None] > values[..., None, :]).sum(axis=-1)
    equal = (values[..., None] == values[..., None, :]).sum(axis=-1)
    return below + (equal - 1) / 2
