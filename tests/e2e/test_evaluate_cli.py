"""`mixerloop evaluate` as a user runs it, on a small bundle written for the tests."""

import io
import json
import math
import shutil
from pathlib import Path

import pytest
import sentencepiece

import needs
from command_line import mixerloop, refused
from mixerloop.data.sentencepiece_tokenizer import train_tokenizer
from mixerloop.evaluation.core import asking
from mixerloop.evaluation.core.answer_folder import AnswerFolder
from mixerloop.evaluation.core.bundle import Bundle
from mixerloop.evaluation.core.corrections import question_hash
from mixerloop.evaluation.core.tasks import MultipleChoice
from mixerloop.evaluation.looped_scorer import LoopedScorer
from mixerloop.files import file_sha256, seal_folder
from saved_results import as_printed
from small_model import model_file, training_file

BUNDLE = Path(__file__).parents[1] / "data" / "core_bundle"
BLOCK_EXAMPLES = 2


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three small runs trained on small text, two of them of one architecture."""
    place = tmp_path_factory.mktemp("evaluate")
    lines = (BUNDLE / "eval_data/made/colours.jsonl").read_text().splitlines()
    text = "\n".join(f"{line} tale {n}" for n in range(40) for line in lines)
    stories = [json.dumps({"text": text[n * 150 : n * 150 + 150]}) for n in range(200)]
    (place / "text.jsonl").write_text("\n".join(stories) + "\n")
    mixerloop(
        *("data", "prepare", "text", "text.jsonl", "--vocab-size", 300, "--out", "data"),
        *("--held-out-share", 0.2, "--workers", 1),
        cwd=place,
    )
    for name, schedule, seed in (
        ("mixer-1", "mixer_loop(2)", 1),
        ("mixer-2", "mixer_loop(2)", 2),
        ("full-1", "full_loop(2)", 1),
    ):
        config = training_file("data", context=32, vocab_size=300, schedule=schedule)
        (place / f"{name}.toml").write_text(config)
        mixerloop("train", f"{name}.toml", "--out", name, "--train.seed", seed, cwd=place)
    return place


@pytest.fixture
def run(place, tmp_path):
    """A run of the test's own, with the data beside it."""
    shutil.copytree(place / "data", tmp_path / "data")
    return Path(shutil.copytree(place / "mixer-1", tmp_path / "run"))


def core(run, *arguments):
    return json.loads(
        mixerloop(
            *("evaluate", "core", run.name, "--bundle", BUNDLE, "--json", *arguments),
            cwd=run.parent,
        ).stdout
    )


def test_corrected_answers_are_named_and_never_mixed_with_others(run):
    first = Bundle(BUNDLE).examples(Bundle(BUNDLE).choose(("colours",))[0])[0]
    assert isinstance(first, MultipleChoice)
    corrections = {"colours": {question_hash(first): (first.gold + 1) % 4}}
    (run.parent / "right.json").write_text(json.dumps({"about": "a test", "gold": corrections}))
    plain = core(run)
    corrected = core(run, "--corrected", "right.json", "--out", "corrected")
    assert corrected["corrected"] == {"colours": 1}
    assert plain["corrected"] == {}
    assert "answers were corrected: 1 of colours" in corrected["not_comparable_because"]
    sha256 = file_sha256(run.parent / "right.json")
    assert corrected["settings"]["corrections"] == corrected["provenance"]["corrections"] == sha256
    assert plain["settings"]["corrections"] is plain["provenance"]["corrections"] is None
    again = ("evaluate", "core", "run", "--bundle", BUNDLE, "--corrected", "right.json")
    assert "holds answers with corrections None" in refused(*again, cwd=run.parent)
    one_pass = ("--schedule", "mixer_loop(1)", "--out", "one")
    core(run, *one_pass)
    said = refused("evaluate", "compare", "corrected", "one", cwd=run.parent)
    assert f"measured with corrections None, and of corrected with {sha256}" in said


