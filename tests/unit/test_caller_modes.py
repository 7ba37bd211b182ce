"""Public functions compute the same bits in whatever modes of torch they are called."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import mixerloop
from made_once import made_once
from mixerloop import runs
from mixerloop.config import RunConfig, load
from mixerloop.description import describe
from mixerloop.evaluation.core.evaluate_core import evaluate_core
from mixerloop.evaluation.held_out_nll import evaluate_nll
from mixerloop.evaluation.hops_accuracy import evaluate_hops
from mixerloop.evaluation.recording import record
from mixerloop.evaluation.task_accuracy import evaluate_task
from mixerloop.files import file_sha256
from mixerloop.interop.conversion import export_run, import_run
from mixerloop.interop.loading import open_subject
from mixerloop.results import encode
from mixerloop.text_generation import generate
from mixerloop.training.fresh_run import init_run
from mixerloop.training.sessions import resume, train
from mixerloop.transport.measurement import Looking, measure_fresh_transport, measure_transport
from mixerloop.transport.routing import measure_routing
from small_model import model_file, training_file

BUNDLE = Path(__file__).parents[1] / "data" / "core_bundle"
FEW = Looking(windows=2, positions=2, context=16, removal=True)
EXPERTS = {"ffn": "experts", "d_ffn": 8, "num_experts": 4, "num_chosen": 2}


class Runs(NamedTuple):
    """Runs that are only read, and a config to train."""

    text: Path
    hops: Path
    experts: Path
    exported: Path
    config: RunConfig
    small: str


@contextmanager
def modes_of_a_caller() -> Iterator[None]:
    """Every mode of torch that a notebook may be in, and other random numbers."""
    torch.manual_seed(99)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def random_states() -> list[bytes]:
    return [
        torch.get_rng_state().numpy().tobytes(),
        repr(random.getstate()).encode(),
        repr(np.random.get_state()).encode(),  # noqa: NPY002  (the caller's)
    ]


def weights(run: Path) -> str:
    return file_sha256(runs.find_checkpoint(run) / "model.safetensors")


def resumed(given: Runs, place: Path) -> str:
    train(given.config, place / "run", until=1)
    resume(place / "run")
    return weights(place / "run")


def trained(given: Runs, place: Path) -> tuple[str, bytes]:
    train(given.config, place / "run")
    return weights(place / "run"), (place / "run" / runs.METRICS).read_bytes()


def answered(given: Runs, place: Path) -> dict[str, Any]:
    subject = open_subject(given.text, results=place)
    result = evaluate_core(subject, bundle=BUNDLE, limit=4, context=64)
    return {name: task.accuracy for name, task in result.tasks.items()}


def opened(run: Path):
    return open_subject(run, keep=False)


COMPUTING: dict[str, Callable[[Runs, Path], Any]] = {
    "train": trained,
    "resume": resumed,
    "open_subject": lambda given, _: {
        name: tensor.numpy().tobytes()
        for name, tensor in opened(given.text).model.state_dict().items()
    },
    "evaluate_nll": lambda given, _: evaluate_nll(opened(given.text), passes=(1,)),
    "evaluate_hops": lambda given, _: evaluate_hops(opened(given.hops), sequences=64),
    "evaluate_task": lambda given, _: evaluate_task(opened(given.hops), sequences=64),
    "evaluate_core": answered,
    "generate": lambda given, _: generate(opened(given.text), "tale", max_tokens=9).tokens,
    "measure_transport": lambda given, _: measure_transport(opened(given.text), FEW, control=True),
    "measure_fresh_transport": lambda _, place: measure_fresh_transport("nano", FEW),
    "measure_routing": lambda given, _: measure_routing(
        opened(given.experts), FEW, data=given.config.for_training()[0].path
    ),
    "record": lambda given, _: {
        address: array.values.tolist()
        for address, array in record(opened(given.text), [[1, 2, 3]], "*.update").items()
    },
    "describe": lambda given, _: describe(given.text).to_json(),
    "init_run": lambda given, place: weights(init_run(given.small, place / "fresh").run),
    "export_run": lambda given, place: file_sha256(
        export_run(given.hops, place / "out").folder / "model.safetensors"
    ),
    "import_run": lambda given, place: weights(import_run(given.exported, place / "run").run),
}
WITHOUT_MODELS = {
    *(
        "Looking",
        "Sampling",
        "__version__",
        "compare_runs",
        "fit_law",
        "load_config",
        "make_report",
    ),
    *(
        "open_parent",
        "prepare_climbmix",
        "prepare_hops",
        "prepare_stdlib",
        "prepare_text",
        "settle",
    ),
    "run_study",  # which calls the functions above, or starts processes that do
}


@pytest.fixture(scope="module")
def given(tmp_path_factory, text_run, hops_run, text_data):
    def make(place):
        (place / "small.toml").write_text(
            model_file(vocab_size=300, schedule="full_loop(2)", **EXPERTS)
        )
        init_run(str(place / "small.toml"), place / "experts", tokenizer=text_data)
        export_run(hops_run, place / "exported")
        (place / "train.toml").write_text(
            training_file(str(text_data), context=16, vocab_size=300, train={"steps": 2})
        )

    place = made_once(tmp_path_factory, "modes", make)
    return Runs(
        text=text_run,
        hops=hops_run,
        experts=place / "experts",
        exported=place / "exported",
        config=load(place / "train.toml"),
        small=str(place / "small.toml"),
    )


def figures(value: Any) -> Any:
    if hasattr(value, "provenance"):
        return {key: item for key, item in encode(value).items() if key != "provenance"}
    return value


@pytest.mark.usefixtures("shapes_unchecked")  # checks of shapes draw random numbers
@pytest.mark.parametrize("name", COMPUTING)
def test_the_modes_of_the_caller_change_no_bit(given, tmp_path, name):
    before = random_states()
    expected = figures(COMPUTING[name](given, tmp_path / "plain"))
    assert random_states() == before
    with modes_of_a_caller():
        result = COMPUTING[name](given, tmp_path / "in modes")
        assert torch.is_inference_mode_enabled()
        assert torch.get_default_dtype() == torch.float64
    assert figures(result) == expected


def test_every_public_function_with_a_model_is_tried():
    assert set(mixerloop.__all__) <= {*COMPUTING, *WITHOUT_MODELS}
