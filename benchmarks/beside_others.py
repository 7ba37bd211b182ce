"""How fast the commands are beside other busy programs.

    python benchmarks/beside_others.py [--json] [--other PATH/TO/mixerloop]

`mixerloop train` on hops and on text, and `mixerloop generate`, run as a user runs them while this
script starts and ends programs that keep a core busy each. Quiet and busy phases take turns within
the life of one process. With --other the command of another installation then takes turns with
this command, and their quiet speeds are compared. Nothing else should run meanwhile.
"""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

from mixerloop import machine, runs
from mixerloop.files import json_text
from mixerloop.provenance import collect_provenance

HERE = Path(sys.executable).with_name("mixerloop")
BUSY = (0, 1, 2)
ROUNDS = 4
PHASE_SECONDS = 5
OTHER_ROUNDS = 16
OTHER_SECONDS = 4
WARM_UP_SECONDS = 2
PATIENCE = 120  # seconds until a command does something
ENDLESS = "1000000"
CONFIGS = {
    "train hops": ("nano-hops", "--model.num-layers", "2"),
    "train text": ("nano-stdlib", "--train.global-batch", "8"),
}
DECODE = "decode"


@dataclass(frozen=True)
class Progress:
    """Work that was done by a moment: tokens so far, as they were seen."""

    at: float
    tokens: float


