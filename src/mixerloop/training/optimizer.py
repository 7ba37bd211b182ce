"""AdamW with the paper's groups: matrices decay, vectors and scalars do not."""

from torch import nn
from torch.optim import AdamW

from mixerloop.model.looped_lm import LoopedLM

BETAS = (0.9, 0.95)
EPS = 1e-8
EMBEDDING = ("embedding.weight", "head.weight")
"""What a rate of their own is for; tied, the first is both."""


def decays(model: LoopedLM) -> dict[str, bool]:
    """Whether weight decay applies, for each parameter by name.

    Weight decay applies to matrices, filters, the embedding and, as in the authors' code, the table
    of the learned residual. It does not apply to norms, decay rates and time steps.
    """
    return {name: parameter.ndim >= 2 for name, parameter in model.named_parameters()}


def make_optimizer(
    model: LoopedLM, *, peak_lr: float, weight_decay: float, embedding_lr: float | None = None
) -> AdamW:
    """AdamW over all trained parameters, in the model's order within each group.

    The `scale` of a group is its share of the learning rate.
    """
    groups: dict[str, list[nn.Parameter]] = {"decays": [], "stays": [], "embedding": []}
    decay = decays(model)
    for name, parameter in model.named_parameters():
        own_rate = embedding_lr is not None and name in EMBEDDING
        if parameter.requires_grad:
            groups["embedding" if own_rate else "decays" if decay[name] else "stays"].append(
                parameter
            )
    made = [
        {"params": groups["decays"], "weight_decay": weight_decay, "scale": 1.0},
        {"params": groups["stays"], "weight_decay": 0.0, "scale": 1.0},
    ]
    if embedding_lr is not None:
        scale = embedding_lr / peak_lr
        made.append({"params": groups["embedding"], "weight_decay": weight_decay, "scale": scale})
    return AdamW(made, lr=peak_lr, betas=BETAS, eps=EPS, fused=True)
