"""The run directory: where things lie.

    RUN/config.toml              the resolved config
    RUN/provenance.json          commit, versions, machine, operator forms, seed
    RUN/metrics.jsonl            one line per step: what the run computed
    RUN/timing.jsonl             one line per step: how fast
    RUN/tensorboard/             the same for TensorBoard
    RUN/checkpoints/step-N/      weights, config, tokenizer.model; sealed by contents.json
    RUN/results/                 a JSON file for each measure, and its details
    RUN/lock                     held by the process that is writing

The two files that grow line by line are cut back to the checkpoint a run is resumed from.
"""

import re
from pathlib import Path

from mixerloop.files import CHECKPOINTS, CONTENTS

RUNS = Path("runs")
"""Where runs and studies are made, unless the user names another place."""
CONFIG = "config.toml"
PROVENANCE = "provenance.json"
TOKENIZER = "tokenizer.model"
IMPORTED = "imported.json"
METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"
TENSORBOARD = "tensorboard"
RESULTS = "results"


def checkpoint_folder(run: Path, step: int) -> Path:
    """Where a run keeps the checkpoint of a step."""
    return run / CHECKPOINTS / f"step-{step}"


def find_checkpoint(path: Path) -> Path:
    """The checkpoint meant by a path: that folder itself, or the newest one of a run."""
    if not path.exists():
        raise ValueError(f"{path}: there is no such run")
    if (path / CONTENTS).exists():
        return path
    steps = checkpoints(path)
    if not steps:
        raise ValueError(f"{path}: neither a run with checkpoints nor a checkpoint")
    return steps[max(steps)]


def results_folder(path: Path) -> Path:
    """Where the results of a run are kept, or those of one of its checkpoints."""
    if is_checkpoint_outside_run(path):
        raise ValueError(f"{path}: a checkpoint outside a run; name a folder for its results")
    if not (path / CONTENTS).exists():
        return path / RESULTS
    here = path.resolve()
    return here.parent.parent / RESULTS / here.name


def is_checkpoint_outside_run(path: Path) -> bool:
    """Whether this is a checkpoint without a run round it."""
    return (path / CONTENTS).exists() and path.resolve().parent.name != CHECKPOINTS


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints of a run, by step."""
    return {
        int(name[1]): folder
        for folder in (run / CHECKPOINTS).glob("step-*")
        if (name := re.fullmatch(r"step-(\d+)", folder.name))
    }
