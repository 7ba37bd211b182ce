"""Draw the README's picture: the paper's three loops at 15m, to the scale of their cost."""

from pathlib import Path

from mixerloop.config import preset
from mixerloop.model.accounting import account_model
from mixerloop.reports.schedule_diagram import draw
from mixerloop.schedule import LOOPS

if __name__ == "__main__":
    config = preset("15m")
    account = account_model(config)
    loops = {n: LOOPS[n](config.num_layers, 4) for n in ("no_loop", "mixer_loop", "full_loop")}
    Path(__file__).with_suffix(".svg").write_text(draw(loops, account.projection_macs()))
