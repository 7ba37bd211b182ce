"""`mixerloop evaluate core`: the 22 tasks of CORE."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mixerloop import paper
from mixerloop.cli.saving_options import Evaluating
from mixerloop.cli.subject_options import where_kept
from mixerloop.files import json_text
from mixerloop.measures import MEASURES
from mixerloop.progress_line import ProgressLine
from mixerloop.results import Estimate, encode
from mixerloop.text_tables import print_table, table_of

if TYPE_CHECKING:
    from mixerloop.evaluation.core.core_result import CoreResult

CORE_HELP = """The 22 tasks of CORE, offline; the same command resumes after a stop or a kill.

--bundle or $MIXERLOOP_CORE_BUNDLE names the bundle: a folder, .zip or .tar.xz. By default the
public bundle is downloaded. Scores are fractions in JSON, times 100 in the table.

examples:
  mixerloop evaluate core RUN
  mixerloop evaluate core RUN --bundle eval_bundle.tar.xz --tasks copa piqa
  mixerloop evaluate core RUN --corrected answers.json --out corrected
  mixerloop evaluate core RUN --limit 50 --verify-sharing --out quick-look --json
"""


@dataclass(frozen=True, kw_only=True)
class Core(Evaluating):
    """The options of `mixerloop evaluate core`."""

    bundle: Path | None = None
    """The evaluation bundle."""
    tasks: tuple[str, ...] = ()
    """The tasks to score; by default all."""
    limit: int | None = None
    """Only the first examples of each task; such a score is not comparable with other scores."""
    context: int = paper.CORE_CONTEXT
    """The most tokens of a prompt; longer prompts lose their beginning."""
    plain: bool = False
    """Run every sequence whole instead of running shared prefixes once."""
    verify_sharing: bool = False
    """Score everything again with every sequence run whole, and count the decisions that differ."""
    corrected: Path | None = None
    """A file of corrected answers; such a score is not comparable with other scores."""
    replace: bool = False
    """Delete saved answers that were made with other settings."""

    def run(self) -> None:
        """Score the tasks, and print a table or JSON."""
        from mixerloop.evaluation.core.evaluate_core import evaluate_core

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
            corrected=self.corrected,
            progress=line and (lambda progress: line.show(*progress.parts, share=progress.share)),
        )
        if line is not None:
            line.close()
        if self.json:
            print(json_text(encode(result)), end="")
            return
        _show(str(self.run_path), result)
        assert subject.results is not None  # evaluate_core needs a results folder
        answers = MEASURES["core"].details_in(subject.results)
        print(f"{where_kept(subject, result)}, answers in {answers}")


def _show(run: str, result: "CoreResult") -> None:
    from mixerloop.evaluation.core.metric import VERSIONS

    print(f"{run}, schedule {result.schedule}")
    table = table_of(
        *("task", "right", "95 % interval", "guess", "majority", "centered v1", "v2"),
        *("examples", "cropped"),
    )
    for label, task in result.tasks.items():
        table.add_row(
            label,
            f"{task.accuracy.value:.3f}",
            f"{task.accuracy.lower:.3f} to {task.accuracy.upper:.3f}",
            f"{task.guess.uniform:.3f}",
            f"{task.guess.majority:.3f}",
            f"{100 * task.centered_v1:.2f}",
            f"{100 * task.centered_v2:.2f}",
            f"{task.examples:,}",
            f"{task.cropped_share:.0%}",
        )
    print_table(table)
    for version in VERSIONS:
        core, subset = result.core(version), result.manipulation(version)
        guess = result.guess_core(version)
        said = []
        if core is not None:
            said.append(f"CORE {_times_100(core)}")
        if subset is not None:
            said.append(f"Manip. {_times_100(subset)}")
        if guess is not None:
            said.append(
                f"guessing scores {100 * guess.uniform:.2f}, always the most frequent answer "
                f"{100 * guess.majority:.2f}"
            )
        if said:
            print(f"baselines {version}: {'; '.join(said)}")
    print(
        f"{result.tokens_processed:,} tokens were run, padding included; scored whole it takes "
        f"{result.tokens_plain:,}"
    )
    if result.decisions_differing is not None:
        print(f"{result.decisions_differing} decisions differ from scoring each sequence whole")
    for reason in result.not_comparable_because:
        print(f"not comparable with other results: {reason}")


def _times_100(score: Estimate) -> str:
    percent = score.scaled(100)
    return f"{percent.value:.2f} [{percent.lower:.2f}, {percent.upper:.2f}]"
