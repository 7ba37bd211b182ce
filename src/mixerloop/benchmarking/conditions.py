"""The conditions of a benchmark: the model's sizes, and the load from other programs."""

from pathlib import Path
from typing import Any

from mixerloop import machine
from mixerloop.config import PRESETS, ComputeDtype, FormChoice, ModelConfig, preset
from mixerloop.files import readable_size
from mixerloop.interop.loading import load_any
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.provenance import collect_provenance

BUSY_CORES = 0.25
"""Work of other programs, in cores, from which on times are doubtful."""


def config_of(size: str) -> ModelConfig:
    """The model of a preset, or of a run or an exported folder."""
    if size in PRESETS or not Path(size).exists():
        return preset(size)
    return load_any(Path(size), form="torch").config.model


def check_tokens_fit(config: ModelConfig, tokens: int, *, residuals: int, what: str) -> None:
    """Raise if the residuals of so many tokens need more memory than there is: a lower bound."""
    free, num_bytes = machine.free_bytes(), 4 * residuals * config.d_model * tokens
    if free is not None and num_bytes > free:
        raise ValueError(
            f"{what}: {tokens:,} tokens need {readable_size(num_bytes)} of memory at least, and "
            f"{readable_size(free)} are free"
        )


def provenance_of(
    neighbours: machine.Neighbours,
    *,
    compute_dtype: ComputeDtype,
    repeats: int,
    form: FormChoice = "auto",
    device: str = "cpu",
) -> dict[str, Any]:
    """The provenance of times that were taken since `neighbours` began to watch."""
    return collect_provenance(
        compute_dtype=compute_dtype,
        repeats=repeats,
        seed=0,
        form=choose_form(form, device),
        device=device,
        busy_cores=neighbours.busy_cores(),
    )


def busy_warning(provenance: dict[str, Any]) -> str | None:
    """A warning if other programs took more than `BUSY_CORES` during a benchmark."""
    busy = provenance["busy_cores"]
    if busy is None or busy <= BUSY_CORES:
        return None
    return f"others kept {busy:.1f} cores busy meanwhile; trust no figure"
