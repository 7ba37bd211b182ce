"""Signals at generated moments of every long verb, and the oracle that judges what they leave.

A moment is a number of file operations of the verb (`signals_hook`), a number of imports of a real
process, or a share of the time that the verb takes undisturbed. All are drawn from a seed:

python -m chaos.signals --seed 0 --per-verb 8          # in tests/; all verbs
python -m chaos.signals --verbs train core --only 17   # one case again, by its number
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from chaos.signals_hook import SITE, VARIABLE, Hook
from chaos.signals_server import COMMAND, PATIENCE, POLL_SECONDS, Server, Started, environment
from chaos.signals_verbs import (
    BY_NAME,
    TORCHRUN,
    VERBS,
    Materials,
    Verb,
    differences,
    leftovers,
    result_of,
    user_files,
)
from mixerloop import machine, runs
from mixerloop.files import check_seal

T = TypeVar("T")
INT, TERM, HUP, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL
STOPS = (INT, TERM, HUP)
LAUNCHER = (
    *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
    *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "mixerloop"),
)
SAID = 2
"""Lines that a stopped verb may add to what it writes to stderr undisturbed."""
UGLY = ("Traceback", "Exception ignored", "Fatal Python error", "core dumped", "Warning:")
RANK_SECONDS = 5
"""How long the other ranks may work after the first has ended."""
FIRST = 0.1
"""The share of a verb's time in which it parses its options and opens its files."""
START_VERBS = ("init", "train", "prepare", "report")
"""Verbs that are started as real processes, for signals at the start of the interpreter."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A verb and the signals that it gets."""

    verb: Verb
    signals: tuple[signal.Signals, ...]
    events: tuple[int, ...] = ()
    """The file operation of each signal, from 0; nothing where the moment is a time."""
    after: bool = False
    """Whether signals are sent right after an operation has returned, not just before it."""
    share: float | None = None
    """The moment as a share of the seconds that the undisturbed verb takes."""
    imports: int | None = None
    """Imports before the signal, in a real process."""
    step: int | None = None
    """The step of a run under torchrun at which the signal is sent."""
    whole_group: bool = False
    """Whether all processes of the verb get the signal, as from a terminal."""
    ignored: bool = False
    """Whether the verb was started with the signals ignored, as by nohup."""

    def __str__(self) -> str:
        names = "+".join(number.name for number in self.signals)
        if self.imports is not None:
            moment = f"at import {self.imports} of a new process"
        elif self.step is not None:
            moment = f"at step {self.step}"
        elif self.share is not None:
            moment = f"at {self.share:.3f} of its time"
        else:
            side = "after" if self.after else "before"
            moment = f"{side} file operation {' and '.join(map(str, self.events))}"
        more = ", to all its processes" if self.whole_group else ""
        return f"{self.verb.name}: {names}{', ignored,' if self.ignored else ''} {moment}{more}"


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """What a verb does when nothing happens to it."""

    result: dict[str, Any]
    seconds: float
    events: int
    """File operations that write."""
    said: int
    """Lines on stderr."""


