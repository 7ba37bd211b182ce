"""Tokenizers in a tokenizer.json: the ids of transformers, and the rules of all tokenizers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import needs
from json_tokenizers import TEXTS, byte_level_bpe, template, write_json_tokenizer
from mixerloop.data.json_tokenizer import JsonTokenizer
from mixerloop.data.sentencepiece_tokenizer import SentencePieceTokenizer, train_tokenizer
from mixerloop.data.tokenizer import UNFINISHED, TextStream
from mixerloop.data.tokenizer_files import open_tokenizer, tokenizer_in

BOTH = {"bos_token": "<s>", "eos_token": "</s>"}
CHARACTERS = st.text(st.characters(exclude_categories=["Cs"]))
PIECES = st.lists(st.sampled_from(["the", " cat", "<s>", "</s>", "\n", "  ", "\u65e5", "e\u0301"]))
ANY_TEXT = CHARACTERS | PIECES.map("".join)


@pytest.fixture(scope="session")
def content():
    return byte_level_bpe()


@pytest.fixture(scope="session")
def folder(content, tmp_path_factory):
    return write_json_tokenizer(
        tmp_path_factory.mktemp("tokenizer"), content, tokenizer_config=BOTH
    )


@pytest.fixture(scope="session")
def tokenizer(folder):
    return open_tokenizer(folder)


@pytest.fixture(scope="session")
def theirs(tokenizer, tmp_path_factory):
    """The tokenizer of transformers, from the files that our folders keep."""
    kept = tmp_path_factory.mktemp("kept")
    for name, content in tokenizer.files.items():
        (kept / name).write_bytes(content)
    return needs.module("transformers").AutoTokenizer.from_pretrained(kept)


@given(text=ANY_TEXT)
def test_any_text_comes_back_after_the_start_token(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_id == 0
    assert not {tokenizer.bos_id, tokenizer.eos_id} & set(ids[1:])
    assert tokenizer.decode(ids) == text


@given(text=ANY_TEXT)
def test_transformers_gives_the_same_ids(tokenizer, theirs, text):
    ids = tokenizer.encode(text)
    assert theirs.encode(text) == ids
    assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("configs", "start", "end"),
    [
        ({}, -1, -1),
        ({"tokenizer_config": BOTH}, 0, 1),
        ({"tokenizer_config": {"bos_token": {"content": "</s>", "lstrip": False}}}, 1, -1),
        ({"tokenizer_config": BOTH | {"add_bos_token": True}}, 0, 1),
        ({"tokenizer_config": BOTH | {"add_bos_token": False}}, -1, 1),
        ({"tokenizer_config": {"bos_token": None}, "config": {"bos_token_id": 0}}, -1, -1),
        ({"tokenizer_config": {"model_max_length": 9}, "config": {"bos_token_id": 0}}, 0, -1),
        ({"config": {"bos_token_id": 0, "eos_token_id": [1, 0]}}, 0, 1),
        ({"config": {"bos_token_id": None}, "generation_config": {"bos_token_id": 1}}, 1, -1),
        ({"tokenizer_config": BOTH, "config": {"bos_token_id": 5, "eos_token_id": 6}}, 0, 1),
    ],
)
def test_start_and_end_tokens_are_named_by_the_files_of_transformers(
    content, tmp_path, configs, start, end
):
    tokenizer = open_tokenizer(write_json_tokenizer(tmp_path, content, **configs))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (start, end)
    assert (tokenizer.encode("cat")[0] == start) == (start >= 0)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"tokenizer_config": {"bos_token": "<start>"}}, "bos_token '<start>' is not a token of"),
        ({"tokenizer_config": {"eos_token": 3}}, "eos_token is not a text: 3"),
        ({"tokenizer_config": []}, "tokenizer_config.json: not an object"),
        ({"config": {"bos_token_id": 290}}, "bos_token_id 290 is not a token of"),
        ({"config": {"bos_token_id": -1}}, "bos_token_id -1 is not a token of"),
        ({"config": {"bos_token_id": 2**70}}, "is not a token of"),
        ({"config": {"eos_token_id": "</s>"}}, "config.json: eos_token_id is not a token id"),
        ({"generation_config": {"eos_token_id": [True]}}, "eos_token_id is not a token id: True"),
    ],
)
def test_a_start_or_end_token_that_is_none_is_rejected(content, tmp_path, configs, message):
    with pytest.raises(ValueError, match=r"config\.json: ") as raised:
        open_tokenizer(write_json_tokenizer(tmp_path, content, **configs))
    assert message in str(raised.value)


def test_the_start_token_of_the_template_is_added_once(content, tmp_path):
    with_template = content | {"post_processor": template(before="<s>")}
    for configs in ({}, {"tokenizer_config": BOTH}):
        tokenizer = open_tokenizer(write_json_tokenizer(tmp_path, with_template, **configs))
        assert tokenizer.encode("the cat").count(0) == 1
    none = {"tokenizer_config": {"bos_token": None}}
    assert open_tokenizer(write_json_tokenizer(tmp_path, with_template, **none)).bos_id == -1


def test_a_file_with_another_name_stands_alone(folder, content):
    (folder / "other.json").write_text(json.dumps(content))
    assert open_tokenizer(folder / "other.json").bos_id == -1
    assert open_tokenizer(folder / "tokenizer.json").bos_id == 0


def test_control_tokens_and_unused_ids_decode_to_nothing(content, tmp_path):
    plain = content | {"added_tokens": []}  # the start token is a piece like any other
    plain["model"] = content["model"] | {"vocab": content["model"]["vocab"] | {"far": 400}}
    folder = write_json_tokenizer(tmp_path, plain, tokenizer_config={"bos_token": "<s>"})
    tokenizer = open_tokenizer(folder)
    assert tokenizer.vocab_size == 401
    assert tokenizer.decode([0, *tokenizer.encode("the <s> cat"), 350, 0, 400]) == "the <s> catfar"
    with pytest.raises(ValueError, match="token id 401 is outside the tokenizer's 401"):
        tokenizer.decode([401])


@pytest.mark.parametrize("prompt", ["", "the cat", "\u6f22"])
def test_a_stream_shows_characters_when_their_last_byte_has_arrived(tokenizer, prompt):
    text = " the \u6f22\u5b57 cat \u2603 \U0001f469\u200d\U0001f467 sat"
    start = tokenizer.encode(prompt)
    stream = TextStream(tokenizer, start)
    shown = [stream.push(token) for token in tokenizer.encode(text)[1:]]
    assert "" in shown
    assert UNFINISHED not in "".join(shown)
    assert "".join(shown) == text


def test_limits_and_padding_of_the_file_are_not_used(content, tokenizer, tmp_path):
    limits = {
        "truncation": {
            **{"direction": "Right", "max_length": 3},
            **{"strategy": "LongestFirst", "stride": 0},
        },
        "padding": {
            **{"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None},
            **{"pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"},
        },
    }
    limited = open_tokenizer(
        write_json_tokenizer(tmp_path, content | limits, tokenizer_config=BOTH)
    )
    assert limited.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])


def test_texts_together_have_the_tokens_of_each_alone(tokenizer):
    texts = [f"{text} {number}" for number in range(200) for text in TEXTS]
    together = tokenizer.encode_all(texts)
    assert together == tokenizer.encode_all(texts) == [tokenizer.encode(text) for text in texts]


def test_a_forked_process_encodes_without_a_warning(folder):
    script = (
        "import os, sys\n"
        "from mixerloop.data.tokenizer_files import open_tokenizer\n"
        f"tokenizer = open_tokenizer({str(folder)!r})\n"
        "before = tokenizer.encode_all(['the cat'] * 64)\n"
        "process = os.fork()\n"
        "if process == 0:\n"
        "    os._exit(tokenizer.encode_all(['the cat'] * 64) != before)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_text_that_is_no_text_is_rejected(tokenizer):
    with pytest.raises(ValueError, match="the text is not valid UTF-8"):
        tokenizer.encode("\udcff")


def bad_model(**changes):
    return lambda content: content | {"model": content["model"] | changes}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: {}, "not a usable tokenizer.json: Model missing"),
        (lambda content: [], "not a usable tokenizer.json: invalid type"),
        (lambda content: content | {"version": "2.0"}, "Unknown tokenizer version"),
        (bad_model(merges=[["zz", "qq"]]), "out of vocabulary"),
        (
            lambda content: bad_model(vocab={}, merges=[])(content) | {"added_tokens": []},
            "this tokenizer has no tokens",
        ),
        (bad_model(dropout=0.1), "its dropout gives a text other tokens each time"),
        (
            lambda content: (
                content | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}
            ),
            "Cannot parse precompiled_charsmap",  # a panic
        ),
        (
            lambda content: content | {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
            "chunk size must be non-zero",  # a panic when a text is encoded
        ),
    ],
)
def test_a_damaged_file_is_named_in_one_line(content, tmp_path, capfd, damage, message):
    path = write_json_tokenizer(tmp_path, damage(content)) / "tokenizer.json"
    with pytest.raises(ValueError, match=r"tokenizer\.json: ") as raised:
        open_tokenizer(path)
    line = str(raised.value)
    assert line.startswith(f"{path}: ")
    assert message in line
    assert "\n" not in line
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe{}", b'{"model": ' + b"[" * 100_000])
def test_a_file_that_is_not_json_is_named(content, tmp_path, text):
    (tmp_path / "mine.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"mine\.json: not a"):
        open_tokenizer(tmp_path / "mine.json")


def test_the_kept_files_are_the_same_tokenizer(folder, tokenizer, tmp_path):
    for name, content in tokenizer.files.items():
        (tmp_path / name).write_bytes(content)
    kept = tokenizer_in(tmp_path)
    assert kept is not None
    assert kept.fingerprint == tokenizer.fingerprint
    assert kept.files == tokenizer.files


@pytest.mark.parametrize("has_start", [False, True])
@pytest.mark.parametrize("has_template", [False, True])
def test_only_a_template_without_our_start_token_is_replaced(
    content, tmp_path, has_start, has_template
):
    changed = {"post_processor": template(before="<s>") if has_template else None}
    config = {"bos_token": "<s>" if has_start else None}
    folder = write_json_tokenizer(tmp_path, content | changed, tokenizer_config=config)
    given, kept = (folder / "tokenizer.json").read_bytes(), open_tokenizer(folder).files
    assert (kept["tokenizer.json"] == given) == (has_start == has_template)
    assert json.loads(kept["tokenizer.json"])["model"] == content["model"]


def test_the_fingerprint_covers_the_start_token(folder, tokenizer, content, tmp_path):
    other = write_json_tokenizer(tmp_path, content, tokenizer_config={"eos_token": "</s>"})
    assert open_tokenizer(other).fingerprint != tokenizer.fingerprint


@pytest.fixture(scope="session")
def model():
    return train_tokenizer(TEXTS * 20, vocab_size=280)


def test_the_kind_of_a_file_is_decided_by_its_suffix_or_else_by_its_content(
    content, model, tmp_path
):
    (tmp_path / "first").write_text(f"\n {json.dumps(content)}")
    (tmp_path / "second.txt").write_bytes(model)
    assert isinstance(open_tokenizer(tmp_path / "first"), JsonTokenizer)
    assert isinstance(open_tokenizer(str(tmp_path / "second.txt")), SentencePieceTokenizer)
    with pytest.raises(ValueError, match="third: there is no such file"):
        open_tokenizer(tmp_path / "third")


def test_two_tokenizers_in_one_folder_are_rejected_but_for_a_conversion(model, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(model)
    (tmp_path / "tokenizer.json").write_text("{}")
    named = "has two tokenizers, tokenizer.model and tokenizer.json; remove the wrong file"
    with pytest.raises(ValueError, match=named):
        open_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")  # a folder of transformers
    assert isinstance(open_tokenizer(tmp_path), SentencePieceTokenizer)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"neither tokenizer\.model nor tokenizer\.json"):
        open_tokenizer(tmp_path)
