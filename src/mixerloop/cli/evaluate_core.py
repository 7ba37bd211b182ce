"""`mixerloop evaluate core`: the 22 tasks of CORE."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixerloop import paper, runs
from mixerloop.cli.opened import Opened, Opening
from mixerloop.cli.progress_line import ProgressLine, duration
from mixerloop.cli.tables import print_table, table_of
from mixerloop.notation import notation

if TYPE_CHECKING:
    from mixerloop.evaluation.core.answer_folder import AnswerFolder
    from mixerloop.evaluation.core.evaluate import AskedTask
    from mixerloop.evaluation.core.questions import Encode
    from mixerloop.evaluation.core.summary import CoreScore
    from mixerloop.evaluation.scorer import Scorer
    from mixerloop.intervals import Estimate

CORE_HELP = """The 22 tasks of CORE, offline; killed, the same command goes on where it stopped.

The bundle is what --bundle or $MIXERLOOP_CORE_BUNDLE names: a folder, .zip or .tar.xz. Where
neither does, the public one is downloaded. Scores are fractions in JSON, times 100 in the table.

examples:
  mixerloop evaluate core RUN
  mixerloop evaluate core RUN --bundle eval_bundle.tar.xz --tasks copa piqa
  mixerloop evaluate core RUN --limit 50 --verify-sharing --out quick-look --json