class Arena:
    """A folder in which verbs run, with their materials and undisturbed results."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.materials = Materials(folder / "materials", server)
        self._undisturbed: dict[str, Undisturbed] = {}
        self._places = 0

    @contextmanager
    def place(self, verb: Verb) -> Iterator[Path]:
        """A new folder with what a verb reads; removed at the end, unless an assertion failed."""
        self._places += 1
        place = self.new_place(f"{verb.name}-{self._places:05}")
        self.materials.copy(verb, place)
        yield place
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(self.output(place), ignore_errors=True)

    def new_place(self, name: str) -> Path:
        """The path of a place."""
        return self.folder / name

    def output(self, place: Path) -> Path:
        """The folder for the streams of the processes of a place."""
        return place.with_name(f"{place.name}.output")

    def start(self, verb: Verb, place: Path, **options: Any) -> list[Started]:
        """Start a verb, or finish it after a stop; one process for each rank."""
        command = verb.command(place)
        if verb.ranks == 1:
            return [self.server.start(command, cwd=place, output=self.output(place), **options)]
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        return [
            self.server.start(
                command,
                cwd=place,
                output=self.output(place) / f"rank-{rank}",
                variables=meeting
                | {"WORLD_SIZE": str(verb.ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)},
                **options if rank == 0 else {},
            )
            for rank in range(verb.ranks)
        ]

    def finish(self, verb: Verb, place: Path) -> str | None:
        """Run a verb to its end; returns the problem if it fails."""
        processes = self.start(verb, place)
        codes = wait_for_ranks(processes)
        if any(codes):
            said = processes[codes.index(max(codes))].stderr.read_text().strip().splitlines()
            return f"exit code {max(codes)}: {said[-1] if said else ''}"
        return None

    def undisturbed(self, verb: Verb) -> Undisturbed:
        """The undisturbed run of a verb, run once."""
        if verb.name not in self._undisturbed:
            with self.place(verb) as place:
                record = place.with_name(f"{place.name}.events")
                hook = Hook(folder=str(place), record=str(record))
                began = time.monotonic()
                processes = self.start(verb, place, hook=hook)
                codes = [process.wait() for process in processes]
                assert not any(codes), processes[0].stderr.read_text()
                self._undisturbed[verb.name] = Undisturbed(
                    result=result_of(verb, place, processes[0].stdout),
                    seconds=time.monotonic() - began,
                    events=len(record.read_text().splitlines()),
                    said=len(processes[0].stderr.read_text().splitlines()),
                )
        return self._undisturbed[verb.name]

    @cached_property
    def site(self) -> Path:
        """A folder whose `sitecustomize.py` installs the hook in a real process."""
        folder = self.folder / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(SITE)
        return folder

    def real_process(
        self,
        verb: Verb,
        place: Path,
        *,
        hook: Hook | None = None,
        launcher: Sequence[str] = COMMAND,
    ) -> subprocess.Popen[bytes]:
        """Start a verb as a user does, in a process group of its own."""
        output = self.output(place)
        output.mkdir(parents=True, exist_ok=True)
        hooked = {"PYTHONPATH": str(self.site)}
        variables = {} if hook is None else hooked | {VARIABLE: hook.to_json()}
        with (output / "stdout").open("wb") as stdout, (output / "stderr").open("wb") as stderr:
            return subprocess.Popen(
                [*launcher, *verb.command(place)],
                cwd=place,
                env=environment(place) | variables,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )


def cases(arena: Arena, verbs: Sequence[Verb], *, per_verb: int, seed: int) -> Iterator[Case]:
    """Generated cases; the same for the same seed and the same program."""
    for verb in verbs:
        draws = random.Random(f"{seed}/{verb.name}")
        events = arena.undisturbed(verb).events
        order = draws.sample((INT, TERM, HUP, KILL), 4)
        total = max(2, per_verb // verb.cost)
        for number in range(total):
            sent = order[number % 4]
            if (number + number // 4) % 2 == 0 and events:
                yield Case(
                    verb=verb,
                    signals=(sent,),
                    events=(int((number + draws.random()) / total * events),),
                    after=draws.random() < 0.5,
                )
            else:
                share = draws.uniform(0, 1.02 if number % 3 else FIRST)
                group = draws.random() < 0.5
                yield Case(verb=verb, signals=(sent,), share=share, whole_group=group)
            if number % 4 == 1 and events > 1:
                first, second = sorted(draws.sample(range(events), 2))
                pair = (draws.choice(STOPS), draws.choice((*STOPS, KILL)))
                after = draws.random() < 0.5
                yield Case(verb=verb, signals=pair, events=(first, second), after=after)
            if number % 4 == 2:
                yield Case(
                    verb=verb,
                    signals=(draws.choice((INT, HUP)),),
                    share=draws.uniform(0.1, 0.9),
                    ignored=True,
                )


def every_operation(arena: Arena, verb: Verb) -> Iterator[Case]:
    """A signal before and after every file operation of a verb, all signals in turn."""
    for at in range(arena.undisturbed(verb).events):
        for after in (False, True):
            sent = (*STOPS, KILL)[(at + 2 * after) % 4]
            yield Case(verb=verb, signals=(sent,), events=(at,), after=after)


def start_cases(verbs: Sequence[Verb], *, number: int, imports: int, seed: int) -> Iterator[Case]:
    """Signals at the first imports of a real process, and at any of its imports."""
    draws = random.Random(f"{seed}/start")
    for at in range(number):
        latest = imports if at % 2 else imports // 20
        yield Case(
            verb=verbs[at % len(verbs)],
            signals=(STOPS[at % len(STOPS)],),
            imports=draws.randrange(latest),
        )


def torchrun_cases(*, number: int, seed: int) -> Iterator[Case]:
    """Signals to torchrun, or to torchrun and its ranks at once, at drawn steps."""
    draws = random.Random(f"{seed}/torchrun")
    order = draws.sample((INT, TERM, HUP, KILL), 4)
    for at in range(number):
        sent = order[at % 4]
        group = sent == KILL or draws.random() < 0.5
        step = draws.randrange(1, 120)
        yield Case(verb=TORCHRUN, signals=(sent,), step=step, whole_group=group)


def violations(arena: Arena, case: Case) -> list[str]:
    """Run a case; returns the promises that it broke."""
    verb, undisturbed = case.verb, arena.undisturbed(case.verb)
    with arena.place(verb) as place:
        before = user_files(verb, place)
        try:
            codes, stderr = _disturbed(arena, case, place)
        except TimeoutError as error:
            return [f"hang: {error}"]
        broken = _judged_end(case, codes, stderr, undisturbed)
        killed = KILL in case.signals
        if not killed and (left := leftovers(place)):
            broken.append(f"leftover: {left[0]}")
        broken += _judged_stop(verb, place, undisturbed, killed=killed)
        broken += judged_rest(arena, verb, place, finished=not any(codes))
        changed = differences(user_files(verb, place), before)
        broken += [f"changed file of the user: {name}" for name in changed if name in before]
    return broken


def _disturbed(arena: Arena, case: Case, place: Path) -> tuple[list[int], str]:
    """Run the verb of a case with its signals; returns exit codes and stderr."""
    if case.imports is not None or case.step is not None:
        return _disturbed_process(arena, case, place), (arena.output(place) / "stderr").read_text()
    pairs = zip(case.events, map(int, case.signals), strict=False)
    hook = Hook(folder=str(place), signals=tuple(pairs), after=case.after) if case.events else None
    ignored = [int(number) for number in case.signals] if case.ignored else []
    processes = arena.start(case.verb, place, hook=hook, ignored=ignored)
    if case.share is not None:
        time.sleep(case.share * arena.undisturbed(case.verb).seconds)
        for process in processes if case.whole_group else processes[:1]:
            if process.poll() is None:
                number = case.signals[0]
                (process.kill_group if case.whole_group else process.send_signal)(number)
    return wait_for_ranks(processes), processes[0].stderr.read_text()


def _disturbed_process(arena: Arena, case: Case, place: Path) -> list[int]:
    number = case.signals[0]
    if case.imports is not None:
        hook = Hook(folder=str(place), kind="imports", signals=((case.imports, int(number)),))
        process = arena.real_process(case.verb, place, hook=hook)
    else:
        process = arena.real_process(case.verb, place, launcher=LAUNCHER)
        metrics = place / case.verb.makes[0] / "metrics.jsonl"
        while process.poll() is None and _num_lines(metrics) < (case.step or 0):
            time.sleep(POLL_SECONDS)
        for target in _at_work_in(place) if case.whole_group else [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, number)
    try:
        return [process.wait(PATIENCE)]
    except subprocess.TimeoutExpired:
        for target in _at_work_in(place):
            os.kill(target, KILL)
        process.wait()
        raise TimeoutError(f"did not end in {PATIENCE:.0f} s") from None


def _at_work_in(place: Path) -> list[int]:
    """The processes that were started in a place; torchrun gives each rank its own group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            if (folder / "cwd").readlink() == place.resolve():
                found.append(int(folder.name))
    return sorted(found)


