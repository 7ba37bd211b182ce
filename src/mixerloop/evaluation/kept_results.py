"""The results a run keeps: written by measurements, read by comparisons.

RESULTS/nll.json, nll.jsonl      figures, and the sums of every document
RESULTS/hops.json, hops.jsonl    figures, and the counts of every sequence
RESULTS/core.json, core/         figures, and every answer
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.config import RunConfig
from mixerloop.data.held_out import HeldOut
from mixerloop.evaluation.core.answer_folder import SETTINGS, read_answers
from mixerloop.evaluation.core.metric import VERSIONS
from mixerloop.evaluation.nll import DocumentSums
from mixerloop.files import file_sha256, json_text, read_json, write_file
from mixerloop.parsing import one_line

CORE, CORE_ANSWERS = "core.json", "core"
HOPS, HOPS_SEQUENCES = "hops.json", "hops.jsonl"
NLL, NLL_DOCUMENTS = "nll.json", "nll.jsonl"
MUST_AGREE = ("bundle", "context", "limit", "compute_dtype")


@dataclass(frozen=True)
class KeptCore:
    """What a run answered."""

    asked: dict[str, Any]
    """What two runs must share to be compared."""
    right: dict[str, np.ndarray]
    """By task, whether each example was answered right."""
    baselines: dict[str, dict[str, float]]
    """By version and task."""
    majority: dict[str, float]
    """By task, the accuracy of always giving the most frequent answer."""
    is_whole: bool
    """Whether all tasks of the bundle were asked, so that the mean is CORE."""
    not_comparable_because: list[str]


@dataclass(frozen=True)
class KeptNLL:
    """What a run lost on each document."""

    asked: dict[str, Any]
    nats: np.ndarray
    tokens: np.ndarray


@dataclass(frozen=True)
class KeptHops:
    """What a run answered in each sequence."""

    asked: dict[str, Any]
    right: np.ndarray
    questions: np.ndarray


@dataclass(frozen=True)
class KeptResults:
    """What was kept of one model."""

    path: Path
    checkpoint: str
    """The hash that the results were made with."""
    schedule: str
    """That they were made under."""
    seed: int | None
    config: RunConfig | None
    """None for results that were kept outside a run."""
    trained_on: str | None
    """Fingerprint of the training data."""
    step: str | None
    """The checkpoint's name."""
    core: KeptCore | None
    nll: KeptNLL | None
    hops: KeptHops | None = None


def write_hops(
    folder: Path, result: dict[str, Any], right: np.ndarray, questions: np.ndarray
) -> None:
    """Keep accuracies on hops; the figures come last, so that they always fit the counts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / HOPS).unlink(missing_ok=True)
    lines = [
        json.dumps({"sequence": number, "right": of_sequence, "questions": asked})
        for number, (of_sequence, asked) in enumerate(
            zip(right.tolist(), questions.tolist(), strict=True)
        )
    ]
    write_file(folder / HOPS_SEQUENCES, "\n".join(lines) + "\n")
    write_file(folder / HOPS, json_text(result))


def write_nll(folder: Path, result: dict[str, Any], sums: DocumentSums, held_out: HeldOut) -> Path:
    """Keep an NLL; the figures come last, so that they never stand with other documents."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NLL).unlink(missing_ok=True)
    sizes = held_out.text_bytes
    lines = [
        json.dumps(
            {
                "document": number,
                "nats": float(sums.nats[number].sum()),
                "tokens": int(sums.tokens[number].sum()),
                "bytes": None if sizes is None else float(sizes[number]),
            }
        )
        for number in range(held_out.num_documents)
    ]
    write_file(folder / NLL_DOCUMENTS, "\n".join(lines) + "\n")
    write_file(folder / NLL, json_text(result))
    return folder / NLL


def read_results(path: Path) -> KeptResults:
    """What was kept of a run, of one of its checkpoints, or in a folder given with --out."""
    if not path.exists():
        raise ValueError(f"{path}: there is no such run")
    kept_outside = any((path / name).exists() for name in (CORE, NLL, HOPS_SEQUENCES))
    if not kept_outside and runs.is_checkpoint_outside_run(path):
        raise ValueError(f"{path}: a checkpoint outside a run; name the --out of its results")
    folder = path if kept_outside else runs.results_folder(path)
    checkpoint = None if kept_outside else runs.find_checkpoint(path)
    names = [name for name in (CORE, NLL) if (folder / name).exists()]
    if (folder / HOPS).exists() and (folder / HOPS_SEQUENCES).exists():  # older runs have the first
        names.append(HOPS)
    found = {name: _read(folder / name) for name in names}
    if not found:
        raise ValueError(
            f"{path}: nothing to compare yet; first run mixerloop evaluate nll, hops or core on it"
        )
    facts = {name: _facts(folder / name, result) for name, result in found.items()}
    if len(set(facts.values())) > 1:
        raise ValueError(f"{folder}: {' and '.join(found)} are of different models; evaluate again")
    sha, schedule, seed = next(iter(facts.values()))
    if checkpoint is not None and file_sha256(checkpoint / runs.CONTENTS) != sha:
        raise ValueError(f"{folder}: its results are not of {checkpoint}; evaluate it again")
    return KeptResults(
        path=path,
        checkpoint=sha,
        schedule=schedule,
        seed=seed,
        config=None if checkpoint is None else configs.load(checkpoint / runs.CONFIG),
        trained_on=None if checkpoint is None else _trained_on(checkpoint),
        step=None if checkpoint is None else checkpoint.name,
        core=_core(folder, found[CORE]) if CORE in found else None,
        nll=_nll(folder, found[NLL]) if NLL in found else None,
        hops=_hops(folder, found[HOPS]) if HOPS in found else None,
    )


