"""`describe`: the cost of a size under each schedule, beside the paper's figures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mixerloop import config
from mixerloop.config import RunConfig
from mixerloop.interop.loading import model_of
from mixerloop.model.accounting import (
    CONTEXT,
    ModelAccount,
    ScheduleAccount,
    StateAccount,
    account_model,
    account_schedule,
    account_states,
)
from mixerloop.notation import notation, resolve, shortened
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.paper import COST, PaperCost
from mixerloop.parsing import checked
from mixerloop.reports.schedule_diagram import draw
from mixerloop.schedule import BLOCK, LOOPS, Schedule, Sublayer
from mixerloop.training.depth import Depth
from mixerloop.training.opened import recipe_of


@dataclass(frozen=True, kw_only=True)
class DepthCost:
    """A depth that a config trains."""

    schedule: str
    """In notation."""
    share: float
    """The share of the tokens that are trained under it."""
    training_flops: float
    """Operations of a token, forward and backward, the objective's readouts included."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """Parameters, compute, state and activations of a model under several schedules."""

    size: str
    """The preset, config file or folder, as the caller named it."""
    schedule: str
    """The model's own schedule, in notation."""
    kinds: tuple[tuple[str, str], ...]
    """The kinds of mixer and ffn of each layer."""
    model: ModelAccount
    states: tuple[StateAccount, ...]
    """The state of each kind of sublayer that keeps one."""
    schedules: dict[str, Schedule]
    """The five named loops, the added schedules, and the model's own schedule."""
    accounts: dict[str, ScheduleAccount]
    """The cost of each schedule, by the names in `schedules`."""
    paper: PaperCost | None
    """The paper's figures for this size; None if the paper has no such size."""
    training: tuple[DepthCost, ...] = ()
    """What a token costs under each depth, where a config trains several."""
    training_context: int = CONTEXT
    """Tokens of the windows of that cost: the config's, or 1,024."""

    @property
    def expected_training_flops(self) -> float:
        """Operations of a trained token, as the mean over the depths."""
        return sum(depth.share * depth.training_flops for depth in self.training)

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop describe --json` prints; the paper's figures are strings."""
        return {
            "size": self.size,
            "schedule": self.schedule,
            "kinds": self.kinds,
            "states": [asdict(state) for state in self.states],
            **{key: value for key, value in asdict(self.model).items() if value != ()},
            "schedules": {name: asdict(account) for name, account in self.accounts.items()},
            "paper": None if self.paper is None else asdict(self.paper),
            **({"training": [asdict(depth) for depth in self.training]} if self.training else {}),
        }

    def picture(self) -> str:
        """The schedules as an SVG drawing, with the cost of each layer's own kinds."""
        return draw(self.schedules, self.model.projection_macs(), by_layer=self._macs_by_layer())

    def _macs_by_layer(self) -> list[dict[Sublayer, int]]:
        layers = self.model.by_layer
        return [{one: layer.cost(one).projection_macs for one in BLOCK} for layer in layers]


@checked
@torch_defaults()
def describe(size: Path | str, *, schedules: Sequence[str] = ()) -> Description:
    """Count a preset, a config, a run or an exported folder under the named loops.

    `schedules` are added to the loops; each is a named loop or notation.
    """
    run_config = _config(str(size))
    model_config = run_config.model
    num_layers = model_config.num_layers
    resolved = {text: resolve(text, num_layers) for text in (*LOOPS, *schedules)}
    if (own := model_config.occurrences()) not in resolved.values():
        resolved[notation(own)] = own
    model = account_model(model_config)
    return Description(
        size=str(size),
        schedule=notation(own),
        kinds=tuple(model_config.layer_kinds()),
        model=model,
        states=account_states(model_config),
        schedules=resolved,
        accounts={
            name: account_schedule(model, schedule, num_layers=num_layers)
            for name, schedule in resolved.items()
        },
        paper=COST.get(str(size)),
        training=_training(run_config, _context(run_config)),
        training_context=_context(run_config),
    )


def _config(size: str) -> RunConfig:
    path = Path(size)
    if size in config.PRESETS or not path.is_dir():
        return config.preset_or_file(size)
    return RunConfig(model=model_of(path))


def _context(run_config: RunConfig) -> int:
    return (run_config.data and run_config.data.context) or CONTEXT


def _training(run_config: RunConfig, context: int) -> tuple[DepthCost, ...]:
    """The cost of each depth, unless every step trains the model's own schedule."""
    if run_config.train is None or run_config.data is None:
        return ()
    recipe = recipe_of(run_config)
    depths = recipe.depths
    if depths.is_fixed and depths.depths[0] == Depth(run_config.model.occurrences()):
        return ()
    flops = recipe.flops_per_token(context)
    shares = recipe.shares_of_tokens(flops)
    return tuple(
        DepthCost(schedule=notation(depth.schedule), share=share, training_flops=cost)
        for depth, share, cost in zip(depths.depths, shares, flops, strict=True)
    )


def description_text(described: Description) -> str:
    """A table of the schedules, and the paper's figures beside ours."""
    console = Console()
    with console.capture() as captured:
        _print(console, described)
    return captured.get().removesuffix("\n")


def _print(console: Console, described: Description) -> None:
    model = described.model
    console.print(
        f"[bold]{escape(described.size)}[/bold]: {model.parameters:,} parameters; "
        f"the ffn does {model.ffn_share:.1%} of a layer's projection work"
    )
    if len(set(described.kinds)) > 1:
        console.print(f"layers: {escape(_stack_text(described.kinds))}")
    console.print(_schedule_table(described))
    if len(described.states) > 1 or any(state.grows for state in described.states):
        for state in described.states:
            console.print(_state_text(state))
    if described.training:
        console.print()
        console.print(_training_table(described))
    if described.paper is not None:
        console.print()
        console.print(_paper_table(described, described.paper))
    grows = any(state.grows for state in described.states)
    after = f" of {CONTEXT - 1:,} tokens" if grows else ""
    console.print()
    console.print(
        "[dim]A mixer, F ffn; MACs with weights, the head's "
        f"{model.head_macs_per_token / 1e6:.2f} M included; to full loop without the head, saved "
        "with it; rule: the recurrence itself; state: what decoding keeps of a sequence"
        f"{after}; train: "
        "what autograd keeps of a token in the torch form; both in float32.[/dim]"
    )


def _stack_text(kinds: Sequence[tuple[str, str]]) -> str:
    """Layers that are alike and stand together, as in 3 gated_delta_net + swiglu."""
    runs = [(len(list(run)), pair) for pair, run in groupby(kinds)]
    return ", ".join(f"{count} {mixer} + {ffn}" for count, (mixer, ffn) in runs)


def _state_text(state: StateAccount) -> str:
    """A line about the state of one kind."""
    size = f"{state.state_bytes / 1024:,.1f} KiB"
    layers = f"{state.layers} layer{'s' if state.layers > 1 else ''}"
    start = f"state of {state.kind}, {layers}: {size} an occurrence"
    if not state.grows:
        return f"{start}, whatever the number of tokens"
    end = "without end" if state.stops_at is None else f"up to {state.stops_at:,} tokens"
    tokens = f"after {CONTEXT - 1:,} tokens; it grows by {state.first_token_bytes:,} bytes a token"
    return f"{start} {tokens} {end}"


def _schedule_table(described: Description) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("loop", no_wrap=True)
    table.add_column("schedule", overflow="fold", min_width=11)
    for title in (
        *("runs\nA", "runs\nF", "M MACs\n/token", "to full\nloop", "saved,\n+head"),
        *("rule M\nMACs", "state\nKiB", "train\nKiB/tok"),
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for name, account in described.accounts.items():
        table.add_row(
            name if name in LOOPS else "",
            shortened(account.notation, most=60),
            str(account.mixer_applications),
            str(account.ffn_applications),
            f"{account.projection_macs_per_token / 1e6:.2f}",
            f"{account.backbone_ratio_to_full_loop:.4f}",
            f"{account.saving_to_full_loop:.1%}",
            f"{account.recurrence_macs_per_token / 1e6:.2f}",
            f"{account.state_bytes_per_sequence / 1024:,.0f}",
            f"{account.activation_bytes_per_token / 1024:,.0f}",
        )
    return table


def _training_table(described: Description) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("trained schedule", overflow="fold", min_width=11)
    table.add_column("share of\ntokens", justify="right")
    table.add_column("MFLOP\n/token", justify="right")
    table.caption = f"in windows of {described.training_context:,} tokens"
    table.caption_justify = "left"
    for depth in described.training:
        name = shortened(depth.schedule, most=60)
        table.add_row(name, f"{depth.share:.1%}", f"{depth.training_flops / 1e6:,.2f}")
    table.add_row("expected", "", f"{described.expected_training_flops / 1e6:,.2f}")
    return table


def _paper_table(described: Description, cost: PaperCost) -> Table:
    model, mixer = described.model, described.accounts["mixer_loop"]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("T = 4", "parameters", "ffn share", "mixer to full", "saved, +head"):
        table.add_column(title, justify="left" if title == "T = 4" else "right")
    table.add_row(
        *("paper", cost.parameters, cost.ffn_share),
        *(cost.mixer_to_full_ratio, cost.saving_with_head),
    )
    table.add_row(
        *("here", f"{model.parameters:,}", f"{100 * model.ffn_share:.1f} %"),
        f"{mixer.backbone_ratio_to_full_loop:.4f}",
        f"{100 * mixer.saving_to_full_loop:.1f} %",
    )
    return table
