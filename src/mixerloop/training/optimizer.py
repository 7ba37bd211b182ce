"""AdamW with the paper's groups: matrices decay, vectors and scalars do not."""

from torch import nn
from torch.optim import AdamW

from mixerloop.model.looped_lm import LoopedLM

BETAS = (0.9, 0.95)
EPS = 1e-8


def decays(model: LoopedLM) -> dict[str, bool]:
    """Whether weight decay applies, for each parameter by name.

    Weight decay applies to matrices, filters, the embedding and, as in the authors' code, the table
    of the learned residual. It does not apply to norms, decay rates and time steps.
    """
    return {name: parameter.ndim >= 2 for name, parameter in model.named_parameters()}


def make_optimizer(model: LoopedLM, *, peak_lr: float, weight_decay: float) -> AdamW:
    """AdamW over all trained parameters, in the model's order within each group."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    decay = decays(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[decay[name]].append(parameter)
    return AdamW(
        [
            {"params": groups[True], "weight_decay": weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=peak_lr,
        betas=BETAS,
        eps=EPS,
        fused=True,
    )