def _read(path: Path) -> dict[str, Any]:
    result = read_json(path)
    if not isinstance(result, dict):
        raise _not_kept(path, "not an object")
    return result


def _not_kept(path: Path, error: object) -> ValueError:
    reason = one_line(error) if isinstance(error, Exception) else error
    return ValueError(f"{path}: not a result as it was kept ({reason}); evaluate again")


def _facts(path: Path, result: dict[str, Any]) -> tuple[str, str, int | None]:
    """Which model a result is of."""
    try:
        provenance = result["provenance"]
        return provenance["checkpoint_sha256"], result["schedule"], provenance["seed"]
    except (KeyError, TypeError) as error:
        raise _not_kept(path, error) from None


def _trained_on(checkpoint: Path) -> str | None:
    path = checkpoint.parent.parent / runs.PROVENANCE
    if not path.is_file():
        return None
    provenance = read_json(path)
    return provenance.get("data") if isinstance(provenance, dict) else None


def _core(folder: Path, result: dict[str, Any]) -> KeptCore:
    try:
        tasks = result["tasks"]
        settings = _read(folder / CORE_ANSWERS / SETTINGS)
        kept = KeptCore(
            asked={key: settings[key] for key in MUST_AGREE},
            right={
                label: np.array([one.right for one in _answers(folder, label)]) for label in tasks
            },
            baselines={
                version: {
                    label: _number(one[f"baseline_{version}"]) for label, one in tasks.items()
                }
                for version in VERSIONS
            },
            majority={label: _number(one["guess"]["majority"]) for label, one in tasks.items()},
            is_whole=result["core_v1"] is not None,
            not_comparable_because=list(result["not_comparable_because"]),
        )
        counts = {label: one["examples"] for label, one in tasks.items()}
        if result["settings"] != settings:
            raise TypeError("its answers have other settings")
        if any(not 0 <= base < 1 for found in kept.baselines.values() for base in found.values()):
            raise TypeError("baselines that are none")
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _not_kept(folder / CORE, error) from None
    if not tasks or counts != {label: len(right) for label, right in kept.right.items()}:
        raise _not_kept(folder / CORE, "its answers are others")
    return kept


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _answers(folder: Path, label: str) -> Any:
    return read_answers(folder / CORE_ANSWERS / f"{label}.jsonl")


def _hops(folder: Path, result: dict[str, Any]) -> KeptHops:
    path = folder / HOPS_SEQUENCES
    right, questions = [], []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            counts = json.loads(line)
            right.append(sum(int(_number(count)) for count in counts["right"]))
            questions.append(sum(int(_number(count)) for count in counts["questions"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _not_kept(path, f"line {number}: {one_line(error)}") from None
    try:
        provenance = result["provenance"]
        asked = {"data": provenance["data"], "compute_dtype": provenance["compute_dtype"]}
        total = sum(part["questions"] for part in result["accuracy_by_hop"])
    except (KeyError, TypeError) as error:
        raise _not_kept(folder / HOPS, error) from None
    if sum(questions) != total or total <= 0 or len(questions) < 2:
        raise _not_kept(folder / HOPS, "its sequences are others")
    return KeptHops(asked, np.array(right), np.array(questions))


def _nll(folder: Path, result: dict[str, Any]) -> KeptNLL:
    path = folder / NLL_DOCUMENTS
    if not path.is_file():
        raise _not_kept(path, "missing")
    nats, tokens = [], []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            one = json.loads(line)
            nats.append(_number(one["nats"]))
            tokens.append(int(_number(one["tokens"])))
        except (KeyError, TypeError, ValueError) as error:
            raise _not_kept(path, f"line {number}: {one_line(error)}") from None
    try:
        provenance = result["provenance"]
        asked = {
            "data": provenance["data"],
            "context": result["context"],
            "compute_dtype": provenance["compute_dtype"],
        }
        agrees = (len(nats), sum(tokens)) == (result["documents"], result["tokens"])
    except (KeyError, TypeError) as error:
        raise _not_kept(folder / NLL, error) from None
    if not agrees or sum(tokens) <= 0 or len(nats) < 2:
        raise _not_kept(folder / NLL, "its documents are others")
    return KeptNLL(asked, np.array(nats), np.array(tokens))
