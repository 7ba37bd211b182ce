"""CORE: our scorer against a plain scorer that runs every sequence of a question whole.

The plain scorer is nanochat's: the sequences of one question are one padded batch, one question
after another, with the logits, loss and argmax of every token.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from mixerloop import machine, runs
from mixerloop.benchmarking.conditions import provenance_of
from mixerloop.benchmarking.measure import Quartiles, interleaved
from mixerloop.benchmarking.settings import CoreSettings
from mixerloop.config import preset
from mixerloop.data.sentencepiece_tokenizer import SentencePieceTokenizer, train_tokenizer
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.evaluation.core.answers import Answer, answer
from mixerloop.evaluation.core.asking import LEAST_CONTEXT, AskedTask, asked, questions
from mixerloop.evaluation.core.bundle import find_bundle
from mixerloop.evaluation.core.prompts import prompts
from mixerloop.evaluation.core.questions import Encode, Question
from mixerloop.evaluation.looped_scorer import LoopedScorer, mixing_and_afterwards
from mixerloop.evaluation.scorer import Candidate, Scorer, TokenScores, padded
from mixerloop.interop.loading import open_subject
from mixerloop.model.accounting import account_model
from mixerloop.model.initialization import fresh_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import notation, resolve
from mixerloop.parsing import checked
from mixerloop.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class CoreResult:
    """Times and work of both scorers on the same examples."""

    model: str
    schedule: str
    vocab_size: int
    tasks: int
    examples: int
    context: int
    threads: int
    milliseconds: dict[str, Quartiles]
    plain_over_shared: float
    plain_over_shared_quartiles: tuple[float, float]
    tokens_plain: int
    """Tokens that the plain scorer runs, padding included."""
    tokens_shared: int
    """Tokens that our scorer runs, padding included."""
    work_limit: float
    """Multiply-adds with weights: those of the plain scorer over those of ours."""
    decisions_differing: int
    """Always 0: the benchmark times nothing if a decision differs."""


@dataclass(frozen=True, kw_only=True)
class CoreBench:
    """The times, and the conditions they were taken under."""

    figures: CoreResult
    bundle: str
    """The fingerprint of the evaluation bundle."""
    tokenizer: str
    """The fingerprint of the tokenizer."""
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop bench core --json` prints."""
        return {
            **asdict(self.figures),
            "bundle": self.bundle,
            "tokenizer": self.tokenizer,
            "provenance": self.provenance,
        }


@checked
def bench_core(settings: CoreSettings | None = None) -> CoreBench:
    """Time CORE with shared prefixes against CORE with every sequence run whole."""
    settings = CoreSettings() if settings is None else settings
    settings.check()
    if settings.context < LEAST_CONTEXT:
        raise ValueError(f"context must be at least {LEAST_CONTEXT}, got {settings.context}")
    machine.keep_freed_memory()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    bundle = find_bundle(settings.bundle)
    asking = [
        asked(bundle, task, limit=settings.examples) for task in bundle.choose(settings.tasks)
    ]
    name, model, tokenizer = _subject(settings, asking)
    text = model.config.schedule if settings.schedule is None else settings.schedule
    schedule = resolve(text, model.config.num_layers)
    neighbours = machine.Neighbours()
    figures = measure_core(
        name,
        model,
        asking,
        schedule=schedule,
        notation=notation(schedule),
        encode=tokenizer.encode_all,
        context=settings.context,
        repeats=settings.repeats,
    )
    return CoreBench(
        figures=figures,
        bundle=bundle.fingerprint(),
        tokenizer=tokenizer.fingerprint,
        provenance=provenance_of(neighbours, compute_dtype="float32", repeats=settings.repeats),
    )


def _subject(
    settings: CoreSettings, asking: Sequence[AskedTask]
) -> tuple[str, LoopedLM, Tokenizer]:
    """The name of the model, the model and its tokenizer."""
    if settings.run_path is not None:
        subject = open_subject(settings.run_path, device="cpu")
        return str(settings.run_path), subject.model, subject.tokenizer()
    config = preset(settings.size)
    tokenizer = tokenizer_of(asking, vocab_size=config.vocab_size)
    return f"{settings.size}, fresh", fresh_model(config, seed=0).eval(), tokenizer


