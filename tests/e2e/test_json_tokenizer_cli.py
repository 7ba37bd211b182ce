"""A tokenizer.json from prepared data to transformers and back, as a user runs the verbs."""

import json
from pathlib import Path

import pytest

import needs
from command_line import mixerloop, refused
from json_tokenizers import byte_level_bpe, write_json_tokenizer
from mixerloop.data.prepared import open_prepared
from mixerloop.data.tokenizer_files import open_tokenizer
from small_model import training_file

BUNDLE = Path(__file__).parents[1] / "data" / "core_bundle"
WORDS = ("cat", "dog", "hat", "mat", "frog", "log", "bird", "wheel", "house", "\u6f22\u5b57")
TEXTS = [f"the {one} sat on the {two}, all day" for one in WORDS for two in WORDS]
TRICKY = ("the cat", " <s> the </s>", "", "a\n\n b", "h\u00e9llo \u65e5\u672c \U0001f600")
NAMES = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of transformers with a tokenizer, data made with it, and a run trained on it."""
    place = tmp_path_factory.mktemp("json-tokenizer")
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    write_json_tokenizer(place / "theirs", byte_level_bpe(TEXTS), tokenizer_config=names)
    (place / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    prepare(place, "theirs", "data")
    train = {"steps": 3, "warmup_steps": 1}
    config = training_file(
        "data", context=16, train=train, vocab_size=300, schedule="mixer_loop(2)"
    )
    (place / "small.toml").write_text(config)
    mixerloop("train", "small.toml", "--out", "run", cwd=place)
    return place


def prepare(place, tokenizer, out):
    mixerloop(
        *("data", "prepare", "text", "texts.jsonl", "--tokenizer", tokenizer),
        *("--held-out-share", 0.2, "--workers", 1, "--out", out),
        cwd=place,
    )


def as_json(place, *arguments):
    return json.loads(mixerloop(*arguments, "--json", cwd=place).stdout)


def kept(folder):
    return {name: (folder / name).read_bytes() for name in NAMES}


def test_data_and_checkpoints_keep_the_sealed_tokenizer(place):
    data, checkpoint = place / "data", place / "run/checkpoints/step-3"
    assert kept(data) == kept(checkpoint)
    for folder in (data, checkpoint):
        assert json.loads((folder / "contents.json").read_text())["files"].keys() >= set(NAMES)
    prepared = open_prepared(data)
    tokenizer = open_tokenizer(place / "theirs")
    assert prepared.vocabulary.tokenizer_sha256 == tokenizer.fingerprint
    assert set(prepared.samples(3, characters=80)["train"]) <= set(TEXTS)
    mixerloop("data", "verify", "data", cwd=place)


@pytest.mark.parametrize("source", ["theirs/tokenizer.json", "run", "run/checkpoints/step-3"])
def test_data_made_with_the_tokenizer_of_a_run_is_the_same_data(place, tmp_path, source):
    prepare(place, place / source, tmp_path / "data")
    first, second = (open_prepared(folder) for folder in (place / "data", tmp_path / "data"))
    assert first.fingerprint == second.fingerprint


def test_a_trained_run_is_measured_and_writes_text(place):
    assert as_json(place, "evaluate", "nll", "run")["tokens"] > 100
    options = ("--windows", 2, "--positions", 2, "--context", 16)
    assert as_json(place, "transport", "run", "--data", "data", *options)["layers"]
    mixerloop("evaluate", "core", "run", "--bundle", BUNDLE, "--limit", 3, cwd=place)
    written = as_json(place, "generate", "run", "--prompt", "the \u6f22", "--max-tokens", 8)
    tokenizer = open_tokenizer(place / "run")
    ends = (tokenizer.bos_id, tokenizer.eos_id)
    ids = [token for token in written["tokens"] if token not in ends]
    assert written["prompt_tokens"] == len(tokenizer.encode("the \u6f22"))
    assert written["text"] == tokenizer.decode(ids)


@needs.package("transformers").mark
def test_an_exported_run_has_the_same_ids_in_transformers_and_comes_back(place, tmp_path):
    exported, back = tmp_path / "hf", tmp_path / "back"
    mixerloop("export", "run", "--to", "hf", "--out", exported, cwd=place)
    assert kept(exported) == kept(place / "data")
    assert not (exported / "tokenizer.model").exists()
    ours = open_tokenizer(exported)
    theirs = needs.module("transformers").AutoTokenizer.from_pretrained(exported)
    for text in (*TRICKY, *TEXTS[:5]):
        assert theirs.encode(text) == ours.encode(text)
        assert theirs.decode(ours.encode(text), skip_special_tokens=True) == text
    config = json.loads((exported / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, [1, 0])
    mixerloop("import", exported, "--out", back, cwd=place)
    assert kept(back / "checkpoints/step-0") == kept(place / "data")
    options = ("--data", "data", "--context", 16)
    scores = [as_json(place, "evaluate", "nll", run, *options)["nll"] for run in ("run", exported)]
    assert scores[0] == scores[1]


@needs.package("lm_eval").mark
def test_lm_eval_reads_the_tokenizer_of_a_run(place):
    model = needs.module("mixerloop.interop.lm_eval").MixerLoopLM(run=str(place / "run"))
    tokenizer = open_tokenizer(place / "run")
    for text in TRICKY:
        assert model.tok_encode(text) == tokenizer.encode(text)
        assert model.tok_encode(text, add_special_tokens=False) == tokenizer.encode(text)[1:]
    assert (model.prefix_token_id, model.eot_token_id) == (0, 1)
    assert model.tokenizer_name == tokenizer.fingerprint


def test_a_fresh_run_takes_the_tokenizer_of_a_folder(place, tmp_path):
    for name, source in (("first", "theirs"), ("second", "run"), ("third", "data")):
        command = ("init", "small.toml", "--tokenizer", source, "--out", tmp_path / name)
        mixerloop(*command, cwd=place)
        assert kept(tmp_path / name / "checkpoints/step-0") == kept(place / "data")


def test_data_of_another_tokenizer_is_rejected(place, tmp_path):
    other = {"bos_token": "</s>", "eos_token": "</s>"}
    tokenizer = json.loads((place / "theirs/tokenizer.json").read_text())
    write_json_tokenizer(tmp_path / "other", tokenizer, tokenizer_config=other)
    prepare(place, tmp_path / "other", tmp_path / "data")
    line = refused("evaluate", "nll", "run", "--data", tmp_path / "data", cwd=place)
    assert "prepare the data with that tokenizer" in line


def test_a_hostile_or_second_tokenizer_gives_one_line(place, tmp_path):
    hostile = json.loads((place / "theirs/tokenizer.json").read_text())
    hostile["pre_tokenizer"] = {"type": "FixedLength", "length": 0}  # the package panics
    write_json_tokenizer(tmp_path / "bad", hostile)
    for verb in (
        ("init", "small.toml", "--tokenizer"),
        ("data", "prepare", "text", "texts.jsonl", "--tokenizer"),
    ):
        line = refused(*verb, tmp_path / "bad", "--out", tmp_path / "new", cwd=place)
        assert "bad/tokenizer.json: not a usable tokenizer.json: " in line
        assert not (tmp_path / "new").exists()
    prepare(place, "theirs", tmp_path / "data")
    (tmp_path / "data/tokenizer.model").write_bytes(b"second")
    line = refused("data", "show", tmp_path / "data", cwd=place)
    assert "has two tokenizers, tokenizer.model and tokenizer.json" in line


def test_a_changed_start_token_is_named(place, tmp_path):
    prepare(place, "theirs", tmp_path / "data")
    path = tmp_path / "data/tokenizer_config.json"
    path.write_text(path.read_text().replace('"<s>"', '"</s>"'))
    for verb in (("data", "verify"), ("init", "small.toml", "--out", "new", "--tokenizer")):
        line = refused(*verb, tmp_path / "data", cwd=place)
        assert "tokenizer_config.json: damaged" in line
