"""`mixerloop transport`: what each pass of a mixer does at the readout."""

import dataclasses
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixerloop import machine, runs
from mixerloop.cli.opened import Opened, Opening, check_fits
from mixerloop.cli.progress_line import ProgressLine
from mixerloop.cli.tables import print_table, table_of
from mixerloop.config import ComputeDtype, Device, ImplementationChoice, InitRule, preset
from mixerloop.notation import notation, resolve
from mixerloop.schedule import Schedule

if TYPE_CHECKING:
    from mixerloop.model.looped_lm import LoopedLM
    from mixerloop.transport.windows import Windows

HELP = """Restore the context of one pass after another and watch the prediction move.

ITR says over how many directions the passes of a layer spread; marginal ITR how much of a pass is
new; both say nothing of whether it helps, which the gain does. Read docs/transport.md first.

examples:
  mixerloop transport RUN
  mixerloop transport RUN --context 256 --removal --json
  mixerloop transport --random 15m --schedule mixer_loop --init released --compute-dtype bfloat16
"""
RESULT = "transport.json"


@dataclass(frozen=True, kw_only=True)
class Transport:
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
    removal: bool = False
    """Also leave out each pass and each ffn, and swap their order: what does that cost?"""
    second_draw: bool = False
    """Look at other windows, none of which is in the first draw."""
    seed: int = 0
    """Seed of the draw, of the resampling and, with --random, of the weights."""
    schedule: str | None = None
    """Run under another schedule than the one the weights were trained with."""
    compute_dtype: ComputeDtype = "float32"
    """The type of the projections; in bfloat16 small effects are rounding."""
    implementation: ImplementationChoice = "auto"
    """The form of the operators."""
    device: Device = "auto"
    """Where to run."""
    out: Path | None = None
    """Keep the result here instead of in RUN/results."""
    json: bool = False
    """Print JSON for programs, and no progress."""

    def run(self) -> None:
        """Measure, keep and print."""
        from mixerloop.transport.noise import noise_floor
        from mixerloop.transport.removal import removal_costs
        from mixerloop.transport.summary import summarise, summarise_removals
        from mixerloop.transport.trajectory import measure

        if (self.run_path is None) == (self.random is None):
            raise ValueError("name a run, or a preset with --random")
        if self.windows < 2:
            raise ValueError(f"--windows must be at least 2, got {self.windows}")
        if self.positions < 1:
            raise ValueError(f"--positions must be at least 1, got {self.positions}")
        if self.run_path is None:
            model, schedule, windows, facts = self._fresh()
            opened = None
        else:
            opened = self._opening(self.run_path).open()
            model, schedule = opened.model, opened.schedule
            windows, facts = self._held_out(opened)
        line = None if self.json else ProgressLine()
        found = measure(
            model,
            windows,
            schedule=schedule,
            compute_dtype=self.compute_dtype,
            progress=line and (lambda done, total: line.show(f"{done} of {total} windows")),
        )
        noise = noise_floor(model, windows, schedule=schedule, compute_dtype=self.compute_dtype)
        options = {"schedule": schedule, "compute_dtype": self.compute_dtype}
        removed = None
        if self.removal:
            costs = removal_costs(model, windows, **options)
            removed = summarise_removals(found, costs, seed=self.seed)
        if line is not None:
            line.close()
        result = {
            "schedule": notation(schedule),
            "compute_dtype": self.compute_dtype,
            "windows": len(windows.tokens),
            "context": windows.tokens.shape[1],
            "positions": windows.positions.tolist(),
            **summarise(found, seed=self.seed),
            "noise_floor": {
                name: value if isinstance(value, str | int) else value.tolist()
                for name, value in asdict(noise).items()
            },
            "removal": removed,
            "provenance": facts,
        }
        if opened is not None:
            result = opened.heading() | result
            opened.keep(RESULT, result)
        elif self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            runs.write_file(self.out / RESULT, runs.to_json(result))
        if self.json:
            print(runs.to_json(result), end="")
            return
        _show(result)
        if opened is not None:
            print(opened.where_kept(RESULT))

    def _opening(self, run: Path) -> Opening:
        return Opening(
            run_path=run,
            schedule=self.schedule,
            compute_dtype=self.compute_dtype,
            implementation=self.implementation,
            device=self.device,
            out=self.out,
            json=self.json,
        )

    def _fresh(self) -> "tuple[LoopedLM, Schedule, Windows, dict[str, Any]]":
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
        return model, schedule, windows, facts

    def _held_out(self, opened: Opened) -> "tuple[Windows, dict[str, Any]]":
        from mixerloop.data.batches import fingerprint, hops_settings
        from mixerloop.data.hops import Hops
        from mixerloop.data.shards import TokenSplit
        from mixerloop.transport.windows import hops_windows, text_windows

        data = opened.data(self.data)
        draw = int(self.second_draw)
        if (settings := hops_settings(data)) is not None:
            hops = Hops(settings, "held_out")
            num_ids = hops.vocab_size
            windows = hops_windows(
                hops, num=self.windows, num_positions=self.positions, seed=self.seed, draw=draw
            )
        else:
            split = TokenSplit(data, "held_out")
            num_ids = split.manifest.vocab_size
            windows = text_windows(
                split,
                num=self.windows,
                context=self.context,
                num_positions=self.positions,
                seed=self.seed,
                draw=draw,
            )
        check_fits(data, num_ids, opened.config.model.vocab_size)
        facts = opened.provenance(data=fingerprint(data), draw_seed=self.seed, draw=draw)
        return windows, facts


