"""The run directory and the paths of its files.

    RUN/config.toml              the resolved config
    RUN/provenance.json          commit, versions, machine, operator forms, seed
    RUN/metrics.jsonl            one line per step: computed values, such as the loss
    RUN/timing.jsonl             one line per step: speed
    RUN/tensorboard/             the same values for TensorBoard
    RUN/checkpoints/step-N/      weights, config, tokenizer or task, the history until step N, and
                                 parent.json if the run began with a parent's weights; sealed by
                                 contents.json
    RUN/results/                 a JSON file for each measure, and its details
    RUN/lock                     locked by the process that writes to the run

A resumed run first removes the lines of both .jsonl files after the checkpoint it starts from.
"""

import re
from pathlib import Path
from typing import Any

from mixerloop.files import CHECKPOINTS, CONTENTS, is_checkpoint_name, is_there, read_sealed

RUNS = Path("runs")
"""The default folder for new runs and studies."""
MANIFEST = "manifest.json"
"""The file of prepared data that no run has."""
CONFIG = "config.toml"
PROVENANCE = "provenance.json"
SENTENCEPIECE_MODEL = "tokenizer.model"
TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
"""Beside a tokenizer.json: its start token and its end token."""
TOKENIZERS = (SENTENCEPIECE_MODEL, TOKENIZER_JSON)
"""The names that the tokenizer of a folder can have."""
TRANSFORMERS_CONFIG = "config.json"
"""The config of a model in a folder of `transformers`."""
IMPORTED, IMPORTED_TENSORS = "imported.json", "imported.safetensors"
"""The config of the folder that weights came from, and its tensors that our model does not have."""
METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"
TENSORBOARD = "tensorboard"
RESULTS = "results"


def read_provenance(run: Path) -> dict[str, Any]:
    """The provenance of a run, checked against its seal; version 0.1.0 wrote none."""
    return read_sealed(run / PROVENANCE, may_lack_seal=_is_of_first_version)


def tokenizer_file(folder: Path) -> Path | None:
    """The tokenizer of prepared data, a checkpoint or a folder of `transformers`, if it has one.

    A folder of `transformers` may hold a SentencePiece model and its conversion; the model counts.
    """
    files = [folder / name for name in TOKENIZERS if is_there(folder / name)]
    if len(files) > 1 and not is_there(folder / TRANSFORMERS_CONFIG):
        raise ValueError(
            f"{folder}: has two tokenizers, {' and '.join(TOKENIZERS)}; remove the wrong file"
        )
    return files[0] if files else None


def _is_of_first_version(provenance: dict[str, Any]) -> bool:
    versions = provenance.get("versions")
    return isinstance(versions, dict) and versions.get("mixerloop") == "0.1.0"


def checkpoint_folder(run: Path, step: int) -> Path:
    """The folder of the checkpoint of a step, whether it exists or not."""
    return run / CHECKPOINTS / f"step-{step}"


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a path names: a checkpoint itself, or the newest checkpoint of a run."""
    if not path.exists():
        raise ValueError(f"{path}: there is no such run")
    if is_there(path / MANIFEST):
        raise ValueError(f"{path}: prepared data, and not a run")
    if is_there(path / CONTENTS):
        return path
    if is_checkpoint_name(path):
        raise ValueError(f"{path / CONTENTS}: missing; this checkpoint is damaged")
    steps = checkpoints(path)
    if not steps:
        raise ValueError(f"{path}: neither a run with checkpoints nor a checkpoint")
    newest = steps[max(steps)]
    if not is_there(newest / CONTENTS):
        raise ValueError(f"{newest / CONTENTS}: missing; this checkpoint is damaged")
    return newest


def results_folder(path: Path) -> Path:
    """The folder for the results of a run, or of a checkpoint inside a run."""
    if is_checkpoint_outside_run(path):
        raise ValueError(f"{path}: a checkpoint outside a run; name a folder for its results")
    if not is_there(path / CONTENTS):
        return path / RESULTS
    checkpoint = path.resolve()
    return checkpoint.parent.parent / RESULTS / checkpoint.name


def is_checkpoint_outside_run(path: Path) -> bool:
    """Whether a path is a checkpoint that is not in the folder of a run."""
    return is_there(path / CONTENTS) and run_of(path) is None


def run_of(checkpoint: Path) -> Path | None:
    """The run that a checkpoint belongs to; None for a checkpoint outside a run."""
    checkpoints = checkpoint.resolve().parent
    return checkpoints.parent if checkpoints.name == CHECKPOINTS else None


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints of a run, by step."""
    return {
        int(name[1]): folder
        for folder in (run / CHECKPOINTS).glob("step-*")
        if (name := re.fullmatch(r"step-(\d+)", folder.name))
    }
