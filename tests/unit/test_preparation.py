"""Words of a study file and of `mixerloop data prepare`, read into typed requests."""

from pathlib import Path

import pytest

from mixerloop.data.preparation import (
    ClimbmixPreparation,
    StdlibPreparation,
    TaskPreparation,
    TextPreparation,
    parse_preparation,
)
from mixerloop.data.tasks.hops import HopsSettings
from mixerloop.data.tasks.registry import TASKS


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        ("hops", TaskPreparation(settings=HopsSettings())),
        ("hops --seed 5", TaskPreparation(settings=HopsSettings(seed=5))),
        ("stdlib --vocab-size 2048", StdlibPreparation(vocab_size=2048)),
        ("stdlib --vocab-size=2048", StdlibPreparation(vocab_size=2048)),
        (
            "text --vocab-size=300 a --held-out=b c",
            TextPreparation(paths=(Path("a"),), held_out=(Path("b"), Path("c")), vocab_size=300),
        ),
        ("stdlib --held-out-share 0.2", StdlibPreparation(held_out_share=0.2)),
        (
            "text a.txt b --held-out c d --vocab-size 300 e",
            TextPreparation(
                paths=(Path("a.txt"), Path("b"), Path("e")),
                held_out=(Path("c"), Path("d")),
                vocab_size=300,
            ),
        ),
        (
            "climbmix --shards 0-9 --from here --tokenizer t.model",
            ClimbmixPreparation(shards="0-9", from_=Path("here"), tokenizer=Path("t.model")),
        ),
    ],
)
def test_words_become_a_typed_request(words, request_):
    assert parse_preparation(words.split()) == request_


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", f"'' makes no data; known: {', '.join(TASKS)}, stdlib, text, climbmix"),
        ("hopps", "'hopps' makes no data; did you mean hops?"),
        ("stdlib --vocab-sise 3", "unknown option --vocab-sise; did you mean --vocab-size?"),
        ("stdlib --vocab-size", "--vocab-size needs a value"),
        ("stdlib --vocab-size many", "--vocab-size many: not a valid int"),
        ("stdlib --workers 1 --workers 2", "--workers is given twice"),
        ("stdlib here", "'here' belongs to no option"),
        ("hops --num-nodes 7 8", "'8' belongs to no option"),
        ("hops --num-nodes 1", "hops.num_nodes must be from 2"),
        ("stdlib --out x", "unknown option --out"),
    ],
)
def test_words_without_meaning_are_rejected(words, named):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_preparation(words.split())
    assert named in str(caught.value)


def test_a_task_decides_the_context_and_a_text_does_not():
    assert parse_preparation(["hops"]).context == 39
    assert parse_preparation(["hops", "--num-nodes", "7"]).context == 37
    assert parse_preparation(["stdlib"]).context is None