def _show(result: dict[str, Any]) -> None:
    low, high = result["itr_interval"]
    passes = range(len(result["marginal_itr"]))
    print(
        f"schedule {result['schedule']}, {result['compute_dtype']}; {result['windows']} windows of "
        f"{result['context']} tokens, {len(result['positions'])} positions each"
    )
    print(f"ITR {result['itr']:.3f} [{low:.3f}, {high:.3f}]")
    table = table_of(
        *("pass", "ITR so far", "marginal ITR", "95 % interval", "rounding", "H2"),
        *("gain, nats", "95 % interval", "top-1 flips"),
    )
    for index in passes:
        new, gain = result["marginal_itr_interval"][index], result["target_gain_interval"][index]
        table.add_row(
            str(index + 1),
            f"{result['itr_by_depth'][index]:.3f}",
            f"{result['marginal_itr'][index]:.3f}",
            f"{new[0]:.3f} to {new[1]:.3f}",
            f"{result['noise_floor']['marginal_itr'][index]:.1e}",
            f"{result['hellinger_squared'][index]:.2e}",
            f"{result['target_gain'][index]:+.4f}",
            f"{gain[0]:+.4f} to {gain[1]:+.4f}",
            f"{result['top1_flips'][index]:.3f}",
        )
    print_table(table)
    low, high = result["later_share_interval"]
    print(
        f"later passes: {result['later_share']:.1%} [{low:.1%}, {high:.1%}] of the effect, "
        f"{result['later_gain']:+.4f} nats; of {result['pairs_total']} (layer, pass) pairs "
        f"{result['pairs_novel']} have a marginal ITR above 0.5 and {result['pairs_positive']} a "
        "positive gain"
    )
    if (removed := result["removal"]) is not None:
        _show_removal(removed)
    wider = result["noise_floor"]["wider_type"]
    print(f"rounding: what the marginal ITR of the first windows loses when measured in {wider}")


def _show_removal(removed: dict[str, Any]) -> None:
    for kind, title in (
        ("skip", "NLL without a mixer pass"),
        ("ffn_off", "NLL without an ffn"),
        ("swap_order", "NLL with an ffn before its mixer"),
    ):
        parts = (f"{one['layer']}.{one['pass']} {one['delta_nll']:+.4f}" for one in removed[kind])
        print(f"{title}, by layer.pass: {', '.join(parts)}")
    value = removed["spearman_marginal_itr_and_skip"]
    if value is not None:
        low, high = removed["spearman_marginal_itr_and_skip_interval"]
        print(
            f"rank correlation of marginal ITR and the cost of leaving a pass out: {value:.2f} "
            f"[{low:.2f}, {high:.2f}]"
        )