class Watched:
    """A command at work, and how far it was when."""

    def __init__(self, what: str, command: Path, *, data: Path, run: Path) -> None:
        self.seen: list[Progress] = []
        self._ended = False
        if what == DECODE:
            words = ["generate", str(data / "fresh"), "--prompt-tokens", "1", "2", "3"]
            words += ["--max-tokens", ENDLESS]
        else:
            config, *options = CONFIGS[what]
            words = ["train", config, *options]
            words += ["--train.steps", ENDLESS, "--train.evaluate-every", ENDLESS]
            words += ["--data.path", str(data / config.split("-")[1]), "--out", str(run)]
        self._process = subprocess.Popen(
            [str(command), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        watch = self._watch_output if what == DECODE else self._watch_metrics
        self._watcher = threading.Thread(target=watch, args=(run,), daemon=True)
        self._watcher.start()
        began = time.monotonic()
        while len(self.seen) < 3:
            if self._process.poll() is not None or time.monotonic() - began > PATIENCE:
                raise RuntimeError(f"{what}: {command} does nothing")
            time.sleep(0.05)
        time.sleep(WARM_UP_SECONDS)

    def _watch_output(self, _run: Path) -> None:
        assert self._process.stdout is not None
        tokens = 0
        while some := self._process.stdout.read1(4096):  # pyright: ignore[reportAttributeAccessIssue]
            tokens += some.count(b" ")
            self.seen.append(Progress(time.monotonic(), tokens))

    def _watch_metrics(self, run: Path) -> None:
        path = run / runs.METRICS
        while not self._ended and not path.is_file():
            time.sleep(0.02)
        with path.open() as file:
            while not self._ended:
                if line := file.readline():
                    self.seen.append(Progress(time.monotonic(), json.loads(line)["tokens"]))
                else:
                    time.sleep(0.005)

    def tokens_at(self, moment: float) -> float:
        """Tokens done by a moment, a step's tokens spread over the time it took."""
        before = max((one for one in self.seen if one.at <= moment), key=lambda one: one.at)
        after = [one for one in self.seen if one.at > moment]
        if not after:
            return before.tokens
        share = (moment - before.at) / (after[0].at - before.at)
        return before.tokens + share * (after[0].tokens - before.tokens)

    def rates(self, start: float, seconds: int) -> list[float]:
        """Tokens of each second."""
        marks = [self.tokens_at(start + second) for second in range(seconds + 1)]
        return [after - before for before, after in pairwise(marks)]

    def stop(self) -> None:
        """Let the command wait until its next turn."""
        self._process.send_signal(signal.SIGSTOP)

    def rate_of_a_turn(self, seconds: float) -> float:
        """Tokens a second of one turn, from its first progress to its last."""
        began = len(self.seen)
        self._process.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self.stop()
        turn = self.seen[began:]
        return (turn[-1].tokens - turn[0].tokens) / (turn[-1].at - turn[0].at)

    def end(self) -> None:
        """Kill the command; nothing of it is kept."""
        self._ended = True
        self._process.kill()
        self._process.wait()
        self._watcher.join()


@contextmanager
def busy_programs(number: int) -> Iterator[None]:
    """Programs that keep a core busy each, as far as they get one."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def beside(what: str, data: Path) -> list[dict[str, object]]:
    """One case for each number of busy programs."""
    watched = Watched(what, HERE, data=data, run=data / f"{what}, beside")
    phases: list[tuple[int, float]] = []
    try:
        for _ in range(ROUNDS):
            for number in BUSY:
                with busy_programs(number):
                    phases.append((number, time.monotonic()))
                    time.sleep(PHASE_SECONDS)
        time.sleep(1)  # the step that was under way at the end
    finally:
        watched.end()
    rates = {
        number: [
            rate
            for of_phase, start in phases
            if of_phase == number
            for rate in watched.rates(start, PHASE_SECONDS)
        ]
        for number in BUSY
    }
    quiet = mean(rates[0])
    return [
        {
            "what": what,
            "busy": number,
            "tokens_per_second": mean(found),
            "ratio_to_quiet": mean(found) / quiet,
            "slowest_second_ratio": min(found) / quiet,
        }
        for number, found in rates.items()
    ]


def against(what: str, other: Path, data: Path) -> dict[str, object]:
    """Quiet speed of this command over that of another installation.

    Both are alive at once and take turns of a few seconds, the one that waits stopped by a signal,
    so that a machine whose speed drifts favours neither. Who is first changes from round to round.
    """
    commands = {"here": HERE, "other": other}
    with ExitStack() as both:
        watched = {}
        for name, command in commands.items():
            watched[name] = Watched(what, command, data=data, run=data / f"{what}, {name}")
            both.callback(watched[name].end)
            watched[name].stop()
        rates: dict[str, list[float]] = {name: [] for name in commands}
        for round_ in range(OTHER_ROUNDS):
            for name in sorted(commands, reverse=bool(round_ % 2)):
                rates[name].append(watched[name].rate_of_a_turn(OTHER_SECONDS))
    ratios = [here / there for here, there in zip(rates["here"], rates["other"], strict=True)]
    return {"what": what, "ratio_to_other": median(ratios), "rounds": ratios}


def main() -> None:
    as_json = "--json" in sys.argv
    other = Path(sys.argv[sys.argv.index("--other") + 1]) if "--other" in sys.argv else None
    neighbours = machine.Neighbours()
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch)
        for words in (["data", "prepare", "hops"], ["data", "prepare", "stdlib"], ["init", "nano"]):
            out = data / ("fresh" if words[0] == "init" else words[-1])
            subprocess.run([HERE, *words, "--out", out], check=True, capture_output=True)
        cases, versus = [], []
        for what in (*CONFIGS, DECODE):
            cases += beside(what, data)
            if other is not None:
                versus.append(against(what, other, data))
    if as_json:
        facts = collect_provenance(seed=1337, busy_cores=neighbours.busy_cores())
        print(json_text({"cases": cases, "quiet": versus, "provenance": facts}), end="")
        return
    facts = machine.facts()
    print(f"{facts['processor']}, {facts['cores']} cores, {PHASE_SECONDS} s at a time")
    for case in cases:
        print(
            f"{case['what']:10}  beside {case['busy']} busy: {case['tokens_per_second']:9,.0f} "
            f"tokens/s  {case['ratio_to_quiet']:.2f} of quiet, slowest second "
            f"{case['slowest_second_ratio']:.2f}"
        )
    for one in versus:
        print(f"{one['what']:10}  quiet, against {other}: {one['ratio_to_other']:.3f}")


if __name__ == "__main__":
    main()
