"""AdamW with the paper's groups: matrices decay, what scales or shifts a channel does not."""

from torch import nn
from torch.optim import AdamW

from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.pass_residual import PassResidualTable

BETAS = (0.9, 0.95)
EPS = 1e-8


def decays(model: LoopedLM) -> dict[str, bool]:
    """For each parameter, whether it decays: matrices, filters and the embedding.

    Norms, decay rates, time steps and the per-pass residual scale or shift channel by channel.
    """
    tables = [
        name for name, module in model.named_modules() if isinstance(module, PassResidualTable)
    ]
    return {
        name: parameter.ndim >= 2 and name.rpartition(".")[0] not in tables
        for name, parameter in model.named_parameters()
    }


def make_optimizer(model: LoopedLM, *, peak_lr: float, weight_decay: float) -> AdamW:
    """AdamW over all parameters, in the model's order within each group."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    parameters = dict(model.named_parameters())
    for name, decay in decays(model).items():
        groups[decay].append(parameters[name])
    return AdamW(
        [
            {"params": groups[True], "weight_decay": weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=peak_lr,
        betas=BETAS,
        eps=EPS,
    )