def test_one_held_out_document_gives_a_number_and_two_give_a_comparison(run):
    place = run.parent
    for name in ("train", "one", "two"):
        (place / f"{name}.txt").write_text(f"tale {name} of colours and hens. " * 40)
    prepare = ("data", "prepare", "text", "train.txt", "--tokenizer", "run", "--workers", 1)
    for data, held_out in (("single", ["one.txt"]), ("double", ["one.txt", "two.txt"])):
        mixerloop(*prepare, "--held-out", *held_out, "--out", data, cwd=place)
        for passes in (1, 2):
            measured = ("--data", data, "--schedule", f"mixer_loop({passes})")
            out = ("--out", f"{data}-{passes}")
            said = mixerloop("evaluate", "nll", "run", *measured, *out, cwd=place).stdout
            assert ("(no interval)" in said) == (data == "single")
    saved = json.loads((place / "single-1/nll.json").read_text())
    assert saved["nll"]["value"] > 0
    assert saved["nll"]["lower"] is saved["nll"]["upper"] is None
    refusal = refused("evaluate", "compare", "single-1", "single-2", cwd=place)
    assert "--held-out FILE FILE --tokenizer RUN --out DIR" in refusal
    compared = mixerloop("evaluate", "compare", "double-1", "double-2", cwd=place).stdout
    assert "held-out NLL" in compared


def test_core_gives_programs_every_figure(run):
    result = core(run, "--verify-sharing")
    assert {"core_v1", "core_v2", "manipulation_v1", "manipulation_v2"} <= result.keys()
    assert list(result["tasks"]) == ["colours", "pronouns", "endings"]
    for task in result["tasks"].values():
        keys = {"accuracy", "centered_v1", "centered_v2", "examples", "cropped_share"}
        assert keys <= task.keys()
        right = task["accuracy"]
        assert right["lower"] <= right["value"] <= right["upper"]
        assert right["over"] == "examples"
    colours = result["tasks"]["colours"]
    assert colours["centered_v1"] == pytest.approx((colours["accuracy"]["value"] - 0.25) / 0.75)
    mean = sum(task["centered_v1"] for task in result["tasks"].values()) / 3
    assert result["core_v1"]["value"] == pytest.approx(mean)
    assert result["decisions_differing"] == 0
    assert result["tokens_processed"] < result["tokens_plain"]
    assert result["comparable"] is False
    assert result["not_comparable_because"] == [
        "22 of the 22 tasks were not asked",
        "3 tasks are not CORE's",
    ]
    assert result["provenance"]["checkpoint_sha256"]
    assert as_printed(run / "results/core.json") == result
    answers = lines_of(run / "results/core/colours.jsonl")
    assert [one["example"] for one in answers] == list(range(8))
    shown = mixerloop("evaluate", "core", "run", "--bundle", BUNDLE, cwd=run.parent).stdout
    for words in ("colours", "guessing scores", "not comparable with other results"):
        assert words in shown
    assert shown.strip().splitlines()[-1].startswith("kept in run/results/core.json")


def test_plain_scoring_takes_the_same_decisions(run):
    shared = core(run)
    plain = core(run, "--plain", "--out", "plain")
    assert plain["tokens_processed"] > shared["tokens_processed"]
    for label in shared["tasks"]:
        found, expected = (
            [one["decision"] for one in lines_of(folder / f"{label}.jsonl")]
            for folder in (run / "results/core", run.parent / "plain/core")
        )
        assert found == expected