def _num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def wait_for_ranks(processes: Sequence[Started]) -> list[int]:
    """Exit codes; as under torchrun, the ranks are ended soon after the first has failed."""
    first, *others = processes
    if first.wait() != 0:
        for process in others:
            for number in (TERM, KILL):
                process.wait_at_most(RANK_SECONDS)
                process.kill_group(number)
    return [process.wait() for process in processes]


def _judged_end(case: Case, codes: list[int], stderr: str, undisturbed: Undisturbed) -> list[str]:
    """Judge exit code and stderr of the first rank: the others get a signal through it."""
    if case.step is not None:
        return []  # exit code and stderr are torchrun's own, which prints a traceback of a signal
    allowed = {0} if case.ignored else {0, *(128 + number for number in case.signals)}
    if KILL in case.signals:
        allowed |= {-KILL}
    broken = []
    if codes[0] not in allowed:
        last = stderr.strip().splitlines()[-1:] or [""]
        broken.append(f"exit code {codes[0]} instead of {sorted(allowed)}: {last[0]}")
    broken += [f"{word} on stderr: {_near(stderr, word)}" for word in UGLY if word in stderr]
    lines = stderr.strip().splitlines()
    if not broken and len(lines) > undisturbed.said + SAID:
        broken.append(f"{len(lines)} lines on stderr: {lines[-1]}")
    return broken


