"""`evaluate_core`: the accuracy of a subject on the tasks of CORE."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mixerloop.evaluation.core.answer_folder import AnswerFolder
from mixerloop.evaluation.core.asking import LEAST_CONTEXT, AskedTask, answers, asked, blocks
from mixerloop.evaluation.core.bundle import find_bundle
from mixerloop.evaluation.core.core_result import CoreResult, CoreSettings
from mixerloop.evaluation.core.corrections import read_corrections
from mixerloop.evaluation.core.questions import Encode
from mixerloop.evaluation.core.scores import summarise
from mixerloop.evaluation.looped_scorer import scorer_of
from mixerloop.evaluation.scorer import Scorer
from mixerloop.files import locked
from mixerloop.measures import MEASURES
from mixerloop.notation import notation
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.paper import CORE_CONTEXT
from mixerloop.parsing import checked
from mixerloop.progress_line import duration
from mixerloop.subject import Subject


@dataclass(frozen=True, kw_only=True)
class CoreProgress:
    """The progress of an evaluation, in examples, and its speed."""

    task: str
    done: int
    """The number of answered examples."""
    total: int
    tokens_per_second: float
    seconds_left: float

    def __str__(self) -> str:
        return "  ".join(self.parts)

    @property
    def parts(self) -> tuple[str, str, str]:
        """The examples, the rate and the time that is left, as text."""
        return (
            f"{self.task}: {self.done:,} of {self.total:,} examples",
            f"{self.tokens_per_second:,.0f} tokens/s",
            f"{duration(self.seconds_left)} left",
        )

    @property
    def share(self) -> float:
        """The share of the examples that is answered."""
        return self.done / self.total


Progress = Callable[[CoreProgress], None]


@checked
@torch_defaults()
def evaluate_core(
    subject: Subject,
    *,
    bundle: Path | None = None,
    tasks: tuple[str, ...] = (),
    limit: int | None = None,
    context: int = CORE_CONTEXT,
    plain: bool = False,
    verify_sharing: bool = False,
    replace: bool = False,
    corrected: Path | None = None,
    progress: Progress | None = None,
) -> CoreResult:
    """Answer the tasks, resuming from saved answers, and save the result.

    `find_bundle` chooses the default of `bundle`. `plain` scores every sequence whole.
    `verify_sharing` scores every sequence both ways and counts the decisions that differ.
    `replace` deletes saved answers that have other settings. `corrected` names a file of corrected
    answers (`corrections.py`), which are then scored and shown as shots.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if context < LEAST_CONTEXT:
        raise ValueError(f"context must be at least {LEAST_CONTEXT}, got {context}")
    if plain and verify_sharing:
        raise ValueError("verify_sharing needs shared prefixes, and plain shares none")
    if subject.results is None:
        raise ValueError(
            "answers under another schedule are kept apart; name a folder for the results"
        )
    folder = MEASURES["core"].details_in(subject.results)
    saved = AnswerFolder(folder)
    subject.check_can_save(CoreResult)
    saved.check_ours(overwrite=subject.overwrite)
    tokenizer = subject.tokenizer()
    if tokenizer.bos_id < 0:
        raise ValueError(
            f"{subject.folder}: its tokenizer has no start token, and CORE's prompts begin with one"
        )
    opened = find_bundle(bundle)
    corrections = None if corrected is None else read_corrections(corrected)
    num_corrected = {} if corrections is None else opened.correct(corrections)
    asking = [asked(opened, task, limit=limit) for task in opened.choose(tasks)]
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        settings = CoreSettings(
            checkpoint=subject.fingerprint,
            schedule=notation(subject.schedule),
            compute_dtype=subject.compute_dtype,
            forms=subject.forms(),
            device=subject.device.type,
            tokenizer=tokenizer.fingerprint,
            bundle=opened.fingerprint(),
            context=context,
            limit=limit,
            plain=plain,
            corrections=None if corrections is None else corrections.fingerprint,
        )
        saved.open(settings, opened.tasks, replace=replace or subject.overwrite)
        evaluation = _Evaluation(saved, asking, tokenizer.encode_all, context, progress)
        evaluation.answer(scorer_of(subject, share_prefixes=not plain))
        works = {task.label: saved.work(task.label) for task in opened.tasks}
        works = {label: work for label, work in works.items() if work is not None}
        for label in works:
            saved.remove_parts(label)
        finished = [asked(opened, task, limit=limit) for task in opened.choose(tuple(works))]
        all_answers = {of_task.task.label: saved.answers(of_task) for of_task in finished}
        differing = None
        if verify_sharing:
            differing = evaluation.differing(scorer_of(subject, share_prefixes=False))
    num_corrected = {label: num_corrected[label] for label in works if label in num_corrected}
    figures = summarise(
        opened, finished, all_answers, works, context=context, corrected=num_corrected
    )
    result = CoreResult(
        **subject.heading(),
        **vars(figures),
        decisions_differing=differing,
        settings=settings,
        corrected=num_corrected,
        provenance=subject.provenance(
            bundle=settings.bundle,
            corrections=settings.corrections,
            tokenizer=settings.tokenizer,
        ),
    )
    detail_files = {
        f"{folder.name}/{label}.jsonl": work.answers_sha256 for label, work in works.items()
    }
    subject.save(result, detail_files=detail_files)
    return result


@dataclass(frozen=True)
class _Evaluation:
    saved: AnswerFolder
    asking: list[AskedTask]
    encode: Encode
    context: int
    progress: Progress | None

    def answer(self, scorer: Scorer) -> None:
        """Answer every task that has no finished answers."""
        unfinished = [
            asked_task
            for asked_task in self.asking
            if self.saved.work(asked_task.task.label) is None
        ]
        answered = sum(self.saved.num_answered(asked_task) for asked_task in unfinished)
        watch = _Watch(
            self.progress, sum(len(asked_task.examples) for asked_task in unfinished) - answered
        )
        for asked_task in unfinished:
            self.saved.run(
                asked_task, scorer=scorer, encode=self.encode, context=self.context, progress=watch
            )

    def differing(self, plain: Scorer) -> int:
        """Count the decisions that differ if every sequence is scored whole."""
        watch = _Watch(self.progress, sum(len(asked_task.examples) for asked_task in self.asking))
        differing = 0
        for asked_task in self.asking:
            before = self.saved.answers(asked_task)
            for block in blocks(len(asked_task.examples)):
                fed = plain.tokens_processed
                again = answers(
                    asked_task, block, scorer=plain, encode=self.encode, context=self.context
                )
                differing += sum(
                    (a.decision, a.right) != (b.decision, b.right)
                    for a, b in zip(again, before[block.start : block.stop], strict=True)
                )
                watch(f"{asked_task.task.label} again", len(block), plain.tokens_processed - fed)
        return differing


class _Watch:
    """Adds up the examples and tokens of an evaluation, and reports the progress."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total = progress, total
        self._done = self._tokens = 0
        self._began = time.monotonic()

    def __call__(self, task: str, examples: int, tokens: int) -> None:
        self._done += examples
        self._tokens += tokens
        if self._progress is None:
            return
        seconds = time.monotonic() - self._began
        self._progress(
            CoreProgress(
                task=task,
                done=self._done,
                total=self._total,
                tokens_per_second=self._tokens / seconds,
                seconds_left=seconds * (self._total - self._done) / self._done,
            )
        )
