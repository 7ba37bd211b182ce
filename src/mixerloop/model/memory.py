"""Rejects models that the memory of this machine cannot hold, before any memory is taken."""

from mixerloop import machine
from mixerloop.config import ModelConfig
from mixerloop.files import readable_size
from mixerloop.model.looped_lm import LoopedLM

WEIGHT_BYTES = 4
DRAW_BYTES = 16  # of each number of the tensor that is being drawn, in float64, and its parts


def check_fits_memory(model: LoopedLM, *, bytes_per_parameter: int = WEIGHT_BYTES) -> None:
    """Raise if the parameters of a model, and the draw of its largest tensor, need too much.

    Training needs more bytes for each parameter: its gradient and its two moments.
    """
    free = machine.free_bytes()
    sizes = [tensor.numel() for tensor in (*model.parameters(), *model.buffers())]
    num_bytes = bytes_per_parameter * sum(sizes) + DRAW_BYTES * max(sizes, default=0)
    if free is not None and num_bytes > free:
        raise ValueError(
            f"{sizes_text(model.config)}: {sum(sizes):,} parameters need "
            f"{readable_size(num_bytes)} of memory, and {readable_size(free)} are free"
        )


def sizes_text(config: ModelConfig) -> str:
    """The keys of a model that decide its size, with their values."""
    keys = {key: getattr(config, key) for key in ("num_layers", "d_model", "vocab_size")}
    for options in config.options.values():
        keys |= {key: value for key, value in vars(options).items() if type(value) is int}
    return ", ".join(f"model.{key} = {value:,}" for key, value in keys.items())
