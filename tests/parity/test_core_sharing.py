"""The real tasks, scored with shared prefixes and without."""

import dataclasses
import os
from pathlib import Path

import pytest

import needs
from mixerloop.data.sentencepiece_tokenizer import SentencePieceTokenizer, train_tokenizer
from mixerloop.evaluation.core.asking import answers, asked
from mixerloop.evaluation.core.bundle import VARIABLE, Bundle
from mixerloop.evaluation.core.prompts import prompts
from mixerloop.evaluation.looped_scorer import LoopedScorer
from mixerloop.model.initialization import fresh_model
from small_model import small_config

EXAMPLES = 50
VOCAB = 2000
LEAST_SAVED = 3.0  # on the multiple-choice tasks that are not cropped, taken together


@pytest.mark.data
@pytest.mark.slow
@needs.BUNDLE.mark
def test_sharing_changes_no_decision_and_saves_most_tokens(tmp_path):
    bundle = Bundle(Path(os.environ[VARIABLE]))
    tasks = [asked(bundle, task, limit=EXAMPLES) for task in bundle.tasks]
    texts = (
        text
        for one in tasks
        for example in one.examples
        for text in prompts(example, shots=[], delimiter=" ")
    )
    (tmp_path / "tokenizer.model").write_bytes(train_tokenizer(texts, vocab_size=VOCAB))
    tokenizer = SentencePieceTokenizer(tmp_path / "tokenizer.model")
    sizes = small_config(num_layers=1, d_model=16, num_heads=2, d_head=8, d_ffn=16, vocab_size=50)
    model = fresh_model(
        dataclasses.replace(sizes, vocab_size=VOCAB, schedule="mixer_loop(2)"), seed=0
    )
    plain_tokens = shared_tokens = 0
    for one in tasks:
        shared, plain = LoopedScorer(model), LoopedScorer(model, share_prefixes=False)
        first, second = (
            answers(
                one,
                range(len(one.examples)),
                scorer=scorer,
                encode=tokenizer.encode_all,
                context=1024,
            )
            for scorer in (shared, plain)
        )
        assert [(a.decision, a.right) for a in first] == [(b.decision, b.right) for b in second]
        if one.task.kind == "multiple_choice" and not any(a.cropped for a in first):
            plain_tokens += sum(a.tokens_plain for a in first)
            shared_tokens += shared.tokens_processed
    assert plain_tokens / shared_tokens >= LEAST_SAVED