class PlainScorer:
    """Runs all sequences of a question as one padded batch and computes all their logits."""

    def __init__(self, model: LoopedLM, *, schedule: Schedule) -> None:
        self.vocab_size = model.config.vocab_size
        self.tokens_processed = 0
        self._model, self._schedule = model, schedule

    @torch.inference_mode()
    def score(self, questions: Sequence[Sequence[Candidate]]) -> list[list[TokenScores]]:
        """Score every candidate, question by question."""
        return [self._of_question(candidates) for candidates in questions]

    def _of_question(self, candidates: Sequence[Candidate]) -> list[TokenScores]:
        tokens = torch.from_numpy(padded([candidate.tokens for candidate in candidates]))
        self.tokens_processed += tokens.numel()
        logits = self._model(tokens, schedule=self._schedule)
        labels = tokens.roll(-1, dims=1)
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        losses, most_likely = losses.view(tokens.shape).numpy(), logits.argmax(-1).numpy()
        scores = []
        for row, candidate in enumerate(candidates):
            scored = slice(candidate.start - 1, len(candidate.tokens) - 1)
            scores.append(
                TokenScores(losses[row, scored].astype(np.float64), most_likely[row, scored])
            )
        return scores


def measure_core(
    name: str,
    model: LoopedLM,
    asking: Sequence[AskedTask],
    *,
    schedule: Schedule,
    notation: str,
    encode: Encode,
    context: int,
    repeats: int,
) -> CoreResult:
    """Check that both scorers decide alike, then time them in turn.

    The prompts are tokenised first, so no timed call includes the tokenizer. The check is also the
    warm-up.
    """
    tokens = [
        questions(task, range(len(task.examples)), encode=encode, context=context)
        for task in asking
    ]
    plain, shared = PlainScorer(model, schedule=schedule), LoopedScorer(model, schedule=schedule)
    decisions = [
        [(answered.decision, answered.right) for answered in _answers(asking, tokens, scorer)]
        for scorer in (plain, shared)
    ]
    differing = sum(ours != theirs for theirs, ours in zip(*decisions, strict=True))
    if differing:
        raise FloatingPointError(f"{differing} of {len(decisions[0])} decisions differ")
    fed = plain.tokens_processed, shared.tokens_processed
    times = interleaved(
        {
            "plain": lambda: _answers(asking, tokens, plain),
            "shared": lambda: _answers(asking, tokens, shared),
        },
        warmup=0,
        repeats=repeats,
    )
    ratio = times["plain"].over(times["shared"])
    return CoreResult(
        model=name,
        schedule=notation,
        vocab_size=model.config.vocab_size,
        tasks=len(asking),
        examples=len(decisions[0]),
        context=context,
        threads=torch.get_num_threads(),
        milliseconds={way: timing.milliseconds for way, timing in times.items()},
        plain_over_shared=ratio.median,
        plain_over_shared_quartiles=(ratio.lower, ratio.upper),
        tokens_plain=fed[0],
        tokens_shared=fed[1],
        work_limit=_work_limit(model, schedule, tokens, fed),
        decisions_differing=differing,
    )


def _answers(
    asking: Sequence[AskedTask], tokens: Sequence[Sequence[Question]], scorer: Scorer
) -> list[Answer]:
    """Score and answer the questions task by task, as an evaluation does."""
    answers = []
    for task, of_task in zip(asking, tokens, strict=True):
        scores = scorer.score([question.candidates for question in of_task])
        for number, parts in enumerate(zip(task.examples, of_task, scores, strict=True)):
            answers.append(answer(number, *parts))
    return answers


def _work_limit(
    model: LoopedLM,
    schedule: Schedule,
    tokens: Sequence[Sequence[Question]],
    fed: tuple[int, int],
) -> float:
    """Multiply-adds with weights, plain over shared.

    Our scorer runs the last ffns and the head only at scored tokens. A token that several
    candidates predict in one place counts for each of them.
    """
    account = account_model(model.config)
    macs, head = account.projection_macs(), account.head_macs_per_token
    candidates = [
        candidate for of_task in tokens for question in of_task for candidate in question.candidates
    ]
    scored = sum(len(candidate.tokens) - candidate.start for candidate in candidates)
    everywhere, afterwards = (
        sum(macs[occurrence.sublayer] for occurrence in part)
        for part in mixing_and_afterwards(model, schedule)
    )
    plain, shared = fed
    return (
        plain
        * (everywhere + afterwards + head)
        / (shared * everywhere + scored * (afterwards + head))
    )


def tokenizer_of(asking: Sequence[AskedTask], *, vocab_size: int) -> Tokenizer:
    """A tokenizer trained on the examples themselves, for a model without a tokenizer."""
    texts = (
        text
        for asked_task in asking
        for example in asked_task.examples
        for text in prompts(example, shots=[], delimiter=asked_task.task.delimiter)
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / runs.SENTENCEPIECE_MODEL
        path.write_bytes(train_tokenizer(texts, vocab_size=vocab_size))
        return SentencePieceTokenizer(path)
