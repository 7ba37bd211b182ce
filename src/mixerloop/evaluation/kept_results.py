"""The results a run keeps, as comparisons read them: every answer, every document."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.config import RunConfig
from mixerloop.evaluation.core.evaluate import SETTINGS, read_answers
from mixerloop.strict import one_line

CORE, NLL = "core.json", "nll.json"
DOCUMENTS = "nll.jsonl"
MUST_AGREE = ("bundle", "context", "limit")


@dataclass(frozen=True)
class KeptCore:
    """What a run answered."""

    asked: dict[str, Any]
    """What two runs must share to be compared: bundle, context and limit."""
    right: dict[str, np.ndarray]
    """By task, whether each example was answered right."""
    baselines: dict[str, dict[str, float]]
    """By version and task."""
    majority: dict[str, float]
    """By task, the accuracy of always giving the most frequent answer."""
    comparable: bool


@dataclass(frozen=True)
class KeptNLL:
    """What a run lost on each document."""

    data: str
    """Fingerprint of the data."""
    context: int
    nats: np.ndarray
    tokens: np.ndarray


@dataclass(frozen=True)
class KeptResults:
    """One run."""

    path: Path
    config: RunConfig
    core: KeptCore | None
    nll: KeptNLL | None

    @property
    def seed(self) -> int | None:
        """Of its training."""
        return None if self.config.train is None else self.config.train.seed


def read_results(path: Path) -> KeptResults:
    """All that was kept of a run."""
    config = configs.load(runs.find_checkpoint(path) / runs.CONFIG)
    folder = runs.results_folder(path)
    try:
        core = _core(folder) if (folder / CORE).exists() else None
        nll = _nll(folder) if (folder / NLL).exists() else None
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder}: not results as they were kept: {one_line(error)}") from None
    if core is None and nll is None:
        raise ValueError(
            f"{path}: nothing to compare yet; first run mixerloop evaluate nll or core on it"
        )
    return KeptResults(path, config, core, nll)


def _core(folder: Path) -> KeptCore:
    result = runs.read_json(folder / CORE)
    settings = runs.read_json(folder / "core" / SETTINGS)
    tasks = result["tasks"]
    return KeptCore(
        asked={key: settings[key] for key in MUST_AGREE},
        right={
            label: np.array([one.right for one in read_answers(folder / "core" / f"{label}.jsonl")])
            for label in tasks
        },
        baselines={
            version: {label: float(task[f"baseline_{version}"]) for label, task in tasks.items()}
            for version in ("v1", "v2")
        },
        majority={label: float(task["guess"]["majority"]) for label, task in tasks.items()},
        comparable=bool(result["comparable"]),
    )


def _nll(folder: Path) -> KeptNLL:
    result = runs.read_json(folder / NLL)
    path = folder / DOCUMENTS
    if not path.is_file():
        raise ValueError(f"{path}: missing; run mixerloop evaluate nll again")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return KeptNLL(
        data=result["provenance"]["data"],
        context=result["context"],
        nats=np.array([float(line["nats"]) for line in lines]),
        tokens=np.array([int(line["tokens"]) for line in lines]),
    )
