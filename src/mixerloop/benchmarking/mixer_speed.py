"""Training steps of each mixer over those of Gated DeltaNet, in one run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from mixerloop.benchmarking import llama_peer
from mixerloop.benchmarking.measure import Quartiles, interleaved
from mixerloop.benchmarking.mixer_shapes import BASE, with_mixer
from mixerloop.benchmarking.training_steps import (
    CLIP_NORM,
    PEAK_LR,
    WEIGHT_DECAY,
    check_gradients,
    made_windows,
    training_step,
)
from mixerloop.config import ComputeDtype, FormChoice, ModelConfig
from mixerloop.model.initialization import fresh_model
from mixerloop.schedule import no_loop

PEER = "attention in transformers"


@dataclass(frozen=True, kw_only=True)
class MixerCase:
    """A training step of a model whose layers all have one kind of mixer."""

    mixer: str
    loop: str
    parameters: int
    step_milliseconds: Quartiles
    over_gated_delta_net: Quartiles
    over_transformers: Quartiles | None
    """Attention without a loop over the same model in `transformers`, if that is installed."""


def measure_mixers(
    config: ModelConfig,
    loop: str,
    mixers: Sequence[str],
    *,
    batch: int,
    length: int,
    compute_dtype: ComputeDtype,
    repeats: int,
    form: FormChoice = "auto",
) -> list[MixerCase]:
    """Check the gradients of each mixer against the torch form, then time their steps in turn."""
    configs = {
        kind: replace(with_mixer(config, kind), schedule=loop)
        for kind in dict.fromkeys((BASE, *mixers))
    }
    steps: dict[str, Callable[[], None]] = {}
    parameters = {}
    for kind, of_kind in configs.items():
        check_gradients(of_kind, compute_dtype, form)
        model = fresh_model(of_kind, seed=0, form=form)
        parameters[kind] = sum(one.numel() for one in model.parameters())
        if _has_peer(kind, of_kind):
            windows = made_windows(config.vocab_size, batch, length)
            steps[PEER] = llama_peer.llama_step(
                model,
                torch.from_numpy(windows.inputs),
                torch.from_numpy(windows.labels),
                compute_dtype=compute_dtype,
                clip_norm=CLIP_NORM,
                peak_lr=PEAK_LR,
                weight_decay=WEIGHT_DECAY,
            )
        steps[kind] = training_step(model, batch, length, compute_dtype)
    times = interleaved(steps, warmup=1, repeats=repeats)
    return [
        MixerCase(
            mixer=kind,
            loop=loop,
            parameters=parameters[kind],
            step_milliseconds=times[kind].milliseconds,
            over_gated_delta_net=times[kind].over(times[BASE]),
            over_transformers=times[kind].over(times[PEER])
            if _has_peer(kind, configs[kind])
            else None,
        )
        for kind in configs
    ]


def _has_peer(kind: str, config: ModelConfig) -> bool:
    plain = config.occurrences() == no_loop(config.num_layers) and config.ffn == ("swiglu",)
    return kind == "attention" and plain and llama_peer.is_installed()
