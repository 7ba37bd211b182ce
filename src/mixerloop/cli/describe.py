"""`mixerloop describe`: what a size and its schedules cost, beside the paper's own figures."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mixerloop import config, paper
from mixerloop.files import write_file
from mixerloop.notation import notation, resolve, shortened
from mixerloop.reports.schedule_diagram import draw
from mixerloop.schedule import LOOPS

if TYPE_CHECKING:
    from rich.console import Console

    from mixerloop.model.accounting import ModelAccount, ScheduleAccount


HELP = """Parameters, compute, state and activations of a size under each schedule.

examples:
  mixerloop describe 15m
  mixerloop describe 110m --schedule "12x(A2 F)" --schedule "4x(A F) 2x(4x(A F)) 4x(A F)"
  mixerloop describe RUN --json
  mixerloop describe 15m --picture loops.svg
"""


@dataclass(frozen=True, kw_only=True)
class Describe:
    """The options of `mixerloop describe`."""

    size: tyro.conf.Positional[str]
    """A preset such as nano or 15m, a config file ending in .toml, a run, or an exported folder."""
    schedule: Annotated[list[str], tyro.conf.UseAppendAction] = field(default_factory=list)
    """A schedule to add to the five named loops; may be repeated."""
    picture: Path | None = None
    """Also draw the schedules into this SVG file."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Count and print."""
        model_config = self._model()
        num_layers = model_config.num_layers
        schedules = {text: resolve(text, num_layers) for text in (*LOOPS, *self.schedule)}
        if (own := model_config.occurrences()) not in schedules.values():
            schedules[notation(own)] = own

        from mixerloop.model.accounting import account_model, account_schedule

        model = account_model(model_config)
        accounts = {
            name: account_schedule(model, schedule, num_layers=num_layers)
            for name, schedule in schedules.items()
        }
        if self.picture is not None:
            write_file(self.picture, draw(schedules, model.projection_macs()))
        if self.json:
            print(to_json(self.size, model, accounts, schedule=notation(own)))
            return
        if Path(self.size).is_dir():
            print(f"{self.size} runs {notation(own)}")
        show(self.size, model, accounts)

    def _model(self) -> config.ModelConfig:
        """A preset, a file, or the model in a folder."""
        path = Path(self.size)
        if self.size in config.PRESETS or not path.is_dir():
            return config.preset_or_file(self.size).model
        from mixerloop.interop.loading import model_of

        return model_of(path)


def to_json(
    size: str, model: "ModelAccount", accounts: "dict[str, ScheduleAccount]", *, schedule: str
) -> str:
    """The account for programs; the paper's figures are the strings it prints."""
    return json.dumps(
        {
            "size": size,
            "schedule": schedule,
            **asdict(model),
            "schedules": {name: asdict(account) for name, account in accounts.items()},
            "paper": asdict(paper.COST[size]) if size in paper.COST else None,
        },
        indent=2,
    )


def show(size: str, model: "ModelAccount", accounts: "dict[str, ScheduleAccount]") -> None:
    """The account for people."""
    from rich.console import Console

    console = Console()
    with console.capture() as shown:
        _print_tables(console, size, model, accounts)
    print(shown.get(), end="")


def _print_tables(
    console: "Console",
    size: str,
    model: "ModelAccount",
    accounts: "dict[str, ScheduleAccount]",
) -> None:
    from rich.table import Table

    console.print(
        f"[bold]{size}[/bold]: {model.parameters:,} parameters; "
        f"the ffn does {model.ffn_share:.1%} of a layer's projection work"
    )
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("loop", no_wrap=True)
    table.add_column("schedule", overflow="fold", min_width=11)
    for title in (
        *("runs\nA", "runs\nF", "M MACs\n/token", "to full\nloop", "saved,\n+head"),
        *("rule M\nMACs", "state\nKiB", "train\nKiB/tok"),
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for name, account in accounts.items():
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
    console.print(table)
    if cost := paper.COST.get(size):
        mixer = accounts["mixer_loop"]
        beside = Table(box=None, header_style="bold", pad_edge=False)
        for title in ("T = 4", "parameters", "ffn share", "mixer to full", "saved, +head"):
            beside.add_column(title, justify="left" if title == "T = 4" else "right")
        beside.add_row(
            *("paper", cost.parameters, cost.ffn_share),
            *(cost.mixer_to_full_ratio, cost.saving_with_head),
        )
        beside.add_row(
            *("here", f"{model.parameters:,}", f"{100 * model.ffn_share:.1f} %"),
            f"{mixer.backbone_ratio_to_full_loop:.4f}",
            f"{100 * mixer.saving_to_full_loop:.1f} %",
        )
        console.print()
        console.print(beside)
    console.print()
    console.print(
        "[dim]A mixer, F ffn; MACs with weights, the head's "
        f"{model.head_macs_per_token / 1e6:.2f} M included; to full loop without the head, saved "
        "with it; rule: the recurrence itself; state: what decoding keeps of a sequence; train: "
        "what autograd keeps of a token in the torch form; both in float32.[/dim]"
    )
