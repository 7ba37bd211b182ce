"""The looped language model: embed, walk the schedule, read out."""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mixerloop import machine
from mixerloop.config import Form, FormChoice, ModelConfig
from mixerloop.kinds import KINDS
from mixerloop.model.lens import (
    NO_LOOKS,
    POINTS,
    Address,
    Axes,
    Lens,
    Look,
    Looks,
    addresses,
    focus,
)
from mixerloop.model.norm import RMSNorm
from mixerloop.model.passes import Passes, PassHooks, PassPlace, PassRule
from mixerloop.model.sublayer import (
    FFNModule,
    MixerModule,
    Output,
    Place,
    State,
    SublayerModule,
    has_state,
)
from mixerloop.model.walk import NO_STATISTICS, Kept, States, Statistics, Walked, walk
from mixerloop.notation import notation
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.ops.linear import linear
from mixerloop.ops.native_library import row_form
from mixerloop.ops.precision import product_dtype
from mixerloop.ops.rule_call import check_tensor
from mixerloop.ops.sliced_cross_entropy import sliced_cross_entropy, token_losses
from mixerloop.schedule import Occurrence, Schedule, Sublayer, num_passes_of

T = TypeVar("T")
WEIGHT_DTYPES = (torch.float32, torch.float64)
ID_DTYPES = (torch.int32, torch.int64)


class Layer(nn.Module):
    """One physical block of weights: a mixer and an ffn, each with its norm or norms."""

    def __init__(self, config: ModelConfig, layer: int, *, form: Form) -> None:
        super().__init__()
        place = Place(
            layer=layer,
            num_layers=config.num_layers,
            d_model=config.d_model,
            norm_eps=config.norm_eps,
            form=form,
        )
        mixer, ffn = config.layer_kinds()[layer]
        norm = partial(RMSNorm, config.d_model, config.norm_eps, form=form)
        self.placement = config.norm_placement
        before, after = self.placement != "post", self.placement != "pre"
        self.mixer_norm = norm() if before else None
        self.mixer: MixerModule = KINDS[mixer].load()(config.options[mixer], place)
        self.mixer_post_norm = norm() if after else None
        self.ffn_norm = norm() if before else None
        self.ffn: FFNModule = KINDS[ffn].load()(config.options[ffn], place)
        self.ffn_post_norm = norm() if after else None

    def forward(
        self,
        residual: Float[Tensor, "batch seq d_model"],
        sublayer: Sublayer,
        *,
        state: State | None = None,
        context_off: bool = False,
        look: Look | None = None,
    ) -> Output:
        """Run a sublayer between its norms."""
        dtype = product_dtype(residual)
        is_mixer = sublayer == "mixer"
        norm = self.mixer_norm if is_mixer else self.ffn_norm
        x = residual.to(dtype) if norm is None else norm(residual, dtype)
        module = self.mixer if is_mixer else self.ffn
        if look is not None:
            x = look("normed", x)
        if context_off:
            output = Output(self.mixer.context_off(x), state or ())
        elif look is not None and module.points():
            output = module(x, state, look=look)
        else:
            output = module(x, state)
        post_norm = self.mixer_post_norm if is_mixer else self.ffn_post_norm
        if post_norm is None:
            return output
        if self.placement == "after_add":  # the walk adds the residual again
            return output._replace(update=post_norm(residual + output.update) - residual)
        return output._replace(update=post_norm(output.update))


