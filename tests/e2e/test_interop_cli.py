"""Export, import and lm-eval as a user runs them, offline."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece

import needs
from command_line import mixerloop, refused
from mixerloop.data.sentencepiece_tokenizer import SentencePieceTokenizer, train_tokenizer
from small_model import model_file

TASKS = {
    "two_words": {
        **{"output_type": "multiple_choice", "doc_to_text": "{{question}}"},
        **{"doc_to_choice": "{{choices}}", "doc_to_target": "answer"},
        "metric_list": [{"metric": "acc"}],
    },
    "whole_text": {
        **{"output_type": "loglikelihood_rolling", "doc_to_text": ""},
        **{"doc_to_target": "{{question}}", "metric_list": [{"metric": "bits_per_byte"}]},
    },
    "going_on": {
        **{"output_type": "generate_until", "doc_to_text": "{{question}}"},
        **{"doc_to_target": " day", "metric_list": [{"metric": "exact_match"}]},
        "generation_kwargs": {"until": [", and"], "max_gen_toks": 12},
    },
}
LIKELIHOODS_AGREE = 3e-5  # four units in the last place of a float32 near 100


def texts():
    return [f"the {word} sat on the {word}, and {word} was it all day" * 3 for word in WORDS]


WORDS = ("cat", "dog", "hat", "mat", "frog", "log", "bird", "wheel", "house", "stone")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("interop")
    model = train_tokenizer(iter(texts()), vocab_size=300)
    (place / "words.model").write_bytes(model)
    (place / "small.toml").write_text(model_file(vocab_size=300, schedule="mixer_loop(2)"))
    mixerloop("init", "small.toml", "--tokenizer", "words.model", "--out", "run", cwd=place)
    mixerloop("init", "small.toml", "--out", "wordless", cwd=place)
    mixerloop("export", "wordless", "--to", "hf", "--out", "wordless-hf", cwd=place)
    return place


@pytest.fixture(scope="module")
def exported(place):
    """The same place, where the run with a tokenizer is exported too."""
    needs.package("transformers").or_skip()
    mixerloop("export", "run", "--to", "hf", "--out", "hf", cwd=place)
    return place


def test_an_exported_folder_goes_wherever_a_run_does_and_back(exported):
    place = exported
    mixerloop("import", "hf", "--out", "back", cwd=place)
    first, second = (place / name / "checkpoints" / "step-0" for name in ("run", "back"))
    for name in ("model.safetensors", "tokenizer.model"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    options = ("--prompt", "the cat", "--max-tokens", 5, "--seed", 1, "--json")
    found = [
        json.loads(mixerloop("generate", name, *options, cwd=place).stdout)["tokens"]
        for name in ("run", "hf")
    ]
    assert found[0] == found[1]
    stories = "".join(json.dumps({"text": text}) + "\n" for text in texts() * 20)
    (place / "stories.jsonl").write_text(stories)
    mixerloop(
        *("data", "prepare", "text", "stories.jsonl", "--tokenizer", "words.model"),
        *("--held-out-share", 0.2, "--workers", 1, "--out", "data"),
        cwd=place,
    )
    for verb, more, compared in (
        (("evaluate", "nll"), (), ("nll", "bits_per_byte")),
        (("transport",), ("--windows", 4, "--positions", 4), ("itr", "target_gain", "layers")),
    ):
        options = ("--data", "data", "--context", 16, *more, "--json")
        found = [
            json.loads(mixerloop(*verb, name, *options, cwd=place).stdout) for name in ("run", "hf")
        ]
        for key in compared:
            assert found[0][key] == found[1][key]
    shape = ("--windows", 2, "--context", 16, "--positions", 2, "--repeats", 1, "--json")
    for name in ("run", "hf"):
        timed = mixerloop("bench", "transport", "--size", name, *shape, cwd=place)
        assert json.loads(timed.stdout)["size"] == name
    uniform = mixerloop("evaluate", "nll", "hf", "--data", "no-data", cwd=place, code=2).stderr
    assert "no-data" in uniform


TRICKY = (
    *("the cat sat", " the  cat", "a\nb\n\n c", "h\u00e9llo \u2713 \u65e5\u672c"),
    *("", "  ", "tab\there", "<s> the </s>", "def f(x):\n    return x", "\u2581the"),
)


def test_the_tokenizer_of_transformers_gives_our_ids(exported):
    transformers = needs.module("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(exported / "hf")
    ours = SentencePieceTokenizer(exported / "hf" / "tokenizer.model")
    for text in TRICKY:
        assert theirs.encode(text) == ours.encode(text)
        shown = theirs.decode(theirs.encode(text), skip_special_tokens=True)
        assert shown == ours.decode(ours.encode(text))


@needs.package("transformers").mark
def test_a_tokenizer_that_transformers_would_read_otherwise_is_refused(place):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts()),
        model_writer=model,
        model_type="unigram",
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (place / "unigram.model").write_bytes(model.getvalue())
    mixerloop("init", "small.toml", "--tokenizer", "unigram.model", "--out", "other", cwd=place)
    named = refused("export", "other", "--out", "x", cwd=place)
    assert "the tokenizer cannot be exported" in named
    assert not (place / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["export", "nowhere", "--out", "x"], "nowhere"),
        (["export", "run", "--out", "wordless"], "wordless already exists"),
        (["import", "run", "--out", "x"], "run: no config.json"),
        (
            ["import", "wordless-hf", "--schedule", "mixr_loop", "--out", "x"],
            "did you mean mixer_loop?",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused(place, arguments, named):
    assert named in refused(*arguments, cwd=place)
    assert not (place / "x").exists()


def documented(run):
    """The words after `python` of the command in the documentation, for our three tasks."""
    page = (Path(__file__).parents[2] / "docs/interop.md").read_text().replace("\n", " ")
    (command,) = re.findall(r"`python (-m mixerloop\.interop\.lm_eval [^`]*)`", page)
    return command.replace("RUN", run).replace("TASK", ",".join(TASKS)).split()


def lm_eval(place, out, *command):
    environment = {
        **{name: os.environ[name] for name in ("PATH",)},
        "OMP_NUM_THREADS": "1",
        "HOME": str(place),
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    files = ("--include_path", "tasks", "--output_path", out, "--log_samples")
    done = subprocess.run(
        [sys.executable, *command, *files],
        cwd=place,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = {}
    for task in TASKS:
        (path,) = (place / out).rglob(f"samples_{task}_*.jsonl")
        samples = [json.loads(line) for line in path.read_text().splitlines()]
        found[task] = {one["doc_id"]: one["resps"] for one in samples}
    return found


@needs.package("lm_eval").mark
@pytest.mark.parametrize(
    ("options", "device"),
    [([], "auto"), (["--device", "cuda:0"], "cuda:0"), (["--device", "cpu"], "cpu")],
)
def test_the_documented_command_of_lm_eval_needs_no_device(options, device, tmp_path, monkeypatch):
    adapter = needs.module("mixerloop.interop.lm_eval")
    write_tasks(tmp_path)
    chosen = []
    simple_evaluate = "lm_eval.simple_evaluate"
    monkeypatch.setattr(simple_evaluate, lambda *, device, **_: chosen.append(device))
    monkeypatch.setattr(adapter, "run_program", lambda work: work())  # signals stay the tests' own
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    words = documented("run")[1:]
    monkeypatch.setattr(sys, "argv", [*words, "--include_path", "tasks", *options])
    adapter.main()
    assert chosen == [device]


@needs.package("lm_eval").mark
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run=run,foo=3", "unknown argument foo; known: run, schedule, compute_dtype, max_length"),
        ("run=run,shedule=no_loop", "unknown argument shedule; did you mean schedule?"),
        ("schedule=no_loop", "name a run, as run=RUN"),
        ("run=run,schedule=mixr_loop", "did you mean mixer_loop?"),
        ("run=7", "7: there is no such run"),
    ],
)
def test_lm_eval_is_told_what_is_wrong_with_its_arguments(arguments, said, place, monkeypatch):
    monkeypatch.chdir(place)
    model = needs.module("mixerloop.interop.lm_eval").MixerLoopLM
    with pytest.raises(ValueError) as error:  # noqa: PT011
        model.create_from_arg_string(arguments, {"device": "cpu", "batch_size": 1})
    assert said in str(error.value)


@pytest.mark.slow
@needs.package("lm_eval").mark
def test_lm_eval_gives_one_score_both_ways(exported):
    check_lm_eval(exported)


@pytest.mark.nightly
@pytest.mark.data
@needs.package("lm_eval").mark
@needs.RELEASED.mark
def test_lm_eval_gives_one_score_both_ways_with_the_published_tokenizer(tmp_path):
    tokenizer = Path(os.environ[needs.RELEASED_VARIABLE]) / "tokenizer.model"
    sizes = model_file(vocab_size=32_000, schedule="mixer_loop(2)")
    (tmp_path / "small.toml").write_text(sizes)
    mixerloop("init", "small.toml", "--tokenizer", tokenizer, "--out", "run", cwd=tmp_path)
    mixerloop("export", "run", "--to", "hf", "--out", "hf", cwd=tmp_path)
    check_lm_eval(tmp_path)


def write_tasks(place):
    (place / "tasks").mkdir()
    rows = [
        {
            "question": f"the {one} sat on the {one}, and",
            "choices": [f" {word}" for word in (one, "wheel of stone", other)],
            "answer": number % 3,
        }
        for number, (one, other) in enumerate(zip(WORDS, reversed(WORDS), strict=True))
    ]
    data = place / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, task in TASKS.items():
        source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
        whole = {"task": name, "test_split": "test", **source, **task}
        (place / "tasks" / f"{name}.yaml").write_text(json.dumps(whole))  # JSON is YAML


def check_lm_eval(place):
    """A run and its folder by our adapter, and the folder by lm-eval's own, answer alike."""
    write_tasks(place)
    ours = lm_eval(place, "ours", *documented("run"))
    folder = lm_eval(place, "folder", *documented("hf"), "--device", "cpu", "--batch_size", "2")
    command = " ".join(documented("hf")).replace("--model mixerloop", "--model hf")
    command = command.replace("run=hf", "pretrained=hf").split()
    theirs = lm_eval(place, "theirs", *command, "--device", "cpu", "--batch_size", "2")
    assert ours == folder
    assert ours["going_on"] == theirs["going_on"]
    assert any(text for answers in ours["going_on"].values() for (text,) in answers)
    for task in ("two_words", "whole_text"):
        for number, answers in ours[task].items():
            for one, other in zip(answers, theirs[task][number], strict=True):
                found, wanted = log_likelihood(one), log_likelihood(other)
                assert found == pytest.approx(wanted, rel=0, abs=LIKELIHOODS_AGREE)


def log_likelihood(answer):
    """Of a logged answer: a number, or a number and whether it is greedy, as text."""
    (answer,) = answer if isinstance(answer, list) and len(answer) == 1 else (answer,)
    return float(answer[0]) if isinstance(answer, list) else float(answer)
