"""Data is measured, and trained on, only by a model to which its token ids mean the same."""

import json
from functools import partial

import pytest

from made_once import made_once
from mixerloop import runs
from mixerloop.data.corpora import prepare_hops, prepare_text
from mixerloop.data.prepared import open_prepared
from mixerloop.data.task_folder import prepare_task
from mixerloop.data.tasks.brackets import BracketsSettings
from mixerloop.data.tasks.hops import HopsSettings
from mixerloop.data.vocabulary import TASK
from mixerloop.evaluation.held_out_nll import evaluate_nll
from mixerloop.evaluation.hops_accuracy import evaluate_hops
from mixerloop.evaluation.task_accuracy import evaluate_task
from mixerloop.interop.loading import open_subject
from mixerloop.interop.parents import open_parent
from mixerloop.training.fresh_run import init_run
from mixerloop.training.parallel import Ranks
from mixerloop.training.run_setup import begin
from mixerloop.transport.measurement import Looking, measure_transport
from mixerloop.transport.routing import measure_routing
from small_model import model_file
from training_sessions import twelve_steps

FEW = Looking(windows=2, positions=2, context=16)
MEASURES = {
    "nll": lambda subject, data: evaluate_nll(
        subject, data=data, context=open_prepared(data).context or 16
    ),
    "hops": partial(evaluate_hops, sequences=64),
    "task": partial(evaluate_task, sequences=64),
    "transport": lambda subject, data: measure_transport(subject, FEW, data=data),
    "routing": lambda subject, data: measure_routing(subject, FEW, data=data),
}
EXPERTS = {"ffn": "experts", "d_ffn": 8, "num_experts": 4, "num_chosen": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory, hops_data, text_data):
    """Folders of data by name."""

    def make(place):
        files = [place / f"{name}.txt" for name in ("train", "held-out")]
        for file in files:
            file.write_text(f"{file.name} {'zebras in boxes. ' * 40}")
        prepare_text(files[:1], place / "zebras", held_out=files[1:], vocab_size=290, workers=1)
        prepare_hops(place / "other hops", HopsSettings(seed=5))
        prepare_hops(place / "larger hops", HopsSettings(num_nodes=9))
        prepare_task(place / "brackets", BracketsSettings())

    place = made_once(tmp_path_factory, "vocabularies", make)
    return {
        **{"text": text_data, "hops": hops_data},
        **{name: place / name for name in ("zebras", "other hops", "larger hops", "brackets")},
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory, data):
    """Runs by name: a model of text, and a model whose vocabulary is unknown."""

    def make(place):
        (place / "small.toml").write_text(
            model_file(vocab_size=300, schedule="full_loop(2)", **EXPERTS)
        )
        for name, tokenizer in (("text", data["text"]), ("unknown", None)):
            init_run(str(place / "small.toml"), place / name, tokenizer=tokenizer)

    place = made_once(tmp_path_factory, "fresh-vocabularies", make)
    return {name: place / name for name in ("text", "unknown")}


def of(name):
    """A pattern of the vocabulary that data of this name has, as errors have it."""
    return "the tokenizer [0-9a-f]{10}" if name in ("text", "zebras") else f"the synthetic .*{name}"


@pytest.mark.parametrize("name", ["zebras", "hops"])
@pytest.mark.parametrize("measure", MEASURES)
def test_no_measure_reads_a_model_of_text_on_other_ids(models, data, measure, name):
    subject = open_subject(models["text"], keep=False)
    rejected = rf"{data[name]}: is of {of(name)}.*, and .* is of the tokenizer .*; prepare the data"
    with pytest.raises(ValueError, match=rejected):
        MEASURES[measure](subject, data=data[name])


@pytest.mark.parametrize(
    ("measure", "name"),
    [("nll", "text"), ("transport", "text"), ("routing", "text"), ("transport", "zebras")]
    + [(measure, "hops") for measure in MEASURES],
)
def test_a_model_is_measured_on_its_own_ids_and_without_a_vocabulary_on_all_that_fit(
    models, data, measure, name
):
    subject = open_subject(models["text" if name == "text" else "unknown"], keep=False)
    assert MEASURES[measure](subject, data=data[name])


@pytest.mark.parametrize("name", ["brackets", "text", "larger hops"])
def test_a_model_of_a_task_is_measured_on_that_task_only(hops_run, data, name):
    subject = open_subject(hops_run, keep=False)
    assert evaluate_hops(subject, data=data["other hops"], sequences=64)
    with pytest.raises(ValueError, match=r"is of the synthetic task hops .*; name data of that"):
        MEASURES["nll"](subject, data=data[name])


@pytest.mark.parametrize(("model", "name"), [("hops", "brackets"), ("text", "hops")])
def test_a_parent_is_trained_further_on_its_own_ids_only(
    tmp_path, hops_run, models, data, model, name
):
    parent = open_parent(hops_run if model == "hops" else models[model])
    with pytest.raises(ValueError, match=rf"{data[name]}: is of {of(name)}.* and .* is of the "):
        begin(
            tmp_path / "run", twelve_steps(data[name], parent.model), ranks=Ranks(), parent=parent
        )
    assert not (tmp_path / "run").exists()


def test_a_parent_of_a_task_is_trained_further_on_it_with_other_settings(tmp_path, hops_run, data):
    parent = open_parent(hops_run)
    config = twelve_steps(data["other hops"], parent.model)
    begin(tmp_path / "run", config, parent=parent)


def test_every_checkpoint_of_a_task_says_which(hops_run):
    for folder in runs.checkpoints(hops_run).values():
        assert json.loads((folder / TASK).read_text())["task"] == "hops"