class LoopedLM(nn.Module):
    """A stack of layers and its own schedule; forward and walk take any other schedule too."""

    layers: Sequence[Layer]

    def __init__(self, config: ModelConfig, *, form: FormChoice = "auto") -> None:
        super().__init__()
        machine.keep_off_hidden_amx()
        self.config = config
        self.schedule = config.occurrences()
        self.embedding = nn.Embedding.from_pretrained(  # which draws nothing, also not on `meta`
            torch.empty(config.vocab_size, config.d_model), freeze=False
        )
        self.form: Form = choose_form(form)
        """The chosen form; an operator without this form runs in torch, as `forms` says."""
        layers = [Layer(config, number, form=self.form) for number in range(config.num_layers)]
        self.layers = cast(Sequence[Layer], nn.ModuleList(layers))
        self.final_norm = RMSNorm(config.d_model, config.norm_eps, form=self.form)
        homes = [KINDS[kind].home for pair in config.layer_kinds() for kind in pair]
        self._may_draw = not all(isinstance(home, str) for home in homes)
        """Whether a layer may draw random numbers; kinds that come with the package draw none."""
        self.head = (
            None if config.tied_head else nn.Linear(config.d_model, config.vocab_size, bias=False)
        )
        rules: dict[str, PassRule] = {}
        for name, options in config.pass_rules().items():
            rules[name] = self._pass_rule(name, options)
            self.add_module(name, rules[name])  # whose weights are NAME.weight in a checkpoint
        self.pass_rules: tuple[PassRule, ...] = tuple(rules.values())

    def _pass_rule(self, name: str, options: Any) -> PassRule:
        try:
            passes = Passes.round_unit(options.unit, self.schedule)
            rule = KINDS[name].load()(options, passes, PassPlace(self.final_norm))
            rule.check(self.schedule)
        except ValueError as error:
            raise ValueError(f"model.{name}.unit = '{options.unit}': {error}") from None
        return rule

    @property
    def dtype(self) -> torch.dtype:
        """The type of the residual; matrices of imported weights may be narrower."""
        return self.final_norm.weight.dtype

    @property
    def is_narrow(self) -> bool:
        """Whether matrices are narrower than the residual, so that products need autocast."""
        return self.embedding.weight.dtype != self.dtype

    @property
    def head_weight(self) -> Float[Tensor, "vocab d_model"]:
        """The matrix of the head: the embedding, unless the head has its own."""
        return self.embedding.weight if self.head is None else self.head.weight

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        *,
        positions: Int[Tensor, "..."] | None = None,
        schedule: Schedule | None = None,
        context_off: Collection[Occurrence] = (),
        lens: Lens | None = None,
    ) -> Float[Tensor, "batch positions vocab"]:
        """Logits at `positions`, or everywhere."""
        schedule = self.schedule if schedule is None else _checked_schedule(schedule)
        walked = self.walk(self.embed(tokens), schedule, context_off=context_off, lens=lens)
        return self.read_out(walked.residual, positions)

    def embed(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_model"]:
        """The residual before the first occurrence."""
        if self.dtype not in WEIGHT_DTYPES:
            raise ValueError(
                f"weights must stay float32, got {self.dtype}; compute in it by autocast"
            )
        _check_tokens(tokens, self.config.vocab_size)
        if tokens.is_meta and not self.embedding.weight.is_meta:  # torch would look up zeros
            raise ValueError("tokens are on the device meta, which holds no token ids")
        embedded = self.embedding(tokens).to(self.dtype)
        scale = self.config.embedding_scale
        return embedded if scale == 1 else embedded * scale

    def walk(
        self,
        residual: Float[Tensor, "batch seq d_model"],
        schedule: Schedule,
        *,
        states: States | None = None,
        context_off: Collection[Occurrence] = (),
        lens: Lens | None = None,
        extra_rules: Sequence[PassHooks] = (),
        kept: Kept | None = None,
        statistics: Statistics = NO_STATISTICS,
        recompute: bool = False,
    ) -> Walked:
        """Run the occurrences in order; see `mixerloop.model.walk` and `mixerloop.model.lens`.

        `extra_rules` are round the model's own pass rules. With `recompute` autograd keeps the
        residual that enters an occurrence and nothing else.
        """
        for occurrence in schedule:
            self.sublayer(occurrence)
        if context_off:
            _check_context_off(schedule, context_off)
        looks: Looks = NO_LOOKS
        if lens is not None:
            if recompute:
                raise ValueError("a lens would see activations twice; walk without recompute")
            looks = focus(lens, self.addresses(schedule, context_off=context_off))

        def run(
            occurrence: Occurrence, x: Tensor, state: State | None, look: Look | None
        ) -> Output:
            layer = partial(
                self.layers[occurrence.layer],
                sublayer=occurrence.sublayer,
                state=state,
                context_off=occurrence in context_off,
                look=look,
            )
            return _recomputed(layer, x, may_draw=self._may_draw) if recompute else layer(x)

        return walk(
            run,
            residual,
            schedule,
            rules=(*extra_rules, *self.pass_rules),
            states=states,
            kept=kept,
            looks=looks,
            statistics=statistics,
        )

    def points(
        self, occurrence: Occurrence, *, context_off: Collection[Occurrence] = ()
    ) -> Mapping[str, Axes]:
        """The points of an occurrence, with the axes of their activations."""
        inside = {} if occurrence in context_off else self.sublayer(occurrence).points()
        return {**POINTS, **inside}

    def addresses(
        self, schedule: Schedule, *, context_off: Collection[Occurrence] = ()
    ) -> list[Address]:
        """The addresses that a lens may watch in a walk of a schedule."""
        return addresses(schedule, partial(self.points, context_off=context_off))

    def check_rules(self, schedule: Schedule) -> None:
        """Reject a loop round other layers than those that the model's pass rules belong to."""
        if num_passes_of(schedule) == 1:
            return
        for rule, (name, options) in zip(
            self.pass_rules, self.config.pass_rules().items(), strict=True
        ):
            try:
                rule.check(schedule)
                now = Passes.round_unit(options.unit, schedule)
                if (now.first, now.last) != (rule.passes.first, rule.passes.last):
                    raise ValueError("the schedule repeats other layers")
            except ValueError as error:
                raise ValueError(
                    f"model.{name} belongs to the loop of {notation(self.schedule)}: {error}; "
                    "import or train the model under the schedule"
                ) from None

    def with_rules(self, *rules: PassRule) -> "LoopedLM":
        """This model, of the same weights, with rules round its own in every walk."""
        ruled = copy.copy(self)
        ruled.pass_rules = (*rules, *self.pass_rules)
        return ruled

    def sublayer(self, occurrence: Occurrence) -> SublayerModule:
        """The module that an occurrence runs."""
        if not 0 <= occurrence.layer < len(self.layers):
            raise ValueError(f"{occurrence}: the model has {len(self.layers)} layers")
        layer = self.layers[occurrence.layer]
        return layer.mixer if occurrence.sublayer == "mixer" else layer.ffn

    def mixes_tokens(self, occurrence: Occurrence) -> bool:
        """Whether a token sees other tokens in this occurrence."""
        return occurrence.sublayer == "mixer" or has_state(self.sublayer(occurrence))

    # --- the readout: final norm and head, as logits or as losses ---------------------------------

    def read_out(
        self,
        residual: Float[Tensor, "batch seq d_model"],
        positions: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch positions vocab"]:
        """Logits at `positions` only: [num] for all rows alike, or [batch, num]; -1 is the last."""
        if positions is not None:
            residual = _at(residual, positions)
        logits = linear(self.final_norm(residual), self.head_weight, form=self.form)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def summed_nll(
        self, residual: Float[Tensor, "tokens d_model"], labels: Int[Tensor, " tokens"]
    ) -> Float[Tensor, ""]:
        """Nats of the labelled tokens, summed; the logits of all tokens never exist at once."""
        return sliced_cross_entropy(
            x=self.final_norm(residual),
            weight=self.head_weight,
            labels=labels,
            form=self.form,
        )

    def token_nll(
        self, residual: Float[Tensor, "tokens d_model"], labels: Int[Tensor, " tokens"]
    ) -> tuple[Float[Tensor, " tokens"], Int[Tensor, " tokens"]]:
        """Nats of each token, and the most likely token in its place; without gradients."""
        return token_losses(
            x=self.final_norm(residual),
            weight=self.head_weight,
            labels=labels,
            form=self.form,
        )

    def forms(self) -> dict[str, str]:
        """The form in which each operator runs, for the provenance of a result.

        An operator that runs in several forms has all of them, as in "native+torch". Where a form
        cannot compute a call, such as a product with many rows, torch does.
        """
        forms: dict[str, set[str]] = {
            "rms_norm": {row_form(self.form)},
            "row_product": {row_form(self.form)},
            "cross_entropy": {row_form(self.form)},
        }
        for layer in self.layers:
            for sublayer in (layer.mixer, layer.ffn):
                for operator, form in sublayer.forms().items():
                    forms.setdefault(operator, set()).add(form)
        return {operator: "+".join(sorted(used)) for operator, used in sorted(forms.items())}


def in_form(model: LoopedLM, form: Form) -> LoopedLM:
    """A model of the same weights, the same tensors, whose modules run in another form."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    other = copy.deepcopy(model, shared)
    for module in other.modules():
        if "form" in vars(module):
            vars(module)["form"] = form
    return other


def _check_context_off(schedule: Schedule, context_off: Collection[Occurrence]) -> None:
    """Reject occurrences where nothing would happen."""
    if isinstance(context_off, str) or not isinstance(context_off, Collection):
        raise TypeError(f"context_off must be a collection of occurrences, got {context_off!r}")
    known = set(schedule)
    for occurrence in context_off:
        if occurrence not in known:
            raise ValueError(f"{occurrence} is not in the schedule, so nothing would happen")
        if occurrence.sublayer != "mixer":
            raise ValueError(f"{occurrence}: only a mixer has context to switch off")


def _recomputed(run: Callable[..., T], residual: Tensor, *, may_draw: bool) -> T:
    """Run now and, for its gradients, once more, with the same random numbers if any are drawn."""
    return checkpoint(run, residual, use_reentrant=False, preserve_rng_state=may_draw)  # pyright: ignore


def _check_tokens(tokens: Tensor, vocab_size: int) -> None:
    check_ids("tokens", tokens)
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise ValueError(
            f"tokens must be [batch, seq] with seq > 0 and batch > 0, got {tuple(tokens.shape)}"
        )
    if torch.compiler.is_compiling() or tokens.device.type != "cpu":
        return  # CUDA's own embedding check does this without waiting for the device
    low, high = (int(bound) for bound in torch.aminmax(tokens))
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(f"token id {wrong} is outside the vocabulary of {vocab_size:,}")


def _checked_schedule(schedule: Schedule) -> Schedule:
    if isinstance(schedule, tuple) and all(isinstance(one, Occurrence) for one in schedule):
        return schedule
    raise TypeError(
        f"schedule must be a tuple of occurrences, got {schedule!r}; mixerloop.notation.resolve "
        "makes one from a name or from notation"
    )


def check_ids(name: str, ids: Tensor) -> None:
    """Reject, by its name, an argument that holds no token ids or places."""
    check_tensor(name, ids)
    if ids.dtype not in ID_DTYPES:
        raise ValueError(f"{name} must be int32 or int64, got {ids.dtype}")


def _at(residual: Tensor, positions: Tensor) -> Tensor:
    batch, seq, d_model = residual.shape
    check_ids("positions", positions)
    if positions.ndim not in (1, 2) or (positions.ndim == 2 and positions.shape[0] != batch):
        raise ValueError(f"positions must be [num] or [{batch}, num], got {tuple(positions.shape)}")
    if not torch.compiler.is_compiling() and bool(((positions < -seq) | (positions >= seq)).any()):
        raise ValueError(f"positions must lie in a sequence of {seq} tokens")
    positions = (positions % seq).expand(batch, -1)
    return residual.gather(1, positions[..., None].long().expand(-1, -1, d_model))