def _near(text: str, word: str) -> str:
    """The last line of the message that begins with a word."""
    lines = text[text.index(word) :].splitlines()
    return next((line for line in lines[1:] if line and not line.startswith(" ")), lines[0])


def _judged_stop(verb: Verb, place: Path, undisturbed: Undisturbed, *, killed: bool) -> list[str]:
    """Judge the files that a stopped verb leaves: complete ones, and all steps in a checkpoint."""
    if verb.is_atomic and (place / verb.makes[0]).exists():
        differing = differences(result_of(verb, place), undisturbed.result)
        return [f"half-made output: {differing[0]}"] if differing else []
    if verb.arguments[0] == "train" and (place / verb.makes[0]).exists():
        return judged_run(place / verb.makes[0], killed=killed)
    return []


def judged_run(run: Path, *, killed: bool) -> list[str]:
    """Judge a run: every checkpoint is complete, and no step is lost unless it was killed."""
    checkpoints = runs.checkpoints(run)
    if not checkpoints:
        return ["the run has no checkpoint"]
    for step in checkpoints:
        try:
            check_seal(runs.checkpoint_folder(run, step))
        except ValueError as error:
            return [f"incomplete checkpoint: {error}"]
    metrics = run / "metrics.jsonl"
    steps = metrics.read_text().count("\n") if metrics.is_file() else 0
    if not killed and max(checkpoints) < steps:
        return [f"lost steps: {steps} steps, and the newest checkpoint is of {max(checkpoints)}"]
    return []


def judged_rest(arena: Arena, verb: Verb, place: Path, *, finished: bool) -> list[str]:
    """Judge the result after the same command has run again."""
    expected = arena.undisturbed(verb).result
    printed = arena.output(place) / "stdout"
    is_done = not differences(result_of(verb, place, printed), expected)
    if finished and not is_done:
        differing = differences(result_of(verb, place, printed), expected)
        return [f"exit code 0 with another result: {', '.join(differing[:3])}"]
    if finished or (verb.is_made_once and is_done):
        return []
    try:
        if (problem := arena.finish(verb, place)) is not None:
            return [f"cannot be finished: {problem}"]
    except TimeoutError as error:
        return [f"hang when run again: {error}"]
    differing = differences(result_of(verb, place, printed), expected)
    return [f"another result after a stop: {', '.join(differing[:3])}"] if differing else []


@dataclass
class Tally:
    """The cases of a session and what they broke."""

    cases: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)

    def run(
        self,
        generated: Iterable[T],
        violations_of: Callable[[T], list[str]],
        *,
        only: int | None = None,
    ) -> None:
        """Run cases and print each violation with the number of its case."""
        began = time.monotonic()
        for number, case in enumerate(generated):
            if only is not None and number != only:
                continue
            self.cases += 1
            for problem in violations_of(case):
                self.broken.append(f"case {number}, {case}: {problem}")
                print(self.broken[-1], flush=True)
        self.seconds += time.monotonic() - began

    def __str__(self) -> str:
        return f"{self.cases} cases, {self.seconds:.0f} s, {len(self.broken)} violations"


def _free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def main() -> None:
    """Run generated cases and print how many there were."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-verb", type=int, default=8)
    parser.add_argument("--every", action="store_true", help="all file operations of the verbs")
    parser.add_argument("--starts", type=int, default=24, help="cases at the start of a process")
    parser.add_argument("--torchruns", type=int, default=4, help="cases under torchrun")
    parser.add_argument("--verbs", nargs="*", default=[verb.name for verb in VERBS])
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    verbs = [BY_NAME[name] for name in options.verbs]
    machine.settle()
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        arena, tally = Arena(Path(folder), server), Tally()
        for verb in verbs:
            generated = (
                every_operation(arena, verb)
                if options.every
                else cases(arena, [verb], per_verb=options.per_verb, seed=options.seed)
            )
            tally.run(generated, lambda case: violations(arena, case), only=options.only)
            print(f"{verb.name}: so far {tally}", flush=True)
        starting = [BY_NAME[name] for name in START_VERBS if name in options.verbs]
        if starting:
            generated = start_cases(
                starting, number=options.starts, imports=IMPORTS, seed=options.seed
            )
            tally.run(generated, lambda case: violations(arena, case), only=options.only)
            generated = torchrun_cases(number=options.torchruns, seed=options.seed)
            tally.run(generated, lambda case: violations(arena, case), only=options.only)
    print(tally)
    sys.exit(1 if tally.broken else 0)


IMPORTS = 2000
"""Imports of a real process that has loaded torch, from the first of this package on."""

if __name__ == "__main__":
    main()
