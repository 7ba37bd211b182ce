"""The functions behind the verbs, called as a notebook calls them."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from mixerloop import machine, runs
from mixerloop.benchmarking.decode_speed import bench_decode
from mixerloop.benchmarking.prefill_speed import bench_prefill
from mixerloop.benchmarking.settings import DecodeSettings, PrefillSettings
from mixerloop.description import describe, description_text
from mixerloop.evaluation.held_out_nll import evaluate_nll
from mixerloop.evaluation.hops_accuracy import evaluate_hops
from mixerloop.evaluation.task_accuracy import evaluate_task
from mixerloop.installation import inspect_installation, installation_text
from mixerloop.interop.conversion import export_run, import_run
from mixerloop.interop.loading import open_subject
from mixerloop.model.generation import Sampling
from mixerloop.studies.overview import study_status
from mixerloop.studies.reporting import make_report
from mixerloop.studies.running import plan_study, run_study
from mixerloop.text_generation import generate
from mixerloop.training.fresh_run import init_run
from mixerloop.training.position import POSITION
from mixerloop.training.run_table import runs_text
from mixerloop.training.status import list_runs
from mixerloop.transport import routing
from mixerloop.transport.measurement import Looking, measure_transport
from mixerloop.transport.routing import measure_routing
from small_model import model_file, training_file

UNKNOWN: Any = "rey"
STUDY = """
title = "Never run"
[[parts]]
name = "hops"
config = "small.toml"
prepare = ["hops"]
arms = ["no_loop", "mixer_loop(2)"]
seeds = [1]
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A small run with fresh weights."""
    place = tmp_path_factory.mktemp("fresh")
    (place / "small.toml").write_text(model_file())
    return init_run(str(place / "small.toml"), place / "run", schedule="mixer_loop(2)", seed=3)


@pytest.fixture
def study(tmp_path):
    (tmp_path / "small.toml").write_text(training_file())
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path / "study.toml"


def test_a_fresh_run_is_exported_and_imported_to_the_same_model(fresh, tmp_path):
    exported = export_run(fresh.run, tmp_path / "exported")
    assert exported.checkpoint == runs.find_checkpoint(fresh.run)
    imported = import_run(exported.folder, tmp_path / "again")
    assert (imported.parameters, imported.schedule) == (fresh.parameters, fresh.schedule)
    assert [run.state for run in list_runs(tmp_path)] == ["fresh"]


def test_a_damaged_run_is_listed_with_the_whole_name_of_its_file(tmp_path, fresh):
    run = tmp_path / ("a-long-name-" * 8)
    shutil.copytree(fresh.run, run)
    position = runs.find_checkpoint(run) / POSITION
    position.symlink_to(position)
    (listed,) = list_runs(tmp_path)
    assert listed.state == "damaged"
    assert f"{position.parent}: no {POSITION}" in runs_text([listed])


def test_generated_tokens_are_shown_as_they_come(fresh):
    subject = open_subject(fresh.run, device="cpu")
    shown = []
    generated = generate(
        subject, [1, 2], max_tokens=4, sampling=Sampling(temperature=0), show=shown.append
    )
    assert "".join(shown).split() == [str(token) for token in generated.tokens]
    assert generated.text is None
    assert (generated.prompt_tokens, generated.run_schedule) == (2, "2x(A2 F)")


def test_a_subject_that_keeps_no_results_leaves_its_run_alone(fresh):
    assert open_subject(fresh.run, device="cpu", keep=False).results is None
    assert open_subject(fresh.run, device="cpu").results == fresh.run / runs.RESULTS


def test_a_description_draws_what_it_counts(fresh):
    described = describe(fresh.run, schedules=["full_loop(3)"])
    assert described.schedule == fresh.schedule == "2x(A2 F)"
    assert list(described.accounts) == list(described.schedules)
    assert described.model.parameters == fresh.parameters
    assert described.picture().startswith("<svg")
    assert "full loop without the head" in " ".join(description_text(described).split())


def test_an_installation_is_told_in_words():
    here = inspect_installation()
    text = installation_text(here)
    assert f", {here.machine['cores']} cores, " in text
    assert f", torch {here.torch}\n" in text
    assert all(f"\n  {name} " in text for name in here.extras)


def test_an_installation_with_every_trouble_fits_a_screen():
    here = inspect_installation()
    troubled = replace(
        here,
        machine={
            **here.machine,
            "processor": "A processor with a name " * 5,
            "isa_limit": "AVX512_CORE_FP16",
            "waiting": dict.fromkeys([*machine.WAITING_CHOICES, machine.NUM_THREADS], "1000"),
        },
        native_kernel=False,
        openmp=["libother.so.1", "libanother.so.2"],
        extras=dict.fromkeys(here.extras, False),
    )
    lines = installation_text(troubled).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_a_plan_is_made_without_writing_anything(study):
    planned = plan_study(study, out=study.parent / "out", cells=[2])
    (one,) = planned.cells
    assert (one.row.number, one.state.state, one.expected_seconds) == (2, "waiting", None)
    assert planned.precision() == {"hops": {"training": "float32", "nll": "float32"}}
    assert not (study.parent / "out").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run, _: generate(open_subject(run), "text"), "give the prompt as token ids"),
        (lambda run, _: generate(open_subject(run), [], seed=1), "the prompt is empty"),
        (lambda run, _: generate(open_subject(run), [1], stop=["x"]), "^stop needs a run with"),
        (lambda run, _: generate(open_subject(run), [1], max_tokens=0), "^max_tokens must be"),
        (lambda run, _: export_run(run, run), "already exists"),
        (lambda run, _: import_run(run, "new"), "not a folder of transformers"),
        (lambda run, _: list_runs(run / "nowhere"), "nowhere: there is no such folder"),
        (lambda run, _: make_report([]), "name a study's folder, or runs"),
        (lambda run, _: make_report([run]), "out is a file such as report.html"),
        (lambda run, _: study_status([run]), "not the folder of a study"),
        (lambda _, study: plan_study(study, jobs=0), "^jobs must be at least 1, got 0"),
        (lambda _, study: plan_study(study, cells=[3]), "^cells are numbers from 1 to 2, got 3"),
        (lambda _, study: run_study(study, cells=[1], engine=UNKNOWN), "unknown engine 'rey'; did"),
        (lambda _, study: run_study(study, corpus=["a.txt"]), "so corpus has no meaning"),
        (lambda *_: bench_decode(DecodeSettings(repeats=0)), "^repeats must be at least 1, got 0"),
        (lambda *_: bench_prefill(PrefillSettings(sizes=())), "^name at least one size"),
    ],
)
def test_a_wrong_argument_is_named(fresh, study, call, message):
    with pytest.raises(ValueError, match=message) as raised:
        call(fresh.run, study)
    assert "--" not in str(raised.value)


def test_a_cell_process_says_in_one_line_what_is_wrong(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "mixerloop.studies.cell_process", "out", "1", "1"],
        cwd=tmp_path,
        env={**os.environ, **machine.WAITING},
        input="[]",
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("mixerloop: stdin: not the row of a cell: ")


TWO_WINDOWS = Looking(windows=2, positions=2)


@pytest.mark.parametrize(
    "measure",
    [
        evaluate_nll,
        evaluate_hops,
        evaluate_task,
        partial(measure_transport, looking=TWO_WINDOWS),
        partial(measure_transport, looking=replace(TWO_WINDOWS, removal=True)),
        partial(generate, prompt=[1, 2], sampling=Sampling(temperature=0)),
        partial(measure_routing, looking=TWO_WINDOWS),
    ],
)
def test_numbers_that_are_not_finite_are_an_error_of_their_own(hops_run, measure, monkeypatch):
    subject = open_subject(hops_run, device="cpu", keep=False)
    subject.model.embedding.weight = nn.Parameter(torch.full((12, 16), torch.nan))
    monkeypatch.setattr(routing, "repeated_layers", lambda *_: {})  # this model has no experts
    with pytest.raises(FloatingPointError, match="not finite; are the weights"):
        measure(subject)