def test_a_limit_is_marked_and_other_settings_are_not_mixed(run):
    limited = core(run, "--limit", "4")
    assert limited["tasks"]["colours"]["examples"] == 4
    assert "3 tasks were limited" in limited["not_comparable_because"][2]
    line = refused("evaluate", "core", "run", "--bundle", BUNDLE, cwd=run.parent)
    assert (
        "holds answers with limit 4, not None; replace drops them, or name another folder" in line
    )
    part = core(run, "--tasks", "endings", "--replace")
    assert (part["core_v1"], part["tasks"]["endings"]["examples"]) == (None, 8)
    before = (run / "results/core/endings.jsonl").stat().st_mtime_ns
    assert core(run, "--replace")["core_v1"] is not None  # what belongs to these settings stays
    assert (run / "results/core/endings.jsonl").stat().st_mtime_ns == before
    bundle = Path(shutil.copytree(BUNDLE, run.parent / "bundle"))
    file = bundle / "eval_data/made/endings.jsonl"
    file.write_text(file.read_text().replace("snow", "milk"))
    line = refused("evaluate", "core", "run", "--bundle", "bundle", cwd=run.parent)
    assert "holds answers with bundle" in line


def test_an_interrupted_evaluation_is_resumed_to_the_same_answers(run, monkeypatch):
    monkeypatch.setattr(asking, "BLOCK_EXAMPLES", BLOCK_EXAMPLES)
    undisturbed = Path(shutil.copytree(run, run.with_name("undisturbed")))
    core(undisturbed)
    parts = run / "results/core/parts"
    score = LoopedScorer.score

    def interrupted(self, questions):
        if len(list(parts.glob("*.json"))) == 2:
            raise KeyboardInterrupt
        return score(self, questions)

    with monkeypatch.context() as patch:
        patch.setattr(LoopedScorer, "score", interrupted)
        mixerloop("evaluate", "core", "run", "--bundle", BUNDLE, cwd=run.parent, code=130)
    assert not (run / "results/core.json").exists()
    begun = {path: path.read_bytes() for path in parts.glob("*.json")}
    core(run)
    for label in ("colours", "pronouns", "endings"):
        found, expected = (
            (one / f"results/core/{label}.jsonl").read_bytes() for one in (run, undisturbed)
        )
        assert found == expected
    seconds = json.loads((run / "results/core.json").read_text())["tasks"]["colours"]["seconds"]
    assert seconds > sum(json.loads(part)["seconds"] for part in begun.values())
    assert list(parts.iterdir()) == []
    for path, content in begun.items():  # as a kill right before their removal leaves them
        path.write_bytes(content)
    core(run)
    assert list(parts.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--tasks", "colors"], "no task 'colors' in"),
        (["--limit", "2"], "colours: 2 examples are too few"),
        (["--limit", "0"], "limit must be at least 1, got 0"),
        (["--context", "0"], "context must be at least 2, got 0"),
        (["--schedule", "full_loop"], "name a folder for the results"),
        pytest.param(
            ["--device", "cuda"], "torch finds no CUDA device here", marks=needs.NO_CUDA.mark
        ),
        (["--plain", "--verify-sharing"], "plain shares none"),
        (["--out", "run/checkpoints/step-4"], "lies in a sealed folder"),
        (["--out", "run/checkpoints/step-9/new"], "lies in a sealed folder"),
        (["--out", "data/manifest.json/x"], "is a file, and results go into a folder"),
    ],
)
def test_what_cannot_be_asked_is_refused(run, arguments, named):
    arguments = ["evaluate", "core", "run", "--bundle", BUNDLE, *arguments]
    assert named in refused(*arguments, cwd=run.parent)
    assert not (run / "results").exists()


def test_a_broken_bundle_is_named_before_anything_is_written(run):
    bundle = Path(shutil.copytree(BUNDLE, run.parent / "bundle"))
    file = bundle / "eval_data/made/endings.jsonl"
    file.write_text(file.read_text() + '{"context": "", "continuation": "b"}\n')
    line = refused("evaluate", "core", "run", "--bundle", "bundle", cwd=run.parent)
    assert "endings.jsonl, line 9: context is empty" in line
    file.unlink()
    line = refused("evaluate", "core", "run", "--bundle", "bundle", cwd=run.parent)
    assert "no eval_data/made/endings.jsonl in this bundle" in line
    assert not (run / "results").exists()


