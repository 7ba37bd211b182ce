"""All that is measured of one model, ready to be written."""

from dataclasses import asdict
from typing import Any

from mixerloop.config import ComputeDtype
from mixerloop.data.windows import DrawnWindows
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import notation
from mixerloop.schedule import Schedule
from mixerloop.transport.figures import summarise, summarise_removals
from mixerloop.transport.noise import noise_floor
from mixerloop.transport.removal import removal_costs
from mixerloop.transport.trajectories import Progress, measure


def transport_result(
    model: LoopedLM,
    windows: DrawnWindows,
    *,
    schedule: Schedule | None = None,
    compute_dtype: ComputeDtype = "float32",
    seed: int = 0,
    removal: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Figures with intervals, the noise floor and, if asked for, what removing things costs."""
    schedule = model.schedule if schedule is None else schedule
    found = measure(
        model, windows, schedule=schedule, compute_dtype=compute_dtype, progress=progress
    )
    noise = noise_floor(model, windows, schedule=schedule, compute_dtype=compute_dtype)
    removed = None
    if removal:
        costs = removal_costs(model, windows, schedule=schedule, compute_dtype=compute_dtype)
        removed = summarise_removals(found, costs, seed=seed)
    return {
        "schedule": notation(schedule),
        "compute_dtype": compute_dtype,
        "windows": len(windows.tokens),
        "context": windows.tokens.shape[1],
        "positions": windows.positions.tolist(),
        **summarise(found, seed=seed),
        "noise_floor": {
            name: value if isinstance(value, str | int) else value.tolist()
            for name, value in asdict(noise).items()
        },
        "removal": removed,
    }
