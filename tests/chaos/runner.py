"""Run the cases side by side, count them, and name the command that repeats each violation."""

import argparse
import json
import os
import shlex
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chaos import fixtures, oracle, program
from chaos.cases import READINGS, C, FileCase, Reading, file_cases, sample
from chaos.damage import DAMAGES, UNREADABLE
from chaos.options import COMMANDS, INTERRUPT_SECONDS, OptionCase, option_cases

INDEX = struct.Struct("I")
SHOW = "CHAOS_SHOW"
"""Set this environment variable to see the output of every case."""


Outcome = tuple[Sequence[str], str | None, float]
"""The promises that a case broke, the rule that excuses it, and the seconds of its verb."""


@dataclass
class Tally:
    """What the cases of a run came to."""

    cases: int = 0
    seconds: float = 0.0
    by_verb: Counter[str] = field(default_factory=Counter)
    by_damage: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    """Cases that ended neither as the undamaged case nor with an error, by the rule for them."""
    excluded: Counter[str] = field(default_factory=Counter)
    violations: list[dict[str, str]] = field(default_factory=list)

    slowest: Counter[str] = field(default_factory=Counter)
    """Milliseconds of each verb's slowest case."""

    def count(self, verb: str, damage: str, case: str, outcome: "Outcome") -> None:
        """Count a case and the promises that it broke."""
        broken, rule, seconds = outcome
        self.cases += 1
        self.by_verb[verb] += 1
        self.by_damage[damage] += 1
        if rule is not None:
            self.rules[rule] += 1
        self.slowest[verb] = max(self.slowest[verb], round(1000 * seconds))
        self.violations += [{"case": case, "problem": problem} for problem in broken]


def side_by_side(
    function: Callable[[Any, Path], Any], items: Sequence[Any], scratch: Path, *, workers: int
) -> list[Any]:
    """`function(item, box)` for each item, in forked workers that take one item after another.

    Results are JSON values, in the order of the items. `box` is a path of the worker's own.
    """
    read, write = os.pipe()
    feeder = os.fork()
    if feeder == 0:
        os.close(read)
        for index in range(len(items)):
            os.write(write, INDEX.pack(index))
        os._exit(0)
    os.close(write)
    children = []
    for number in range(workers):
        child = os.fork()
        if child == 0:
            _work(function, items, scratch / f"worker-{number}", read)
        children.append(child)
    os.close(read)
    for child in (feeder, *children):
        _, status = os.waitpid(child, 0)
        assert status == 0, "a worker of the suite itself failed; its error is above"
    results: dict[int, Any] = {}
    for number in range(workers):
        with (scratch / f"worker-{number}.jsonl").open() as lines:
            results.update(json.loads(line) for line in lines)
    return [results[index] for index in range(len(items))]