def sentencepiece_model(**options):
    model = io.BytesIO()
    lines = (BUNDLE / "core.yaml").read_text().splitlines() * 9
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def test_a_run_without_a_fitting_tokenizer_is_refused(tmp_path):
    (tmp_path / "small.toml").write_text(model_file(vocab_size=300, schedule="no_loop"))
    ask = ("--bundle", BUNDLE)
    mixerloop("init", "small.toml", "--out", "bare", cwd=tmp_path)
    assert "has no tokenizer" in refused("evaluate", "core", "bare", *ask, cwd=tmp_path)
    (tmp_path / "bare.model").write_bytes(sentencepiece_model(vocab_size=60, bos_id=-1))
    mixerloop("init", "small.toml", "--tokenizer", "bare.model", "--out", "no-start", cwd=tmp_path)
    line = refused("evaluate", "core", "no-start", *ask, cwd=tmp_path)
    assert "its tokenizer has no start token" in line
    mixerloop("init", "small.toml", "--tokenizer", "bare.model", "--out", "other", cwd=tmp_path)
    checkpoint = tmp_path / "other/checkpoints/step-0"
    (checkpoint / "tokenizer.model").write_bytes(
        train_tokenizer(Path(__file__).read_text().splitlines(), vocab_size=500)
    )
    seal_folder(checkpoint)
    line = refused("evaluate", "core", "other", *ask, cwd=tmp_path)
    assert "tokenizer.model: " in line
    assert "token ids do not fit the model's 300" in line
    assert not (tmp_path / "other/results").exists()


def test_damaged_answers_are_named(run):
    core(run)
    saved = run / "results/core"
    cut = "".join((saved / "colours.jsonl").read_text().splitlines(keepends=True)[:3])
    for name, content, named in (
        ("settings.json", "null", "holds answers with settings.json that cannot be read"),
        ("colours.work.json", "null", "colours.work.json: not as it was written"),
        ("colours.jsonl", "", "colours.jsonl: not as it was written (no answers)"),
        ("colours.jsonl", "{}\n", "colours.jsonl: not as it was written (line 1"),
        ("colours.jsonl", cut, "3 answers to 8 examples"),
    ):
        whole = (saved / name).read_bytes()
        (saved / name).write_text(content)
        assert named in refused("evaluate", "core", "run", "--bundle", BUNDLE, cwd=run.parent)
        (saved / name).write_bytes(whole)


def test_nll_is_kept_with_every_document(run):
    result = json.loads(
        mixerloop("evaluate", "nll", "run", "--passes", 1, 2, "--json", cwd=run.parent).stdout
    )
    low, value, high = (result["nll"][key] for key in ("lower", "value", "upper"))
    assert low < value < high
    assert result["by_passes"]["2"]["nll"] == result["nll"]
    assert result["by_passes"]["1"]["nll"] != result["nll"]
    assert [one["first"] for one in result["by_position"]] == [0, 1, 2, 4, 8, 16]
    lines = lines_of(run / "results/nll.jsonl")
    assert len(lines) == result["documents"]
    nats, tokens = (sum(line[key] for line in lines) for key in ("nats", "tokens"))
    assert nats / tokens == pytest.approx(value)
    bits = nats / math.log(2) / sum(line["bytes"] for line in lines)
    assert result["bits_per_byte"]["value"] == pytest.approx(bits)
    assert tokens == result["tokens"]
    shown = mixerloop("evaluate", "nll", "run", cwd=run.parent).stdout
    assert "bits per byte" in shown
    assert shown.strip().splitlines()[-1] == "kept in run/results/nll.json"