"""


@dataclass(frozen=True, kw_only=True)
class Core(Opening):
    """The options of `mixerloop evaluate core`."""

    bundle: Path | None = None
    """The evaluation bundle."""
    tasks: tuple[str, ...] = ()
    """Only these tasks."""
    limit: int | None = None
    """Only the first examples of each task; such a score compares with no other."""
    context: int = paper.CORE_CONTEXT
    """Tokens a prompt may have; longer ones lose their beginning."""
    plain: bool = False
    """Score every sequence whole instead of running shared beginnings once."""
    verify_sharing: bool = False
    """Score everything a second time, whole, and count the decisions that differ."""
    replace: bool = False
    """Drop answers that were kept with other settings."""

    def run(self) -> None:
        """Ask, keep and print."""
        from mixerloop.evaluation.core.answer_folder import AnswerFolder
        from mixerloop.evaluation.core.bundle import find_bundle
        from mixerloop.evaluation.core.evaluate import LEAST_CONTEXT, asked
        from mixerloop.evaluation.core.summary import summarise
        from mixerloop.evaluation.kept_results import CORE, CORE_ANSWERS

        if self.limit is not None and self.limit < 1:
            raise ValueError(f"--limit must be at least 1, got {self.limit}")
        if self.context < LEAST_CONTEXT:
            raise ValueError(f"--context must be at least {LEAST_CONTEXT}, got {self.context}")
        if self.plain and self.verify_sharing:
            raise ValueError("--verify-sharing: with --plain nothing is shared")
        opened = self.open()
        if opened.results is None:
            raise ValueError("--schedule: the answers are kept; say where with --out")
        tokenizer = opened.tokenizer()
        if tokenizer.bos_id < 0:
            raise ValueError(
                f"{opened.folder}: its tokenizer has no start token, and CORE's prompts begin "
                "with one"
            )
        bundle = find_bundle(self.bundle)
        asking = [asked(bundle, task, limit=self.limit) for task in bundle.choose(self.tasks)]
        folder = opened.results / CORE_ANSWERS
        folder.mkdir(parents=True, exist_ok=True)
        line = None if self.json else ProgressLine()
        with runs.locked(folder):
            kept = AnswerFolder(folder)
            settings = opened.facts() | {
                "tokenizer": tokenizer.fingerprint,
                "bundle": bundle.fingerprint(),
                "context": self.context,
                "limit": self.limit,
                "plain": self.plain,
            }
            kept.open(settings, bundle.tasks, replace=self.replace)
            scorer = opened.scorer(share_prefixes=not self.plain)
            self._answer(kept, asking, scorer, tokenizer.encode_all, line)
            works = {task.label: kept.work(task.label) for task in bundle.tasks}
            works = {label: work for label, work in works.items() if work is not None}
            done = [asked(bundle, task, limit=self.limit) for task in bundle.choose(tuple(works))]
            answers = {one.task.label: kept.answers(one) for one in done}
            differing = None
            if self.verify_sharing:
                plain = opened.scorer(share_prefixes=False)
                differing = self._differing(kept, asking, plain, tokenizer.encode_all, line)
        if line is not None:
            line.close()
        score = summarise(bundle, done, answers, works, context=self.context)
        result = opened.heading() | {
            **score.to_json(),
            "decisions_differing": differing,
            "settings": settings,
            "provenance": opened.provenance(
                bundle=settings["bundle"], tokenizer=settings["tokenizer"]
            ),
        }
        opened.keep(CORE, result)
        if self.json:
            print(runs.to_json(result), end="")
        else:
            _show(str(self.run_path), opened, score, result)
            print(f"{opened.where_kept(CORE)}, answers in {folder}")

    def _answer(
        self,
        kept: "AnswerFolder",
        asking: "list[AskedTask]",
        scorer: "Scorer",
        encode: "Encode",
        line: ProgressLine | None,
    ) -> None:
        """Answer every task that is not answered yet."""
        left = [one for one in asking if kept.work(one.task.label) is None]
        answered = sum(kept.num_answered(one) for one in left)
        watch = _Watch(line, sum(len(one.examples) for one in left) - answered)
        for one in left:
            kept.run(one, scorer=scorer, encode=encode, context=self.context, progress=watch)

    def _differing(
        self,
        kept: "AnswerFolder",
        asking: "list[AskedTask]",
        plain: "Scorer",
        encode: "Encode",
        line: ProgressLine | None,
    ) -> int:
        """Decisions that are others when every sequence is scored whole."""
        from mixerloop.evaluation.core.evaluate import answers, blocks

        watch = _Watch(line, sum(len(one.examples) for one in asking))
        differing = 0
        for one in asking:
            label = one.task.label
            before = kept.answers(one)
            for block in blocks(len(one.examples)):
                fed = plain.tokens_processed
                again = answers(one, block, scorer=plain, encode=encode, context=self.context)
                differing += sum(
                    (a.decision, a.right) != (b.decision, b.right)
                    for a, b in zip(again, before[block.start : block.stop], strict=True)
                )
                watch(f"{label} again", len(block), plain.tokens_processed - fed)
        return differing


class _Watch:
    """Progress over all examples that are to be answered."""

    def __init__(self, line: ProgressLine | None, total: int) -> None:
        self._line, self._total = line, total
        self._done = self._tokens = 0
        self._began = time.monotonic()

    def __call__(self, label: str, examples: int, tokens: int) -> None:
        """Some more examples of a task are answered."""
        self._done += examples
        self._tokens += tokens
        if self._line is None:
            return
        seconds = time.monotonic() - self._began
        share = self._done / self._total
        self._line.show(
            f"{label}: {self._done:,} of {self._total:,} examples  "
            f"{self._tokens / seconds:,.0f} tokens/s  "
            f"{duration(seconds * (1 - share) / share)} left"
        )


def _show(run: str, opened: Opened, score: "CoreScore", result: dict[str, Any]) -> None:
    from mixerloop.evaluation.core.metric import VERSIONS

    print(f"{run}, schedule {notation(opened.schedule)}")
    table = table_of(
        *("task", "right", "95 % interval", "guess", "majority", "centered v1", "v2"),
        *("examples", "cropped"),
    )
    for label, task in score.tasks.items():
        low, high = task.accuracy_interval
        table.add_row(
            label,
            f"{task.accuracy:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{task.guess.uniform:.3f}",
            f"{task.guess.majority:.3f}",
            f"{100 * task.centered_v1:.2f}",
            f"{100 * task.centered_v2:.2f}",
            f"{task.examples:,}",
            f"{task.cropped_share:.0%}",
        )
    print_table(table)
    for version in VERSIONS:
        found, subset = score.core[version], score.manipulation[version]
        guess = score.guess_core[version]
        said = []
        if found is not None:
            said.append(f"CORE {_times_100(found)}")
        if subset is not None:
            said.append(f"Manip. {_times_100(subset)}")
        if guess is not None:
            said.append(
                f"guessing scores {100 * guess['uniform']:.2f}, always the most frequent answer "
                f"{100 * guess['majority']:.2f}"
            )
        if said:
            print(f"baselines {version}: {'; '.join(said)}")
    plain, processed = result["tokens_plain"], result["tokens_processed"]
    print(f"{processed:,} tokens were run, padding included; scored whole it takes {plain:,}")
    if result["decisions_differing"] is not None:
        print(f"{result['decisions_differing']} decisions differ from scoring each sequence whole")
    for reason in score.not_comparable_because:
        print(f"not comparable with other results: {reason}")


def _times_100(found: "Estimate") -> str:
    value, lower, upper = (100 * x for x in found)
    return f"{value:.2f} [{lower:.2f}, {upper:.2f}]"
