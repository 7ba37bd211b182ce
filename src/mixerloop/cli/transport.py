"""`mixerloop transport`: what each pass of a mixer does at the readout."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixerloop import machine, runs
from mixerloop.cli.opened import Measuring
from mixerloop.cli.progress_line import ProgressLine
from mixerloop.cli.transport_tables import show
from mixerloop.config import InitRule, check_fits, preset
from mixerloop.notation import resolve
from mixerloop.schedule import Schedule

if TYPE_CHECKING:
    from mixerloop.model.looped_lm import LoopedLM
    from mixerloop.transport.windows import Windows

HELP = """Restore the context of one pass after another and watch the prediction move.

ITR says over how many directions the passes of a layer spread; marginal ITR how much of a pass is
new; both say nothing of whether it helps, which the gain does. Read docs/transport.md first.

examples:
  mixerloop transport RUN
  mixerloop transport RUN --control --removal
  mixerloop transport RUN --context 256 --second-draw --json
  mixerloop transport --random 15m --schedule mixer_loop --init released --compute-dtype bfloat16
"""
RESULT = "transport.json"
FIGURES = "figures"


@dataclass(frozen=True, kw_only=True)
class Transport(Measuring):
    """The options of `mixerloop transport`."""

    run_path: Annotated[
        tyro.conf.Positional[Path | None], tyro.conf.arg(name="run", metavar="RUN")
    ] = None
    """A run, or one of its checkpoints; none with --random."""
    random: str | None = None
    """Fresh weights of this preset instead of a run, on token ids drawn at random."""
    init: InitRule = "shared"
    """How --random draws its weights."""
    data: Path | None = None
    """A prepared folder; the one the run was trained on unless you say so."""
    windows: int = 16
    """Held-out windows to look at."""
    positions: int = 16
    """Places in the second half of each window."""
    context: int = 128
    """Tokens of a window."""
    control: bool = False
    """Also measure the same model before training: the weights its seed drew."""
    removal: bool = False
    """Also leave out each pass and each ffn, and swap their order: what does that cost?"""
    second_draw: bool = False
    """Look at other windows, none of which is in the first draw."""
    seed: int = 0
    """Seed of the draw, of the resampling and, with --random, of the weights."""

    def run(self) -> None:
        """Measure, keep, draw and print."""
        from mixerloop.transport.result import transport_result

        self._check()
        subjects = self._fresh() if self.run_path is None else self._trained(self.run_path)
        results = {}
        for name, model in subjects.models.items():
            line = None if self.json else ProgressLine()
            results[name] = transport_result(
                model,
                subjects.windows,
                schedule=subjects.schedule,
                compute_dtype=self.compute_dtype,
                seed=self.seed,
                removal=self.removal and name != "control",
                progress=line and _told(line, name),
            )
            if line is not None:
                line.close()
        first, *control = results.values()
        result = {
            **subjects.heading,
            **first,
            "control": control[0] if control else None,
            "provenance": subjects.facts,
        }
        if subjects.kept_in is not None:
            keep(subjects.kept_in, result)
        if self.json:
            print(runs.to_json(result), end="")
            return
        show(result)
        if subjects.kept_in is not None:
            print(f"kept in {subjects.kept_in / RESULT}, pictures in {subjects.kept_in / FIGURES}")
        else:
            print("not kept; --out keeps the result and its pictures")

    def _check(self) -> None:
        if (self.run_path is None) == (self.random is None):
            raise ValueError("name a run, or a preset with --random")
        if self.windows < 2:
            raise ValueError(f"--windows must be at least 2, got {self.windows}")
        if self.positions < 1:
            raise ValueError(f"--positions must be at least 1, got {self.positions}")
        if self.control and self.random is not None:
            raise ValueError("--random is itself the control; --control goes with a trained run")

    def _fresh(self) -> "_Subjects":
        from mixerloop.model.device import find_device
        from mixerloop.model.initialization import fresh_model
        from mixerloop.ops.gated_delta_rule import choose_implementation
        from mixerloop.transport.windows import uniform_windows

        assert self.random is not None
        machine.keep_freed_memory()
        if self.out is not None:
            runs.check_can_hold(self.out)
        config = preset(self.random)
        config = dataclasses.replace(config, schedule=self.schedule or config.schedule)
        schedule = resolve(config.schedule, config.num_layers)
        device = find_device(self.device, option="--device")
        windows = uniform_windows(
            config.vocab_size,
            num=self.windows,
            context=self.context,
            num_positions=self.positions,
            seed=self.seed,
            draw=int(self.second_draw),
        )
        model = fresh_model(
            config,
            seed=self.seed,
            rule=self.init,
            implementation=choose_implementation(self.implementation, device.type),
        ).to(device)
        facts = runs.provenance(
            seed=self.seed,
            preset=self.random,
            init=self.init,
            data="uniform token ids",
            implementation=model.implementation,
            compute_dtype=self.compute_dtype,
            device=device.type,
        )
        return _Subjects({"fresh": model}, schedule, windows, {}, facts, self.out)

    def _trained(self, run: Path) -> "_Subjects":
        from mixerloop.data.batches import fingerprint
        from mixerloop.model.initialization import fresh_model
        from mixerloop.transport.windows import held_out_windows

        opened = self.open_run(run)
        data = opened.data(self.data)
        windows, num_ids = held_out_windows(
            data,
            num=self.windows,
            context=self.context,
            num_positions=self.positions,
            seed=self.seed,
            draw=int(self.second_draw),
        )
        check_fits(data, num_ids, opened.config.model.vocab_size)
        models = {"trained": opened.model}
        if self.control:
            if (train := opened.config.train) is None:
                raise ValueError(f"{run}: was not trained, so it is its own control")
            models["control"] = fresh_model(
                opened.config.model,
                seed=train.seed,
                rule=train.init,
                implementation=opened.model.implementation,
            ).to(opened.device)
        facts = opened.provenance(
            data=fingerprint(data), draw_seed=self.seed, draw=int(self.second_draw)
        )
        return _Subjects(models, opened.schedule, windows, opened.heading(), facts, opened.results)


@dataclass(frozen=True)
class _Subjects:
    """What is measured."""

    models: "dict[str, LoopedLM]"
    """The one asked for, and then its control."""
    schedule: Schedule
    windows: "Windows"
    heading: dict[str, Any]
    """How the result begins."""
    facts: dict[str, Any]
    """How it ends."""
    kept_in: Path | None


def _told(line: ProgressLine, name: str) -> Callable[[int, int], None]:
    return lambda done, total: line.show(f"{name}: {done} of {total} windows")


def keep(folder: Path, result: dict[str, Any]) -> None:
    """Write a result and its pictures."""
    from mixerloop.reports.transport_figures import transport_figures

    folder.mkdir(parents=True, exist_ok=True)
    runs.write_file(folder / RESULT, runs.to_json(result))
    models = {"model": result}
    if (control := result["control"]) is not None:
        models = {"trained": result, "control": control}
    for figure in transport_figures(models):
        figure.write(folder / FIGURES)
