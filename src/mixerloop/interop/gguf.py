"""GGUF files: `transformers` reads them and takes back their quantisation.

It draws tensors that a file lacks, and leaves out tensors and settings that it does not know. Both
are rejected here.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mixerloop.files import check_space, json_text, write_file
from mixerloop.interop.pretrained import listed, write_tensors
from mixerloop.parsing import one_line

SUFFIX = ".gguf"
NOT_OF_THE_MODEL = {"quantization_config", "_model_name_or_path", "unk_token_id", "_name_or_path"}
"""Keys that `transformers` adds when it reads such a file."""


def is_gguf(path: Path) -> bool:
    """Whether a path names a GGUF file."""
    return path.suffix == SUFFIX and path.is_file()


@contextmanager
def unpacked(file: Path) -> Iterator[Path]:
    """A temporary folder of `transformers` with the weights, in float32, and the tokenizer."""
    try:
        import torch
        from gguf import GGUFReader
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise ValueError(
            f"{file}: GGUF files need transformers and gguf: pip install 'mixerloop[hf]'"
        ) from None

    logging.disable_progress_bar()
    try:
        with tempfile.TemporaryDirectory() as alone:  # no other file can have a say
            (Path(alone) / file.name).symlink_to(file.resolve())
            options = {
                "gguf_file": file.name,
                "local_files_only": True,
                "trust_remote_code": False,
            }
            model = AutoModelForCausalLM.from_pretrained(alone, dtype=torch.float32, **options)
            tokenizer = AutoTokenizer.from_pretrained(alone, **options)
            reader = GGUFReader(file)
            fields = {name: field.contents() for name, field in reader.fields.items()}
            names = {tensor.name for tensor in reader.tensors}
    except Exception as error:  # a damaged file raises errors of any kind there
        raise ValueError(f"{file}: transformers cannot read it: {one_line(error)}") from None
    finally:
        logging.enable_progress_bar()
    config = {k: v for k, v in model.config.to_dict().items() if k not in NOT_OF_THE_MODEL}
    problems = [*_lost_settings(fields, config), *_lost_tensors(names, fields, model, config)]
    if problems:
        raise ValueError(f"{file}: transformers would not read all of it: {listed(problems)}")
    tensors = {name: parameter.data for name, parameter in model.named_parameters()}  # one if tied
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_space(folder, sum(tensor.nbytes for tensor in tensors.values()))
        header = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        write_tensors(folder / "model.safetensors", iter(tensors.items()), header)
        write_file(folder / "config.json", json_text(config))
        tokenizer.save_pretrained(folder)
        del model, tensors
        yield folder


def _lost_settings(fields: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Settings of the file that change the model, and that `transformers` has not read."""
    architecture = fields["general.architecture"]
    read_as = {
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
        "attention.sliding_window": config.get("sliding_window") or 0,
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
    }
    for key, value in read_as.items():
        given = fields.get(f"{architecture}.{key}", value)
        if given != value:
            yield f"{architecture}.{key} = {given} is read as {value}"


def _lost_tensors(
    names: set[str], fields: Mapping[str, Any], model: Any, config: Mapping[str, Any]
) -> Iterator[str]:
    """Tensors that the model has and the file lacks, and the other way round."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    architectures = {name: number for number, name in MODEL_ARCH_NAMES.items()}
    layers = get_tensor_name_map(
        architectures[fields["general.architecture"]], config["num_hidden_layers"]
    )
    wanted = {
        f"{layers.get_name(stem) or stem}.{end}"
        for stem, _, end in (name.rpartition(".") for name, _ in model.named_parameters())
    }
    yield from (f"missing {name}" for name in sorted(wanted - names))
    yield from (f"unexpected {name}" for name in sorted(names - wanted))
