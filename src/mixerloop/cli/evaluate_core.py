"""`mixerloop evaluate core`: the 22 tasks of CORE."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mixerloop import paper
from mixerloop.cli.subject_options import Opening, where_kept
from mixerloop.files import json_text
from mixerloop.progress_line import ProgressLine
from mixerloop.text_tables import print_table, table_of

if TYPE_CHECKING:
    from mixerloop.evaluation.core.evaluate_core import CoreResult
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
        """Measure and print."""
        from mixerloop.evaluation.core.evaluate_core import evaluate_core
        from mixerloop.evaluation.kept_results import CORE

        subject = self.open()
        line = None if self.json else ProgressLine()
        result = evaluate_core(
            subject,
            bundle=self.bundle,
            tasks=self.tasks,
            limit=self.limit,
            context=self.context,
            plain=self.plain,
            verify_sharing=self.verify_sharing,
            replace=self.replace,
            progress=line and (lambda progress: line.show(str(progress))),
        )
        if line is not None:
            line.close()
        if self.json:
            print(json_text(result.to_json()), end="")
            return
        _show(str(self.run_path), result)
        print(f"{where_kept(subject, CORE)}, answers in {result.answers}")


def _show(run: str, result: "CoreResult") -> None:
    from mixerloop.evaluation.core.metric import VERSIONS

    score = result.score
    print(f"{run}, schedule {result.heading.schedule}")
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
    works = [task.work for task in score.tasks.values()]
    plain = sum(work.tokens_plain for work in works)
    processed = sum(work.tokens_processed for work in works)
    print(f"{processed:,} tokens were run, padding included; scored whole it takes {plain:,}")
    if result.decisions_differing is not None:
        print(f"{result.decisions_differing} decisions differ from scoring each sequence whole")
    for reason in score.not_comparable_because:
        print(f"not comparable with other results: {reason}")


def _times_100(found: "Estimate") -> str:
    value, lower, upper = (100 * x for x in found)
    return f"{value:.2f} [{lower:.2f}, {upper:.2f}]"
