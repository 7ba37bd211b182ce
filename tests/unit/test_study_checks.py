"""What a study promises is checked before anything runs, or said by the report as it is."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from law_study import nll_result
from mixerloop.data.held_out import chosen_documents
from mixerloop.evaluation.core.bundle import VARIABLE as BUNDLE
from mixerloop.files import new_folder, write_file, write_sealed
from mixerloop.reports.build import build_report
from mixerloop.reports.elements import Paragraph
from mixerloop.reports.study_results import StudyResults
from mixerloop.reports.study_results import read_study as read_results
from mixerloop.result_files import write_result
from mixerloop.studies import plan as plans
from mixerloop.studies.cells import check_cells, is_done
from mixerloop.studies.overview import study_status
from mixerloop.studies.plan import make_plan
from mixerloop.studies.plan_checks import NAME_BYTES
from mixerloop.studies.running import plan_study
from mixerloop.studies.study import read_study
from mixerloop.studies.table import Table
from mixerloop.study_folder import STATE, record_of
from small_model import training_file

STEP = 4 * 39  # tokens: four windows of hops
STUDY = """title = "T"

[[parts]]
name = "p"
config = "small.toml"
prepare = ["hops"]
arms = [ARMS]
seeds = [1, 2, 3]
"""


@pytest.fixture
def planned(tmp_path):
    """A function from the arms of a study, and more lines, to its plan."""
    (tmp_path / "small.toml").write_text(training_file(train={"steps": 8}))

    def plan(arms, more="", *, prepare="hops"):
        path = tmp_path / "study.toml"
        path.write_text(STUDY.replace("ARMS", arms).replace('["hops"]', f'["{prepare}"]') + more)
        return make_plan(read_study(path), tmp_path / "out")

    return plan


def mixer(**train):
    keys = ", ".join(f"{key} = {value}" for key, value in train.items())
    return f'"no_loop", {{ schedule = "mixer_loop(2)", train = {{ {keys} }} }}'


FLOPS = 'match = "flops"\ntrain = { flops = 1e9 }\n'
SECONDS = 'match = "seconds"\ntrain = { seconds = 1.0 }\n'
BATCHES = 'tune_tokens = 1000\ntokens = [VALUE]\ntune = { "train.global_batch" = [4, 8] }\n'
TWO = '"no_loop", "mixer_loop(2)"'
TUNED = "tune_tokens = 1000\ntune = { 'train.peak_lr' = [1e-3, 2e-3] }\n"
SEEDS = TUNED.replace("peak_lr' = [1e-3, 2e-3]", "seed' = [7, 8]")
WINDOWS = "[parts.transport]\nwindows = 2000\n"


@pytest.mark.parametrize(
    ("arms", "more", "line", "named"),
    [
        (mixer(steps=80), "", 7, f"trained with {80 * STEP:,} tokens and 'no_loop' with 1,248"),
        (mixer(tokens=80), "", 7, f"'mixer_loop(2)' is trained with {STEP} tokens and 'no_loop'"),
        (mixer(global_batch=64), "tokens = [1000]\n", 7, "with 2,496 tokens and 'no_loop' with 1,"),
        (mixer(seconds=9), "", 7, "'mixer_loop(2)': 'parameters+tokens' needs a budget in steps"),
        (mixer(flops=2e9), FLOPS, 7, "match = 'flops' needs equal flops"),
        (TWO, FLOPS.replace("1e9", "2e7"), 7, "match = 'flops' needs equal flops"),
        (mixer(seconds=9), SECONDS, 7, "trained with 9 seconds and 'no_loop' with 1"),
        (TWO, BATCHES.replace("VALUE", "1000"), 7, "needs equal tokens"),
        ('"no_loop"', "tokens = [1]\n", 9, f"1 tokens are less than a step of {STEP}"),
        (TWO, "tokens = [400, 401]\n", 9, "400 and 401 tokens are both 468 in whole steps"),
        (TWO, BATCHES.replace("VALUE", "1248"), 7, "needs equal tokens"),  # tune_tokens = 1000
        (TWO, SEEDS, 10, "train.seed is for the study to set"),
        (TWO, SEEDS.replace("seed", "steps"), 10, "train.steps is for the study to set"),
        (TWO, "model = { vocab_size = 5 }\n", 7, "12 token ids do not fit the model's 5"),
    ],
)
def test_a_part_whose_models_are_not_given_the_same_is_rejected(planned, arms, more, line, named):
    with pytest.raises(ValueError, match=rf"study\.toml, line {line}: ") as caught:
        planned(arms, more)
    assert named in str(caught.value)


def test_models_of_a_text_read_windows_of_one_length(planned):
    arms = '"no_loop", { name = "long", schedule = "no_loop", data = { context = 32 } }'
    text = "[parts.data]\ncontext = 16\n[parts.train]\nsteps = 8\nglobal_batch = 4\n"
    with pytest.raises(ValueError, match="line 7: 'long' reads windows of 32 tokens and 'no_loo"):
        planned(arms.replace("32 }", "32 }, train = { global_batch = 2 }"), text)


def test_equal_compute_is_solved_for_the_layers_and_not_searched(planned, monkeypatch):
    made = []
    counted = plans._flops
    monkeypatch.setattr(plans, "_flops", lambda *of, **by: made.append(of) or counted(*of, **by))
    deep = '{ name = "deep", schedule = "no_loop", layers_for_flops_of = "mixer_loop(30)" }'
    cells = planned(f'"mixer_loop(30)", {deep}').rows
    one, many = (next(c for c in cells if c.arm == arm) for arm in ("mixer_loop(30)", "deep"))
    assert many.with_config().model.num_layers > 10 * one.with_config().model.num_layers
    assert many.amounts["flops"] == pytest.approx(one.amounts["flops"], rel=0.02)
    assert len(made) < 20


@pytest.mark.parametrize(
    ("arms", "more", "sentence"),
    [
        (TWO, "", "Models of one seed see the same 1,248 tokens in the same order, at diff"),
        ('{ name = "a", schedule = "no_loop" }, "no_loop"', "", "tokens in the same order."),
        (mixer(steps=4, global_batch=8), "", "see the same 1,248 tokens in the same order, at d"),
        (TWO, FLOPS, "All models are trained with the same compute, to "),
        (TWO, FLOPS, "%; they differ in the tokens they see."),
        (TWO, SECONDS, "All models are trained for the same time"),
        (
            mixer(global_batch=8, steps=4),
            "",
            "the schedule they differ in train.global_batch: 4 (no_loop), 8 (mixer_loop(2)).",
        ),
        (
            mixer(compute_dtype='"bfloat16"'),
            "",
            "they differ in train.compute_dtype: float32 (no_loop), bfloat16 (mixer_loop(2)).",
        ),
        (mixer(micro_batch=1), "", "tokens in the same order, at different costs."),
        (
            mixer(micro_batch=1),
            'model = { ffn = "experts", d_ffn = 8, num_experts = 4 }\n',
            "tokens in the same order, at different costs.",
        ),
        (
            '"no_loop", { name = "wide", schedule = "no_loop", model = { d_ffn = 48 } }',
            "",
            "They have 5,672 to ",
        ),
    ],
)
def test_the_report_says_what_was_equal_and_what_was_not(planned, arms, more, sentence):
    rows = planned(arms, more).rows
    measured = {"path": Path("run"), "results": {"nll": nll_result(3.0)}}
    table = Table(tuple(replace(row, **measured) for row in rows))
    report = build_report(StudyResults(title="T", about="", table=table, prefills={}))
    (section,) = (section for section in report.sections if section.title == "p: compared")
    (text, *_) = (element.text for element in section.elements if isinstance(element, Paragraph))
    assert sentence in text


def test_the_plan_names_the_type_of_every_model_and_keeps_it(planned, tmp_path):
    def trained_in(plan):
        return Table(plan.rows).trained_in()

    one = '{ name = "half", schedule = "no_loop", train = { compute_dtype = "bfloat16" } }'
    (tmp_path / "small.toml").write_text(training_file(train={"steps": 8, "compute_dtype": "auto"}))
    plan = planned(f'{one}, "mixer_loop(2)"')
    (half, auto) = (trained_in(planned(arms)) for arms in (one, '"mixer_loop(2)"'))
    said = f"{half} (half), {auto} (mixer_loop(2))" if half != auto else half
    assert trained_in(plan) == said
    plan.folder.mkdir()
    plan.write()
    assert trained_in(planned(f'{one}, "mixer_loop(2)"')) == said


TRANSPORT = 'measure = ["transport"]\n[parts.transport]\n'


@pytest.mark.parametrize(
    ("arms", "more", "line", "named"),
    [
        (TWO, 'measure = ["core"]\n', 9, "'no_loop', core: core asks in text, and this data has "),
        (TWO, f"{TRANSPORT}windows = 100000\n", 11, "at most 4,096, the held-out sequences of"),
        (TWO, f"{TRANSPORT}positions = 1000\n", 11, "at most 8, the answers of a sequence"),
        (
            '"full_loop(2)"',
            'measure = ["routing"]\n[parts.transport]\nwindows = 4\n',
            9,
            "no layer of this model has an ffn that chooses experts",
        ),
        (TWO, 'measure = ["nll", "routing"]\n', 9, "routing: no arm repeats what this measures"),
        (TWO, 'measure_in = { core = "bfloat16" }\n', 9, "core is not among the measures"),
    ],
)
def test_a_measure_that_cannot_succeed_is_rejected(planned, arms, more, line, named):
    with pytest.raises(ValueError, match=rf"study\.toml, line {line}: ") as caught:
        planned(arms, more)
    assert named in str(caught.value)


def test_a_folder_that_cannot_be_made_is_rejected_with_the_plan(planned, tmp_path):
    planned(TWO)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file: is a file, and results go into a folder"):
        plan_study(tmp_path / "study.toml", out=tmp_path / "file")


TEXT = """model = { vocab_size = 300 }
data = { context = 16 }
measure = ["MEASURE"]
"""


@pytest.mark.parametrize(
    ("measure", "more", "named"),
    [
        ("nll", "", None),
        ("transport", WINDOWS, "draw 0 of 2000 needs more"),
        ('nll", "transport', f"tokens = [64]\n{TUNED}{WINDOWS}", "draw 0 of 2000 needs more"),
        ("nll", f"tokens = [64]\n{TUNED}", None),
        ("core", "", "core: FOLDER/nowhere.zip"),
    ],
)
def test_a_measure_of_a_text_is_checked_when_the_text_is_prepared(
    planned, tmp_path, text_data, monkeypatch, measure, more, named
):
    monkeypatch.setenv(BUNDLE, str(tmp_path / "nowhere.zip"))
    text = TEXT.replace("MEASURE", measure) + more
    plan = planned(TWO, text, prepare="stdlib")
    shutil.copytree(text_data, plan.data("p"))
    if named is None:
        check_cells(plan)
    else:
        with pytest.raises(ValueError, match=r"study\.toml, line 1\d: ") as caught:
            check_cells(plan)
        assert named.replace("FOLDER", str(tmp_path)) in str(caught.value)


@pytest.mark.parametrize(("documents", "least"), [("all", 2), ("tuning", 4), ("test", 3)])
def test_an_interval_takes_two_of_the_chosen_documents(documents, least):
    assert chosen_documents(least, documents).sum() >= 2
    with pytest.raises(ValueError, match=f"{least - 1} held-out documents leave 1 for {documents}"):
        chosen_documents(least - 1, documents)


SIZES = """[[parts.sizes]]
name = "a"
[[parts.sizes]]
name = "b"
"""
SECOND = """[[parts]]
name = "NAME"
config = "small.toml"
prepare = ["hops"]
arms = ["full_loop"]
seeds = [1]
"""


@pytest.mark.parametrize(
    ("arms", "more", "line", "named"),
    [
        ('{ schedule = "no_loop", sizes = ["a"] }', SIZES, 9, "no arm has size b"),
        (TWO, TUNED + SECOND.replace("NAME", "p-tuning"), 12, "'p-tuning' would be a folder of"),
        (TWO, SIZES + SECOND.replace("NAME", "p-b"), 14, "'p-b' would be a folder of part 'p' and"),
        (TWO, SECOND.replace("NAME", "P"), 4, "'p' cannot name a folder of its own"),
        (
            '"no_loop", { name = "No_loop", schedule = "mixer_loop" }',
            "",
            7,
            "two models are called 'no_loop'",
        ),
        (
            '"full_loop", '
            '{ name = "deep", schedule = "2x(A F)", layers_for_flops_of = "full_loop" }',
            "",
            7,
            "'deep' needs a named loop for layers_for_flops_of: model.",
        ),
    ],
)
def test_names_that_cannot_stand_together_are_rejected(planned, arms, more, line, named):
    with pytest.raises(ValueError, match=rf"study\.toml, line {line}: ") as caught:
        planned(arms, more)
    assert named in str(caught.value)


def test_names_are_rejected_that_no_file_can_have(planned, tmp_path):
    def arm(length):
        name = "aa"[length % 2 :] + "ä" * ((length - 1) // 2)
        return f'{{ name = "{name}", schedule = "no_loop" }}'

    longest = NAME_BYTES - len("p1")
    plan = planned(arm(longest))
    cell = plan.rows[0]
    with new_folder(plan.run(cell)):
        pass
    write_file(tmp_path / f"{cell.part}-transport-novelty-{cell.arm}-99.svg", "")
    with pytest.raises(ValueError, match=r"line 7: the names of .* have 201 bytes, and file na"):
        planned(arm(longest + 1))


def test_a_result_of_other_documents_than_planned_is_measured_again(planned):
    """Tuning added to a finished study, or removed: the NLL is of documents that it denies."""
    untuned, tuned = (planned('"no_loop"', f"tokens = [1000]\n{more}") for more in ("", TUNED))
    for measured, other in ((untuned, tuned), (tuned, untuned)):
        cells = [row for row in measured.rows if row.part == "p-1k"]
        for cell in cells:
            result = nll_result(3.0, scored=cell.documents)
            write_result(measured.run(cell) / "results", result)
            record = record_of(measured.folder, cell.run)
            record.mkdir(parents=True, exist_ok=True)
            write_sealed(record / STATE, {"state": "done", "error": None})
        for plan, is_there in ((measured, True), (other, False)):
            assert {is_done(plan.folder, row) for row in plan.rows if row.part == "p-1k"} == {
                is_there
            }
            plan.write()
            missing = read_results(plan.folder).table.where(part="p-1k").missing
            assert missing == ([] if is_there else [cell.run for cell in cells])
            (status,) = study_status([plan.folder])
            states = {cell.name: cell.state.state for cell in status.cells}
            assert {states[cell.run] == "done" for cell in cells} == {is_there}