def _work(
    function: Callable[[Any, Path], Any], items: Sequence[Any], box: Path, indices: int
) -> None:
    code = 1
    try:
        with box.with_suffix(".jsonl").open("w") as results:
            while content := os.read(indices, INDEX.size):
                (index,) = INDEX.unpack(content)
                results.write(json.dumps([index, function(items[index], box)]) + "\n")
                results.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line and the fixtures it runs on."""

    name: str
    words: tuple[str, ...]
    brings: tuple[str, ...]
    before: Callable[[], None] | None = None
    interrupt_after: float | None = None

    @staticmethod
    def of_reading(reading: Reading) -> "Command":
        """The command of a verb whose files are damaged."""
        brings = (*reading.brings, *reading.damages)
        return Command(name=reading.name, words=reading.arguments, brings=brings)

    @staticmethod
    def of_verb(verb: tuple[str, ...]) -> "Command":
        """The command of a verb before a value is replaced."""
        base = COMMANDS[verb]
        return Command(
            name=" ".join(verb),
            words=base.words(verb, None, ""),
            brings=base.brings,
            before=base.before,
        )

    @staticmethod
    def of_option(case: OptionCase) -> "Command":
        """The command of a verb with a strange value."""
        return replace(
            Command.of_verb(case.option.verb),
            words=case.words,
            interrupt_after=INTERRUPT_SECONDS if case.is_endless else None,
        )


def seen_of(
    place: fixtures.Place,
    command: Command,
    box: Path,
    damage: Callable[[Path], list[Path]] | None = None,
) -> tuple[oracle.Seen, list[str]]:
    """Run a command in a new test folder; returns what happened and the damaged paths."""
    if box.exists():
        fixtures.remove(box)
    fixtures.copy(place, dict.fromkeys(command.brings), box)
    damaged = [] if damage is None else damage(box)
    before, stamps = oracle.tree_of(box), oracle.stamps_of(box)
    ended = program.run(
        command.words, box, before=command.before, interrupt_after=command.interrupt_after
    )
    if os.environ.get(SHOW):
        print(f"$ mixerloop {shlex.join(command.words)}", *ended.stdout.splitlines(), sep="\n")
        print(f"exit code {ended.code}", *ended.stderr.splitlines(), sep="\n", flush=True)
    seen = oracle.Seen(
        ended=ended,
        box=box,
        before=before,
        after=oracle.tree_of(box),
        rewritten=frozenset(path for path, _ in oracle.stamps_of(box).items() - stamps.items()),
    )
    fixtures.remove(box)
    return seen, [path.relative_to(box).as_posix() for path in damaged]


def baselines_of(
    place: fixtures.Place, commands: Sequence[Command], scratch: Path, *, workers: int
) -> dict[str, oracle.Baseline]:
    """What each command does when nothing is wrong, by its name."""

    def make(command: Command, box: Path) -> dict[str, Any]:
        seen, _ = seen_of(place, command, box)
        assert seen.ended.code == 0, f"{command.name}: {seen.ended}"
        return oracle.Baseline.of(seen).to_json()

    made = side_by_side(make, commands, scratch, workers=workers)
    return {
        command.name: oracle.Baseline.from_json(value)
        for command, value in zip(commands, made, strict=True)
    }


def _tell(case: str, verdict: oracle.Verdict) -> None:
    """Print a violation at once: a whole run takes minutes."""
    for problem in verdict.broken:
        print(f"{case}\n  {problem}", flush=True)


def run_files(
    place: fixtures.Place,
    cases: Sequence[FileCase],
    scratch: Path,
    *,
    seed: int,
    workers: int,
    twice: bool,
) -> Tally:
    """Damage files, run verbs, and judge them.

    With `twice` the undamaged cases are run again: they must be the same.
    """
    began = time.monotonic()
    readings = {case.reading.name: case.reading for case in cases}
    commands = [Command.of_reading(reading) for reading in readings.values()]
    baselines = baselines_of(place, commands, scratch, workers=workers)

    def judged(case: FileCase | Command, box: Path) -> Outcome:
        if isinstance(case, Command):
            seen, _ = seen_of(place, case, box)
            verdict = oracle.judge(readings[case.name], [], baselines[case.name], seen)
            return verdict.broken, verdict.rule, seen.ended.seconds

        def damage(box: Path) -> list[Path]:
            return DAMAGES[case.damage](box / case.file, box, case.draw(seed))

        seen, damaged = seen_of(place, Command.of_reading(case.reading), box, damage)
        verdict = oracle.judge(case.reading, damaged, baselines[case.reading.name], seen)
        _tell(case.id, verdict)
        return verdict.broken, verdict.rule, seen.ended.seconds

    tally = Tally()
    items = [*(commands if twice else ()), *cases]
    for case, outcome in zip(
        items, side_by_side(judged, items, scratch, workers=workers), strict=True
    ):
        if isinstance(case, Command):
            assert not any(outcome[:2]), f"{case.name} is not the same twice: {outcome}"
        else:
            tally.count(case.reading.name, case.damage, case.id, outcome)
    tally.seconds = time.monotonic() - began
    return tally


def run_options(
    place: fixtures.Place, cases: Sequence[OptionCase], scratch: Path, *, workers: int
) -> Tally:
    """Run verbs with strange values, and judge them."""
    began = time.monotonic()
    verbs = list(dict.fromkeys(case.option.verb for case in cases))
    commands = [Command.of_verb(verb) for verb in verbs]
    for command in commands:
        place.need(command.brings)
    place.need(("folder",))
    commands = [replace(command, brings=(*command.brings, "folder")) for command in commands]
    baselines = baselines_of(place, commands, scratch, workers=workers)

    def judged(case: OptionCase, box: Path) -> Outcome:
        command = Command.of_option(case)
        seen, _ = seen_of(place, replace(command, brings=(*command.brings, "folder")), box)
        verdict = oracle.judge_option(case, baselines[command.name], seen)
        _tell(case.id, verdict)
        return verdict.broken, verdict.rule, seen.ended.seconds

    tally = Tally()
    for case, outcome in zip(
        cases, side_by_side(judged, cases, scratch, workers=workers), strict=True
    ):
        tally.count(" ".join(case.option.verb), case.value, case.id, outcome)
    tally.seconds = time.monotonic() - began
    return tally


def show(tally: Tally, *, repeat: str) -> None:
    """Print the counts, and each violation with the command that repeats it."""
    print("by verb, with the seconds of the slowest case:")
    for verb, number in sorted(tally.by_verb.items()):
        print(f"  {number:6,}  {tally.slowest[verb] / 1000:5.1f}  {verb}")
    print("by damage:")
    for damage, number in sorted(tally.by_damage.items()):
        print(f"  {number:6,}  {damage}")
    for violation in tally.violations:
        print(f"VIOLATION {violation['case']}\n  {violation['problem']}")
        print(f"  repeat: {repeat} --only {json.dumps(violation['case'])}")
    for rule, number in tally.rules.items():
        print(f"by rule: {number:,} cases: {rule}")
    for reason, number in tally.excluded.items():
        print(f"excluded: {number:,} cases: {reason}")
    print(f"{tally.cases:,} cases, {len(tally.violations)} violations, {tally.seconds:.0f} s")


def main() -> int:
    """Run a sample of the cases, or all."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("what", choices=("files", "options"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, help="so many cases; by default all")
    parser.add_argument("--quick", action="store_true", help="only verbs that take a moment")
    parser.add_argument("--only", help="the name of one case, or the beginning of names")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--place", type=Path, help="keep the fixtures here, and use them again")
    parser.add_argument("--json", type=Path, help="write the tally to this file")
    options = parser.parse_args()
    program.preload(quick=options.quick)
    obeys = program.obey_permissions()
    shared_memory = Path("/dev/shm")
    base = shared_memory if os.access(shared_memory, os.W_OK) else None
    scratch = Path(tempfile.mkdtemp(prefix="chaos-", dir=base))
    place = fixtures.Place((options.place or scratch / "place").resolve())
    try:
        tally = _run(options, place, scratch, obeys=obeys)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    where = "" if options.place is None else f" --place {options.place}"
    show(tally, repeat=f"python -m chaos {options.what} --seed {options.seed}{where}")
    if options.json is not None:
        options.json.write_text(json.dumps(tally.__dict__))
    return 1 if tally.violations else 0


def _run(
    options: argparse.Namespace, place: fixtures.Place, scratch: Path, *, obeys: bool
) -> Tally:
    if options.what == "options":
        strange = [case for case in option_cases() if case.command.is_quick or not options.quick]
        return run_options(place, _chosen(strange, options), scratch, workers=options.workers)
    readings = [reading for reading in READINGS if reading.is_quick or not options.quick]
    if options.only:
        readings = [reading for reading in readings if options.only.startswith(reading.name)]
    cases = file_cases(place, readings)
    excluded: Counter[str] = Counter()
    if not obeys:
        kept = [case for case in cases if case.damage != UNREADABLE]
        excluded["root ignores permissions on this system"] = len(cases) - len(kept)
        cases = kept
    cases = _chosen(cases, options)
    tally = run_files(
        place,
        cases,
        scratch,
        seed=options.seed,
        workers=options.workers,
        twice=not options.quick,
    )
    tally.excluded = excluded
    return tally


def _chosen(cases: Sequence[C], options: argparse.Namespace) -> list[C]:
    if options.only:
        return [case for case in cases if case.id.startswith(options.only)]
    if options.sample is not None:
        return sample(cases, options.sample, seed=options.seed)
    return list(cases)
