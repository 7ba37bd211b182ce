"""Answers of a bundle that a file corrects."""

import json
import os
from pathlib import Path

import pytest

import needs
from mixerloop.evaluation.core.bundle import VARIABLE, Bundle
from mixerloop.evaluation.core.corrections import question_hash, read_corrections
from mixerloop.evaluation.core.tasks import LanguageModeling

BUNDLE = Path(__file__).parents[1] / "data" / "core_bundle"
NO_QUESTION = "0" * 16


@pytest.fixture
def bundle():
    return Bundle(BUNDLE)


def examples_of(bundle, label):
    return bundle.examples(bundle.choose((label,))[0])


def written(path, gold, **keys):
    path.write_text(json.dumps({"about": "made up", "gold": gold} | keys))
    return path


def test_a_corrected_answer_is_scored_and_all_others_stay(bundle, tmp_path):
    before = {label: examples_of(bundle, label) for label in ("colours", "pronouns")}
    gold = {}
    for label, examples in before.items():
        assert not isinstance(examples[1], LanguageModeling)
        gold[label] = {question_hash(examples[1]): (examples[1].gold + 1) % 2}
    corrections = read_corrections(written(tmp_path / "a.json", gold))
    assert bundle.correct(corrections) == {"colours": 1, "pronouns": 1}
    for label, examples in before.items():
        changed = [a != b for a, b in zip(examples, examples_of(bundle, label), strict=True)]
        assert changed == [False, True] + [False] * 6
    assert bundle.fingerprint() == Bundle(BUNDLE).fingerprint()


@pytest.mark.parametrize(
    ("gold", "message"),
    [
        ({}, "gold holds no answer"),
        ({"colours": {}}, "gold holds no answer"),
        ({"colors": {NO_QUESTION: 1}}, "no task 'colors' in .*did you mean colours"),
        ({"colours": {NO_QUESTION: 1}}, f"{NO_QUESTION} corrects nothing: the bundle has no such"),
        ({"colours": {"first": 99}}, "= 99, and there are 4"),
        ({"colours": {"first": "same"}}, "corrects nothing: .* or has this answer already"),
        ({"colours": {"first": "b"}}, "not an instance of int"),
        ({"endings": {"first": 0}}, "corrects nothing"),
        ([], "gold must be a table"),
    ],
)
def test_an_entry_that_corrects_nothing_is_rejected(bundle, tmp_path, gold, message):
    for label, of_task in gold.items() if isinstance(gold, dict) else ():
        if "first" in of_task:
            first = examples_of(bundle, label)[0]
            index = of_task.pop("first")
            if index == "same":
                assert not isinstance(first, LanguageModeling)
                index = first.gold
            of_task[question_hash(first)] = index
    with pytest.raises(ValueError, match=message):
        bundle.correct(read_corrections(written(tmp_path / "a.json", gold)))


def test_an_unknown_key_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"a\.json: unknown key golds"):
        read_corrections(written(tmp_path / "a.json", {}, golds={}))


@pytest.mark.data
@needs.BUNDLE.mark
def test_the_public_bundle_still_has_the_wrong_answer_that_the_documentation_names():
    examples = examples_of(Bundle(Path(os.environ[VARIABLE])), "arc_easy")
    assert not isinstance(examples[14], LanguageModeling)
    assert (question_hash(examples[14]), examples[14].gold) == ("e7e6d3c3d7d967bf", 2)
