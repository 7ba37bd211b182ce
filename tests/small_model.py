"""Config files of a model that trains in a moment, as a user would write them."""

import tomli_w

SMALL = {"num_layers": 2, "d_model": 16, "num_heads": 2, "d_head": 8, "d_ffn": 24, "vocab_size": 12}
TRAIN = {"steps": 4, "global_batch": 4, "warmup_steps": 1, "compute_dtype": "float32"}


def model_file(**model) -> str:
    """A config with a model section only; twelve tokens suffice for hops."""
    return tomli_w.dumps({"model": SMALL | model})


def training_file(data="nowhere", *, context=None, train=None, **model) -> str:
    """A config with model, data and train sections; a study replaces the data path."""
    window = {} if context is None else {"context": context}
    return model_file(**model) + tomli_w.dumps(
        {"data": {"path": data} | window, "train": TRAIN | (train or {})}
    )