def test_data_that_does_not_belong_to_the_run_is_refused(run):
    other = run.parent
    (other / "more.txt").write_text("other words " * 50)
    (other / "held.txt").write_text("held out words " * 50)
    mixerloop(
        *("data", "prepare", "text", "more.txt", "--held-out", "held.txt", "--vocab-size", 270),
        *("--out", "other", "--workers", 1),
        cwd=other,
    )
    line = refused("evaluate", "nll", "run", "--data", "other", cwd=other)
    assert "prepare the data with that tokenizer" in line
    assert "this schedule makes 1 to 2" in refused(
        "evaluate", "nll", "run", "--passes", 3, cwd=other
    )
    assert "not a folder of hops" in refused("evaluate", "hops", "run", cwd=other)


def test_compare_pairs_runs_by_example_and_groups_them_by_seed(place):
    names = ["mixer-1", "mixer-2", "full-1"]
    for name in names:
        mixerloop("evaluate", "nll", name, cwd=place)
        mixerloop("evaluate", "core", name, "--bundle", BUNDLE, cwd=place)
    found = json.loads(mixerloop("evaluate", "compare", *names, "--json", cwd=place).stdout)
    assert [(arm["name"], arm["seeds"]) for arm in found["arms"]] == [
        ("2x(A2 F)", [1, 2]),
        ("2x(2x(A F))", [1]),
    ]
    (pair,) = found["pairs"]
    assert pair["seeds"].startswith("2 and 1 seeds")
    for measure in ("core_v1", "core_v2", "nll"):
        difference = pair["measures"][measure]
        assert difference["verdict"] == "one seed: no verdict"
        assert difference["lower"] <= difference["value"] <= difference["upper"]
        assert difference["over"] == "seeds and examples"
    mixer, full = (arm["scores"]["core_v1"] for arm in found["arms"])
    assert pair["measures"]["core_v1"]["value"] == pytest.approx(mixer - full)
    parts = sum(task["contribution"] for task in pair["tasks"].values())
    assert parts == pytest.approx(mixer - full)
    seeds = mixerloop("evaluate", "compare", "mixer-1", "mixer-2", cwd=place).stdout
    assert "mixer-1 minus mixer-2 (one seed each" in seeds
    assert "verdict" in seeds


def test_results_of_another_model_are_not_compared(place, tmp_path):
    for name in ("mixer-1", "full-1"):
        run = Path(shutil.copytree(place / name, tmp_path / name))
        shutil.rmtree(run / "results", ignore_errors=True)
    shutil.copytree(place / "data", tmp_path / "data")
    compare = ("evaluate", "compare", "mixer-1", "full-1")
    assert "nothing to compare yet" in refused(*compare, cwd=tmp_path)
    mixerloop("evaluate", "nll", "mixer-1", cwd=tmp_path)
    mixerloop("evaluate", "nll", "full-1", cwd=tmp_path)
    mixerloop("evaluate", "nll", "mixer-1", "--schedule", "no_loop", "--out", "one", cwd=tmp_path)
    two = json.loads(
        mixerloop("evaluate", "compare", "mixer-1", "one", "--json", cwd=tmp_path).stdout
    )
    assert [arm["name"] for arm in two["arms"]] == ["2x(A2 F)", "2x(A F)"]
    assert two["warnings"] == ["CORE is left out: it was not measured of mixer-1"]
    line = refused("evaluate", "compare", "full-1", "full-1", cwd=tmp_path)
    assert "full-1 and full-1 are the same model" in line
    shutil.copytree(
        tmp_path / "mixer-1/checkpoints/step-0", tmp_path / "mixer-1/checkpoints/step-9"
    )
    assert "its results are not of mixer-1/checkpoints/step-9" in refused(*compare, cwd=tmp_path)
    shutil.rmtree(tmp_path / "mixer-1/checkpoints/step-9")
    documents = tmp_path / "mixer-1/results/nll.jsonl"
    whole = documents.read_text()
    for damaged in (
        whole.replace('"nats": ', '"nats": 1', 1),
        "[]\n" + whole,
        "".join(whole.splitlines(keepends=True)[1:]),
    ):
        documents.write_text(damaged)
        line = refused(*compare, cwd=tmp_path)
        assert "mixer-1/results/nll.jsonl: not as it was written (its sha256" in line
        assert line.endswith("; measure again: mixerloop evaluate nll mixer-1")


