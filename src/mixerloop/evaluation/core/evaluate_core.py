"""`evaluate_core`: the tasks of CORE, asked of a subject."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mixerloop.evaluation.core.answer_folder import AnswerFolder
from mixerloop.evaluation.core.asking import LEAST_CONTEXT, AskedTask, answers, asked, blocks
from mixerloop.evaluation.core.bundle import find_bundle
from mixerloop.evaluation.core.core_result import CoreResult, CoreSettings
from mixerloop.evaluation.core.questions import Encode
from mixerloop.evaluation.core.scores import summarise
from mixerloop.evaluation.looped_scorer import scorer_of
from mixerloop.evaluation.scorer import Scorer
from mixerloop.files import locked
from mixerloop.measures import MEASURES
from mixerloop.notation import notation
from mixerloop.paper import CORE_CONTEXT
from mixerloop.progress_line import duration
from mixerloop.subject import Subject


@dataclass(frozen=True, kw_only=True)
class CoreProgress:
    """How far an evaluation is."""

    task: str
    done: int
    """Examples answered."""
    total: int
    tokens_per_second: float
    seconds_left: float

    def __str__(self) -> str:
        return (
            f"{self.task}: {self.done:,} of {self.total:,} examples  "
            f"{self.tokens_per_second:,.0f} tokens/s  {duration(self.seconds_left)} left"
        )


Progress = Callable[[CoreProgress], None]


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
    progress: Progress | None = None,
) -> CoreResult:
    """Answer the tasks, resuming answers that were kept, and keep the result.

    `bundle` is found as `find_bundle` does where it is not given. `plain` scores every sequence
    whole; `verify_sharing` counts the decisions that then differ. `replace` drops answers that were
    kept with other settings.
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
    tokenizer = subject.tokenizer()
    if tokenizer.bos_id < 0:
        raise ValueError(
            f"{subject.folder}: its tokenizer has no start token, and CORE's prompts begin with one"
        )
    opened = find_bundle(bundle)
    asking = [asked(opened, task, limit=limit) for task in opened.choose(tasks)]
    folder = MEASURES["core"].details_in(subject.results)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        kept = AnswerFolder(folder)
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
        )
        kept.open(settings, opened.tasks, replace=replace)
        evaluation = _Evaluation(kept, asking, tokenizer.encode_all, context, progress)
        evaluation.answer(scorer_of(subject, share_prefixes=not plain))
        works = {task.label: kept.work(task.label) for task in opened.tasks}
        works = {label: work for label, work in works.items() if work is not None}
        finished = [asked(opened, task, limit=limit) for task in opened.choose(tuple(works))]
        all_answers = {one.task.label: kept.answers(one) for one in finished}
        differing = None
        if verify_sharing:
            differing = evaluation.differing(scorer_of(subject, share_prefixes=False))
    figures = summarise(opened, finished, all_answers, works, context=context)
    result = CoreResult(
        **subject.heading(),
        **vars(figures),
        decisions_differing=differing,
        settings=settings,
        provenance=subject.provenance(bundle=settings.bundle, tokenizer=settings.tokenizer),
    )
    subject.save(result)
    return result


@dataclass(frozen=True)
class _Evaluation:
    kept: AnswerFolder
    asking: list[AskedTask]
    encode: Encode
    context: int
    progress: Progress | None

    def answer(self, scorer: Scorer) -> None:
        """Answer every task that is not answered yet."""
        left = [one for one in self.asking if self.kept.work(one.task.label) is None]
        answered = sum(self.kept.num_answered(one) for one in left)
        watch = _Watch(self.progress, sum(len(one.examples) for one in left) - answered)
        for one in left:
            self.kept.run(
                one, scorer=scorer, encode=self.encode, context=self.context, progress=watch
            )

    def differing(self, plain: Scorer) -> int:
        """Decisions that differ when every sequence is scored whole."""
        watch = _Watch(self.progress, sum(len(one.examples) for one in self.asking))
        differing = 0
        for one in self.asking:
            before = self.kept.answers(one)
            for block in blocks(len(one.examples)):
                fed = plain.tokens_processed
                again = answers(one, block, scorer=plain, encode=self.encode, context=self.context)
                differing += sum(
                    (a.decision, a.right) != (b.decision, b.right)
                    for a, b in zip(again, before[block.start : block.stop], strict=True)
                )
                watch(f"{one.task.label} again", len(block), plain.tokens_processed - fed)
        return differing


class _Watch:
    """Adds up the examples and tokens of an evaluation and passes them on."""

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
