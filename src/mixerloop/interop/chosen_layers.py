"""Some layers of a pretrained model, as a smaller model in the same layout."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mixerloop.data.tokenizer_files import tokenizer_in
from mixerloop.files import check_space, json_text, write_file
from mixerloop.interop.folders import (
    CONFIG,
    WEIGHTS,
    check_export,
    exported_config,
    naming_folder,
    weight_files,
)
from mixerloop.interop.pretrained import FileTensors, opened_files, write_tensors

LAYER = re.compile(r"(model\.layers\.)(\d+)(\..+)")
NUM_LAYERS, LAYER_TYPES = "num_hidden_layers", "layer_types"


@contextmanager
def only_layers(folder: Path, layers: Sequence[int]) -> Iterator[Path]:
    """A temporary folder with these layers in this order, and all that is not of a layer.

    A layer that is named twice becomes two layers with separate weights.
    """
    check_export(folder)
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        with naming_folder(folder), opened_files(weight_files(folder)) as tensors:
            _write_layers(made, folder, tensors, layers)
        yield made


def _write_layers(made: Path, folder: Path, tensors: FileTensors, layers: Sequence[int]) -> None:
    config = exported_config(folder)
    sources = _sources(tensors, layers, config.get(NUM_LAYERS))
    config[NUM_LAYERS] = len(layers)
    if config.get(LAYER_TYPES) is not None:
        config[LAYER_TYPES] = [config[LAYER_TYPES][number] for number in layers]
    header = {
        name: (tensors.dtype(source), tensors.shape(source)) for name, source in sources.items()
    }
    check_space(made, sum(file.stat().st_size for file in weight_files(folder)))
    chosen = ((name, tensors.load(source)) for name, source in sources.items())
    write_tensors(made / WEIGHTS, chosen, header)
    write_file(made / CONFIG, json_text(config))
    tokenizer = tokenizer_in(folder)
    for file, content in ({} if tokenizer is None else tokenizer.files).items():
        write_file(made / file, content)


def _sources(tensors: FileTensors, layers: Sequence[int], num_layers: object) -> dict[str, str]:
    """The tensor of the folder that each tensor of the smaller model is."""
    matches = {name: LAYER.fullmatch(name) for name in sorted(tensors.names())}
    found = {int(match[2]) for match in matches.values() if match is not None}
    if not found or found != set(range(len(found))) or num_layers != len(found):
        raise ValueError("layers cannot be chosen: its layers are not model.layers.0, 1, ...")
    if not layers:
        raise ValueError("layers: no layer is chosen")
    for number in layers:
        if number not in found:
            raise ValueError(f"layers: there is no layer {number}; 0 to {len(found) - 1} are there")
    sources = {name: name for name, match in matches.items() if match is None}
    for new, old in enumerate(layers):
        for name, match in matches.items():
            if match is not None and int(match[2]) == old:
                sources[f"{match[1]}{new}{match[3]}"] = name
    return sources