@pytest.mark.usefixtures("quick")
def test_hops_are_kept_too(hops_run, tmp_path):
    shutil.copytree(hops_run, tmp_path / "run")
    done = mixerloop("evaluate", "hops", "run", "--sequences", 40, cwd=tmp_path)
    assert done.stdout.strip().splitlines()[-1] == "kept in run/results/hops.json"
    kept = json.loads((tmp_path / "run/results/hops.json").read_text())
    assert [one["hops"] for one in kept["accuracy_by_hop"]] == [1, 2, 3, 4]
    other = mixerloop("evaluate", "hops", "run", "--schedule", "no_loop", cwd=tmp_path).stdout
    assert other.strip().splitlines()[-1].startswith("not kept: not a run, not under its own")
    assert json.loads((tmp_path / "run/results/hops.json").read_text()) == kept
    nll = json.loads(mixerloop("evaluate", "nll", "run", "--json", cwd=tmp_path).stdout)
    assert nll["bits_per_byte"] is None
    assert nll["documents"] == 64


@pytest.mark.parametrize(
    "name",
    ["settings.json", "colours.work.json", "colours.jsonl", "parts/endings-000000-000002.json"],
)
def test_a_flipped_bit_in_saved_answers_is_never_scored(run, name, monkeypatch):
    monkeypatch.setattr(asking, "BLOCK_EXAMPLES", BLOCK_EXAMPLES)
    whole = core(run)
    saved = run / "results/core"
    if name.startswith("parts/"):
        interrupt_in_endings(run, monkeypatch)
    content = (saved / name).read_bytes()
    for at in range(11, 8 * len(content), 8 * len(content) // 6):
        damaged = bytearray(content)
        damaged[at // 8] ^= 1 << at % 8
        (saved / name).write_bytes(damaged)
        line = refused("evaluate", "core", "run", "--bundle", BUNDLE, cwd=run.parent)
        assert name.rpartition("/")[2] in line
    if name != "settings.json":
        (saved / name).unlink()  # as the error says
    else:
        (saved / name).write_bytes(content)
    again = core(run)
    for label, task in whole["tasks"].items():
        assert again["tasks"][label]["accuracy"] == task["accuracy"]


def interrupt_in_endings(run, monkeypatch):
    """Leave the saved answers as a kill in the last task would."""
    for ending in ("jsonl", "work.json"):
        (run / f"results/core/endings.{ending}").unlink()

    def interrupted(folder, label, parts):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AnswerFolder, "_finish", interrupted)
        mixerloop("evaluate", "core", "run", "--bundle", BUNDLE, cwd=run.parent, code=130)


@pytest.mark.parametrize("name", ["colours.jsonl", "parts/x.json"])
def test_a_folder_of_the_user_is_not_filled_with_answers(run, name):
    file = run.parent / "kept/core" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    arguments = ("evaluate", "core", "run", "--bundle", BUNDLE, "--out", "kept")
    said = f"kept/core/{name}: not a file that mixerloop wrote; --overwrite replaces it"
    assert refused(*arguments, cwd=run.parent) == f"mixerloop: {said}"
    assert [path for path in (run.parent / "kept").rglob("*") if path.is_file()] == [file]
    core(run, "--out", "kept", "--overwrite")
    core(run, "--out", "kept")


def test_answers_are_not_written_through_a_link(run):
    core(run)
    saved = run / "results/core"
    (run.parent / "mine").write_text("mine")
    (saved / "colours.jsonl").unlink()
    (saved / "colours.jsonl").symlink_to(run.parent / "mine")
    line = refused("evaluate", "core", "run", "--bundle", BUNDLE, cwd=run.parent)
    assert "run/results/core/colours.jsonl: is a link" in line
    core(run, "--overwrite")
    assert (run.parent / "mine").read_text() == "mine"
