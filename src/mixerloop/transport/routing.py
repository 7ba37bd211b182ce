"""`measure_routing`: how many tokens change their experts from pass to pass."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mixerloop.data.windows import Draw
from mixerloop.intervals import bootstrap_ratio
from mixerloop.model.lens import Address
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.sublayer import RoutedFFN
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.ops.precision import check_finite, compute_in
from mixerloop.parsing import checked
from mixerloop.results import Estimate
from mixerloop.schedule import Schedule
from mixerloop.subject import Subject
from mixerloop.transport.measurement import Looking
from mixerloop.transport.routing_result import LayerRouting, RoutingResult
from mixerloop.transport.windows import batches_of

Routes = dict[int, list[Int[Tensor, "windows context chosen"]]]
"""The chosen experts of each layer, pass by pass."""


@checked
@torch_defaults()
def measure_routing(
    subject: Subject,
    looking: Looking | None = None,
    *,
    data: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RoutingResult:
    """Compare the experts of each token in each pass with those in the pass before, and save.

    Of `looking` the windows, their context and the draw count: every token of a window is compared.
    """
    looking = Looking() if looking is None else looking
    subject.check_can_save(RoutingResult)
    layers = repeated_layers(subject.model, subject.schedule)
    prepared = subject.open_data(data)
    draw = Draw(
        num=looking.windows,
        num_positions=looking.positions,
        seed=looking.seed,
        number=int(looking.second_draw),
    )
    windows = prepared.draw(draw, context=looking.context)
    new: dict[int, list[np.ndarray]] = defaultdict(list)
    for here, batch in batches_of(windows, subject.device):
        with compute_in(subject.compute_dtype, subject.device.type):
            routes = routes_of(subject.model, batch.tokens, subject.schedule, layers)
        for layer in layers:
            new[layer].append(num_new_experts(torch.stack(routes[layer])).cpu().numpy())
        if progress is not None:
            progress(here.stop, len(windows.tokens))
    result = RoutingResult(
        **subject.heading(),
        compute_dtype=subject.compute_dtype,
        windows=len(windows.tokens),
        context=windows.tokens.shape[1],
        layers=tuple(
            _figures(layer, ffn, np.concatenate(new[layer], axis=1), looking.seed)
            for layer, ffn in layers.items()
        ),
        provenance=subject.provenance(
            data=prepared.fingerprint, draw_seed=looking.seed, draw=int(looking.second_draw)
        ),
    )
    subject.save(result)
    return result


def repeated_layers(model: LoopedLM, schedule: Schedule) -> dict[int, RoutedFFN]:
    """The layers whose ffn chooses experts and runs more than once; raises if there is none."""
    routed = {
        number: layer.ffn
        for number, layer in enumerate(model.layers)
        if isinstance(layer.ffn, RoutedFFN)
    }
    if not routed:
        raise ValueError("no layer of this model has an ffn that chooses experts")
    repeated = {one.layer for one in schedule if one.sublayer == "ffn" and one.pass_index > 0}
    if not repeated & routed.keys():
        raise ValueError(
            "the schedule runs each ffn with experts once; name one that loops the ffn"
        )
    return {number: ffn for number, ffn in routed.items() if number in repeated}


@torch.inference_mode()
def routes_of(
    model: LoopedLM,
    tokens: Int[Tensor, "windows context"],
    schedule: Schedule,
    layers: Iterable[int],
) -> Routes:
    """The experts that the ffns of these layers choose, in each of their passes."""
    routes: Routes = defaultdict(list)

    def note(address: Address, experts: Tensor) -> None:
        routes[address.occurrence.layer].append(experts)

    lens = {f"layer{layer}.ffn.*.experts": note for layer in layers}
    walked = model.walk(model.embed(tokens), schedule, lens=lens)
    check_finite(walked.residual, what="residuals")
    return dict(routes)


def num_new_experts(
    routes: Int[Tensor, "passes windows context chosen"],
) -> Int[Tensor, "passes-1 windows context"]:
    """How many experts of a token it did not have in the pass before."""
    before, after = routes[:-1, ..., None, :], routes[1:, ..., :, None]
    return (~(before == after).any(-1)).sum(-1)


def _figures(layer: int, ffn: RoutedFFN, new: np.ndarray, seed: int) -> LayerRouting:
    def shares(counts: np.ndarray, of_each: int) -> tuple[Estimate, ...]:
        totals = np.full(counts.shape[1], of_each * counts.shape[2])
        return tuple(
            bootstrap_ratio(of_pass.sum(axis=1), totals, over="windows", seed=seed)
            for of_pass in counts
        )

    return LayerRouting(
        layer=layer,
        num_experts=ffn.num_experts,
        num_chosen=ffn.num_chosen,
        changed=shares((new > 0).astype(np.int64), 1),
        moved=shares(new, ffn.num_chosen),
        moved_by_chance=1 - ffn.num_chosen / ffn.num_experts,
    )
