"""Where the answers of CORE are kept, and which of them are used again."""

import json
from dataclasses import replace

import pytest

from mixerloop.evaluation.core.answer_folder import SETTINGS, AnswerFolder
from mixerloop.evaluation.core.core_result import CoreSettings
from mixerloop.files import read_sealed

SETTINGS_NOW = CoreSettings(
    checkpoint="c",
    schedule="A F",
    compute_dtype="float32",
    forms={"rms_norm": "native"},
    device="cpu",
    tokenizer="t",
    bundle="b",
    context=64,
    limit=None,
    plain=False,
)


def test_answers_of_version_0_1_0_are_asked_again(tmp_path):
    """Their settings do not name the forms of the operators, so they cannot be compared."""
    folder = AnswerFolder(tmp_path)
    folder.open(SETTINGS_NOW, (), replace=False)
    written = read_sealed(tmp_path / SETTINGS)
    old = {key: value for key, value in written.items() if key != "forms"}
    (tmp_path / SETTINGS).write_text(json.dumps(old | {"implementation": "native"}))
    folder.open(SETTINGS_NOW, (), replace=False)
    assert read_sealed(tmp_path / SETTINGS) == written
    with pytest.raises(ValueError, match="holds answers with context 64, not 32"):
        folder.open(replace(SETTINGS_NOW, context=32), (), replace=False)
