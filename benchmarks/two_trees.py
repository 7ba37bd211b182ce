"""Training and prefill of the default models in two installations, in turn.

    python benchmarks/two_trees.py --other PYTHON [--size 15m] [--rounds 8] [--json]

PYTHON is the interpreter of an environment with another version of mixerloop. Both processes stay
alive and take turns call by call, so that a machine whose speed drifts favours neither. A training
call is a forward and a backward in the compute type that `mixerloop train` would choose; a prefill
reads a prompt without gradients in float32. The loss of both must agree before anything is timed.
The ratio is the time of this installation over that of the other: above 1 this one is slower. Let
nothing else run meanwhile.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from mixerloop.benchmarking.measure import Quartiles, Timing, header
from mixerloop.files import json_text
from mixerloop.provenance import collect_provenance

LOOPS = ("no_loop", "mixer_loop", "full_loop")
CALLS = (("train", 4), ("prefill", 1), ("prefill", 8))  # what is called, and its batch
LENGTH = 1024
AGREE = 1e-3  # of the mean loss, in bfloat16
WORKER = "--worker"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of one loop in both installations."""

    what: str
    batch: int
    loop: str
    here_milliseconds: Quartiles
    other_milliseconds: Quartiles
    ratio: Quartiles


class Worker:
    """A process of one installation that runs a call when it is told to."""

    def __init__(self, python: str, size: str) -> None:
        self.python = python
        command = [python, "-P", __file__, WORKER, size]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def ask(self, *words: str) -> float:
        """The number that the worker answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.python} stopped")
        return float(answer)

    def end(self) -> None:
        """Let the process finish."""
        self.process.communicate()


def work(size: str) -> None:
    """Answer `set WHAT BATCH LOOP` with a loss and `run` with seconds, until the input ends."""
    from dataclasses import replace

    import torch

    from mixerloop.benchmarking.conditions import config_of
    from mixerloop.model.initialization import fresh_model
    from mixerloop.model.looped_lm import LoopedLM
    from mixerloop.ops.precision import choose_compute_dtype, compute_in

    def prepared(what: str, batch: int, loop: str) -> Callable[[], float]:
        model: LoopedLM = fresh_model(replace(config_of(size), schedule=loop), seed=0)
        generator = torch.Generator().manual_seed(0)
        shape = (batch, LENGTH)
        tokens = torch.randint(model.config.vocab_size, shape, generator=generator)
        labels = tokens.roll(-1, 1).flatten()
        trains = what == "train"
        dtype = choose_compute_dtype("auto", "cpu") if trains else "float32"

        def call() -> float:
            with torch.set_grad_enabled(trains), compute_in(dtype, "cpu"):
                walked = model.walk(model.embed(tokens), model.schedule)
                if not trains:
                    last = walked.residual[:, -1]
                    return float(model.summed_nll(last, tokens[:, 0])) / len(tokens)
                loss = model.summed_nll(walked.residual.flatten(0, 1), labels) / len(labels)
            model.zero_grad()
            loss.backward()
            return float(loss.detach())

        return call

    call: Callable[[], float] | None = None
    for line in sys.stdin:
        words = line.split()
        if words[0] == "set":
            call = prepared(words[1], int(words[2]), words[3])
            call()  # warms up
            print(call(), flush=True)
            continue
        assert call is not None
        began = time.perf_counter()
        call()
        print(time.perf_counter() - began, flush=True)


def compare(here: Worker, other: Worker, what: str, batch: int, loop: str, rounds: int) -> Case:
    """Time calls in turn; who is first changes from round to round."""
    losses = [worker.ask("set", what, str(batch), loop) for worker in (here, other)]
    if abs(losses[0] - losses[1]) > AGREE * abs(losses[1]):
        raise SystemExit(f"{what}, {loop}: the losses are {losses[0]} here and {losses[1]} there")
    times: dict[Worker, list[float]] = {here: [], other: []}
    for number in range(rounds):
        for worker in (here, other) if number % 2 else (other, here):
            times[worker].append(worker.ask("run"))
    ours, theirs = (Timing(tuple(times[worker])) for worker in (here, other))
    return Case(
        what=what,
        batch=batch,
        loop=loop,
        here_milliseconds=ours.milliseconds,
        other_milliseconds=theirs.milliseconds,
        ratio=ours.over(theirs),
    )


def main() -> None:
    """Compare every loop, print the table."""
    parser = argparse.ArgumentParser(description="Two installations in turn.")
    parser.add_argument("--other", required=True, help="Python of the other environment")
    parser.add_argument("--size", default="15m")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    given = parser.parse_args()
    workers = [Worker(python, given.size) for python in (sys.executable, given.other)]
    cases = [
        compare(workers[0], workers[1], what, batch, loop, given.rounds)
        for what, batch in CALLS
        for loop in LOOPS
    ]
    for worker in workers:
        worker.end()
    if given.json:
        facts = {"cases": [asdict(case) for case in cases], "provenance": collect_provenance()}
        print(json_text(facts), end="")
        return
    print(header())
    print(f"{given.size}, {LENGTH} tokens, {given.rounds} rounds")
    for case in cases:
        ratio = f"{case.ratio.median:.3f} [{case.ratio.lower:.3f}, {case.ratio.upper:.3f}]"
        print(
            f"{case.what:8} {case.batch} {case.loop:11} {case.here_milliseconds.median:8.1f} ms, "
            f"other {case.other_milliseconds.median:8.1f} ms, ratio {ratio}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        work(sys.argv[2])
    else:
        main()
