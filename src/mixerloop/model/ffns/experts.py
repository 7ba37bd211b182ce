"""A sparse mixture of experts: a router chooses, for each token, a few SwiGLU ffns out of many."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.config import Form
from mixerloop.kinds import ExpertsOptions
from mixerloop.model.grouped_linear import GroupedLinear
from mixerloop.model.lens import UNWATCHED, Axes, Look
from mixerloop.model.projection import Projection
from mixerloop.model.sublayer import Cost, CoupledLoss, Output, Place, RoutedFFN, State
from mixerloop.ops.grouped_products import has_grouped_form
from mixerloop.ops.native_library import row_form
from mixerloop.ops.swiglu import swiglu


class Routed(NamedTuple):
    """What the router says of each token."""

    experts: Int[Tensor, "tokens chosen"]
    """The chosen experts, the best first."""
    weights: Float[Tensor, "tokens chosen"]
    logits: Float[Tensor, "tokens experts"]
    scores: Float[Tensor, "tokens experts"]


class Experts(RoutedFFN):
    """The chosen experts of each token, weighted and summed, and an optional shared expert."""

    def __init__(self, options: ExpertsOptions, place: Place) -> None:
        super().__init__()
        self.options = options
        self.couples_tokens = options.balance > 0
        self.num_experts, self.num_chosen = options.num_experts, options.num_chosen
        self.form: Form = place.form
        self.router = Projection(place.d_model, options.num_experts, form=place.form)
        sizes = self.num_experts, place.d_model, options.d_expert
        self.gate_up_proj = GroupedLinear(sizes[0], sizes[1], 2 * sizes[2])
        self.down_proj = GroupedLinear(sizes[0], sizes[2], sizes[1])
        self.shared_gate_up_proj = self.shared_down_proj = None
        if options.d_shared:
            self.shared_gate_up_proj = Projection(
                place.d_model, 2 * options.d_shared, form=place.form
            )
            self.shared_down_proj = Projection(options.d_shared, place.d_model, form=place.form)

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        state: State | None = None,
        look: Look = UNWATCHED,
    ) -> Output:
        """Each token by itself."""
        tokens = x.flatten(0, 1)
        watch = None if look is UNWATCHED else partial(_look_by_window, look, x.shape[:2])
        routed = self._route(tokens, watch)
        run = self._expert_by_expert if self.form == "definition" else self._all_at_once
        update = run(tokens, routed)
        if self.shared_gate_up_proj is not None and self.shared_down_proj is not None:
            hidden = swiglu(self.shared_gate_up_proj(tokens), form=self.form)
            update = update + self.shared_down_proj(hidden)
        return Output(update.view(x.shape), losses=self._losses(routed))

    def cost(self, prefix_tokens: int) -> Cost:
        """The router, the chosen experts and the shared one: not the experts that a token skips."""
        active = sum(
            self.num_chosen * projection.weight[0].numel()
            for projection in (self.gate_up_proj, self.down_proj)
        )
        always = (self.router, self.shared_gate_up_proj, self.shared_down_proj)
        weights = [projection.weight.numel() for projection in always if projection is not None]
        return Cost(projection_macs=active + sum(weights))

    def forms(self) -> dict[str, Form]:
        """Torch's grouped product where it takes these widths, else expert after expert."""
        is_grouped = self.form != "definition" and all(
            has_grouped_form(projection.weight)
            for projection in (self.gate_up_proj, self.down_proj)
        )
        experts: Form = "torch" if is_grouped else "definition"
        return {"experts": experts, "swiglu": row_form(self.form)}

    def points(self) -> dict[str, Axes]:
        """What the router says; other experts get the weights that their own scores give."""
        chosen = ("window", "token", "choice")
        logits = ("window", "token", "expert")
        return {"router_logits": logits, "experts": chosen, "expert_weights": chosen}

    def _route(self, tokens: Tensor, watch: Callable[[str, Tensor], Tensor] | None) -> Routed:
        """Choose in float32 or wider: rounding would change which experts a token gets."""
        options = self.options
        with torch.autocast(tokens.device.type, enabled=False):
            logits = self.router(tokens.to(self.router.weight.dtype))
        if watch is not None:
            logits = watch("router_logits", logits)
        scores = logits.softmax(-1) if options.router == "softmax" else logits.sigmoid()
        weights, experts = scores.topk(options.num_chosen, dim=-1)
        if watch is not None:
            experts = watch("experts", experts)
            weights = scores.gather(-1, experts)
        if options.normalise_weights:
            weights = weights / weights.sum(-1, keepdim=True)
        if watch is not None:
            weights = watch("expert_weights", weights)
        return Routed(experts, weights, logits, scores)

    def _expert_by_expert(self, tokens: Tensor, routed: Routed) -> Tensor:
        """The definition: each expert runs the tokens that chose it."""
        update = torch.zeros_like(tokens)
        for expert in range(self.num_experts):
            token, place = (routed.experts == expert).nonzero(as_tuple=True)
            gate_up = F.linear(tokens[token], self.gate_up_proj.weight[expert])
            output = F.linear(swiglu(gate_up, form=self.form), self.down_proj.weight[expert])
            weighted = routed.weights[token, place, None] * output
            update = update.index_add(0, token, weighted.to(update.dtype))
        return update

    def _all_at_once(self, tokens: Tensor, routed: Routed) -> Tensor:
        """Sort the choices by expert, multiply in groups, and add up for each token."""
        chosen = routed.experts.flatten()
        order = chosen.argsort(stable=True)
        ends = torch.bincount(chosen, minlength=self.num_experts).cumsum(0)
        rows = tokens[order // self.num_chosen]
        output = self.down_proj(swiglu(self.gate_up_proj(rows, ends), form=self.form), ends)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        by_token = output[back].unflatten(0, (-1, self.num_chosen))
        return (by_token * routed.weights[..., None].to(by_token.dtype)).sum(1)

    def _losses(self, routed: Routed) -> dict[str, Tensor | CoupledLoss] | None:
        """Balance: num_experts * sum of (share of the choices) * (mean score), 1 if all are equal.

        The z loss is the mean square of the logarithm of the softmax's denominator.
        """
        options = self.options
        losses: dict[str, Tensor | CoupledLoss] = {}
        if options.balance:
            counts = torch.bincount(routed.experts.flatten(), minlength=options.num_experts)
            shares = counts.to(routed.scores.dtype) / counts.sum()
            scores = routed.scores / routed.scores.sum(-1, keepdim=True)
            weight = options.balance * options.num_experts
            losses["balance"] = CoupledLoss(shares, scores.mean(0), weight)
        if options.router_z:
            losses["router_z"] = options.router_z * routed.logits.logsumexp(-1).square().mean()
        return losses or None


def _look_by_window(look: Look, shape: torch.Size, point: str, of_tokens: Tensor) -> Tensor:
    return look(point, of_tokens.unflatten(0, shape)).flatten(0, 1)
