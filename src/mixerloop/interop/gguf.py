"""GGUF files: `transformers` reads them and takes back their quantisation."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file

from mixerloop.files import json_text, write_file
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
        import gguf  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import torch
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
    except Exception as error:  # a damaged file raises errors of any kind there
        raise ValueError(f"{file}: transformers cannot read it: {one_line(error)}") from None
    finally:
        logging.enable_progress_bar()
    config = {k: v for k, v in model.config.to_dict().items() if k not in NOT_OF_THE_MODEL}
    tensors = dict(model.named_parameters())  # without a tied head
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_file({k: tensor.data for k, tensor in tensors.items()}, folder / "model.safetensors")
        write_file(folder / "config.json", json_text(config))
        tokenizer.save_pretrained(folder)
        del model, tensors
        yield folder
