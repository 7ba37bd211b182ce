"""`mixerloop bench`: how fast the operator, prefill, decoding, training, transport and CORE are."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixerloop import machine, paper
from mixerloop.cli.bench_tables import (
    show_core,
    show_decode,
    show_header,
    show_operator,
    show_prefill,
    show_training,
    show_transport,
)
from mixerloop.cli.subject_options import Measuring
from mixerloop.config import (
    PRESETS,
    ComputeDtype,
    ComputeDtypeChoice,
    Device,
    Form,
    FormChoice,
    ModelConfig,
    preset,
)
from mixerloop.files import json_text
from mixerloop.notation import notation, resolve
from mixerloop.parsing import one_of
from mixerloop.provenance import collect_provenance

if TYPE_CHECKING:
    from mixerloop.data.tokenizer import Tokenizer
    from mixerloop.evaluation.core.asking import AskedTask
    from mixerloop.model.looped_lm import LoopedLM

HELP = """Measure speed, after a check that what is timed computes the right thing.

Everything of one table is timed in turn in one run, so that noise falls on all alike.

examples:
  mixerloop bench operator
  mixerloop bench prefill --sizes 15m 110m --batches 1 4 8 16
  mixerloop bench decode --size 15m
  mixerloop bench train --size 15m --compute-dtype bfloat16
  mixerloop bench transport
  mixerloop bench core RUN
"""
OPERATOR_HELP = """The gated delta rule: ours beside `transformers` and fla-core on this CPU.

examples:
  mixerloop bench operator
  mixerloop bench operator --shapes 15m --repeats 3 --json
"""
PREFILL_HELP = """The paper's protocol: 1,024 tokens, last-token logits, 6 warm-up and 20 timed.

examples:
  mixerloop bench prefill
  mixerloop bench prefill --sizes 15m --batches 8 --json
"""
DECODE_HELP = """One more token after prefixes of 64 to 8,192, and against reading all again.

examples:
  mixerloop bench decode
  mixerloop bench decode --size nano --schedule full_loop
"""
TRAIN_HELP = """Whole training steps against their matrix products alone.

examples:
  mixerloop bench train
  mixerloop bench train --size 15m --loops mixer_loop --batch 1 --repeats 3
"""
TRANSPORT_HELP = """All policies from one walk against a whole forward for each of them.

examples:
  mixerloop bench transport
  mixerloop bench transport --size nano --windows 4 --repeats 1 --json
"""
CORE_HELP = """CORE's questions with shared prefixes against every sequence run whole.

The plain scorer runs the sequences of one question as one padded batch, question by question, and
computes the logits of every token. Both use the same threads. Tokenising is outside of both times.
Nothing is timed unless both make the same decisions. The bundle is what --bundle or
$MIXERLOOP_CORE_BUNDLE names, as for mixerloop evaluate core.

examples:
  mixerloop bench core RUN
  mixerloop bench core --bundle eval_bundle.tar.xz --threads 1
  mixerloop bench core RUN --tasks arc_easy piqa --examples 50 --json
"""
BUSY = 0.25  # of a core


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The options of `mixerloop bench operator`."""

    shapes: tuple[str, ...] = ("15m", "110m", "long")
    """Which shapes: 15m, 110m, long."""
    repeats: int = 10
    """Timed calls of each."""
    strong_decay: bool = False
    """Decays down to -8, which make numbers too small for a float."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Measure and show."""
        from mixerloop.benchmarking.operator_speed import SHAPES, measure_operator

        _check_positive(repeats=self.repeats)
        _check_known("shape", self.shapes, tuple(SHAPES))
        neighbours = machine.Neighbours()
        cases = [
            measure_operator(
                name, SHAPES[name], repeats=self.repeats, strong_decay=self.strong_decay
            )
            for name in self.shapes
        ]
        busy = _warn_if_busy(neighbours)
        if self.json:
            _print_json(busy, shapes=cases, compute_dtype="float32", repeats=self.repeats)
        else:
            show_header()
            for case in cases:
                show_operator(case)


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """The options of `mixerloop bench prefill`."""

    sizes: tuple[str, ...] = ("15m",)
    """Presets, runs or exported folders; their weights do not matter and are drawn afresh."""
    batches: tuple[int, ...] = (1, 4, 8)
    """Prompts read at once."""
    length: int = 1024
    """Tokens of a prompt."""
    compute_dtype: ComputeDtype = "float32"
    """The type of the projections."""
    device: Device = "auto"
    """Where they are read."""
    warmup: int = 6
    """Calls before the timed ones."""
    repeats: int = 20
    """Timed calls of each loop."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Measure and show."""
        from mixerloop.benchmarking import prefill_speed
        from mixerloop.model.device import find_device

        machine.keep_freed_memory()
        _check_positive(length=self.length, repeats=self.repeats, warmup=self.warmup)
        _check_some("batch", self.batches)
        _check_some("size", self.sizes)
        for batch in self.batches:
            _check_positive(batches=batch)
        configs = {size: _config(size) for size in self.sizes}
        device = find_device(self.device, option="--device")
        neighbours = machine.Neighbours()
        cases = []
        for size, config in configs.items():
            models = prefill_speed.Prefill(
                size, config, compute_dtype=self.compute_dtype, device=device
            )
            for batch in self.batches:
                case = models.measure(
                    batch, length=self.length, warmup=self.warmup, repeats=self.repeats
                )
                cases.append(case)
                print(f"{size}, batch {batch}: {case.mixer_over_full:.2f} x", file=sys.stderr)
        busy = _warn_if_busy(neighbours)
        if self.json:
            _print_json(
                busy,
                device=device.type,
                cases=cases,
                compute_dtype=self.compute_dtype,
                repeats=self.repeats,
            )
        else:
            show_header()
            show_prefill(cases, self.compute_dtype, device.type)


@dataclass(frozen=True, kw_only=True)
class Decode:
    """The options of `mixerloop bench decode`."""

    size: str = "15m"
    """A preset, a run or an exported folder; its weights do not matter and are drawn afresh."""
    schedule: str = "mixer_loop"
    """Notation or a named loop."""
    repeats: int = 60
    """Timed tokens after each prefix."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Measure and show."""
        from mixerloop.benchmarking.decode_speed import measure_decode

        machine.keep_freed_memory()
        _check_positive(repeats=self.repeats)
        config = _config(self.size)
        resolve(self.schedule, config.num_layers)
        neighbours = machine.Neighbours()
        found = measure_decode(
            self.size,
            config,
            self.schedule,
            repeats=self.repeats,
            recompute_repeats=max(3, self.repeats // 6),
        )
        busy = _warn_if_busy(neighbours)
        if self.json:
            _print_json(busy, **asdict(found), compute_dtype="float32", repeats=self.repeats)
            return
        show_header()
        show_decode(found)


@dataclass(frozen=True, kw_only=True)
class Train:
    """The options of `mixerloop bench train`."""

    size: str = "15m"
    """A preset, a run or an exported folder; its weights do not matter and are drawn afresh."""
    loops: tuple[str, ...] = ("no_loop", "mixer_loop", "full_loop")
    """Schedules to train."""
    batch: int = 4
    """Windows of a step."""
    length: int = 1024
    """Tokens of a window."""
    compute_dtype: ComputeDtypeChoice = "auto"
    """The type of the projections; auto is what training would take here."""
    form: str = "auto"
    """auto, native, torch or definition."""
    repeats: int = 5
    """Timed steps."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Measure and show."""
        from mixerloop.benchmarking.training_speed import measure_training
        from mixerloop.ops.precision import choose_compute_dtype

        machine.keep_freed_memory()
        _check_positive(batch=self.batch, length=self.length, repeats=self.repeats)
        form = one_of(FormChoice, self.form, "form")
        _check_some("loop", self.loops)
        config = _config(self.size)
        for loop in self.loops:
            resolve(loop, config.num_layers)
        compute_dtype = choose_compute_dtype(self.compute_dtype, "cpu")
        neighbours = machine.Neighbours()
        cases = []
        for loop in self.loops:
            case = measure_training(
                self.size,
                config,
                loop,
                batch=self.batch,
                length=self.length,
                compute_dtype=compute_dtype,
                repeats=self.repeats,
                form=form,
            )
            cases.append(case)
            print(f"{self.size} {loop}: {case.gemm_floor_ratio:.2f}", file=sys.stderr)
        busy = _warn_if_busy(neighbours)
        if self.json:
            _print_json(
                busy,
                cases=cases,
                compute_dtype=compute_dtype,
                repeats=self.repeats,
                form=form,
            )
        else:
            show_header()
            show_training(cases, compute_dtype)


@dataclass(frozen=True, kw_only=True)
class Transport:
    """The options of `mixerloop bench transport`."""

    size: str = "15m"
    """A preset, a run or an exported folder; its weights do not matter and are drawn afresh."""
    schedule: str = "mixer_loop"
    """Notation or a named loop."""
    windows: int = 16
    """Windows to look at."""
    positions: int = 16
    """Places in each window."""
    context: int = 128
    """Tokens of a window."""
    repeats: int = 3
    """Timed calls of each way."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Measure and show."""
        from mixerloop.benchmarking.transport_speed import measure_transport

        machine.keep_freed_memory()
        _check_positive(windows=self.windows, repeats=self.repeats)
        config = _config(self.size)
        resolve(self.schedule, config.num_layers)
        neighbours = machine.Neighbours()
        found = measure_transport(
            self.size,
            config,
            self.schedule,
            windows=self.windows,
            positions=self.positions,
            context=self.context,
            repeats=self.repeats,
        )
        busy = _warn_if_busy(neighbours)
        if self.json:
            _print_json(busy, **asdict(found), compute_dtype="float32", repeats=self.repeats)
            return
        show_header()
        show_transport(found)


@dataclass(frozen=True, kw_only=True)
class Core:
    """The options of `mixerloop bench core`."""

    run_path: Annotated[
        tyro.conf.Positional[Path | None], tyro.conf.arg(name="run", metavar="[RUN]")
    ] = None
    """A run; without one, a fresh model with a tokenizer trained on the examples."""
    size: str = "nano"
    """The preset of a fresh model."""
    schedule: str | None = None
    """Notation or a named loop; the model's own unless you say so."""
    bundle: Path | None = None
    """The evaluation bundle."""
    tasks: tuple[str, ...] = ()
    """Only these tasks."""
    examples: int = 20
    """Examples of each task."""
    context: int = paper.CORE_CONTEXT
    """Tokens a prompt may have; longer ones lose their beginning."""
    threads: int | None = None
    """Threads of both scorers; as many as torch takes unless you say so."""
    repeats: int = 5
    """Timed rounds."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Measure and show."""
        import torch

        from mixerloop.benchmarking.core_speed import measure_core
        from mixerloop.evaluation.core.asking import LEAST_CONTEXT, asked
        from mixerloop.evaluation.core.bundle import find_bundle

        machine.keep_freed_memory()
        _check_positive(examples=self.examples, repeats=self.repeats)
        if self.context < LEAST_CONTEXT:
            raise ValueError(f"--context must be at least {LEAST_CONTEXT}, got {self.context}")
        if self.threads is not None:
            _check_positive(threads=self.threads)
            torch.set_num_threads(self.threads)
        bundle = find_bundle(self.bundle)
        asking = [asked(bundle, task, limit=self.examples) for task in bundle.choose(self.tasks)]
        name, model, tokenizer = self._subject(asking)
        text = model.config.schedule if self.schedule is None else self.schedule
        schedule = resolve(text, model.config.num_layers)
        neighbours = machine.Neighbours()
        found = measure_core(
            name,
            model,
            asking,
            schedule=schedule,
            notation=notation(schedule),
            encode=tokenizer.encode_all,
            context=self.context,
            repeats=self.repeats,
        )
        busy = _warn_if_busy(neighbours)
        if self.json:
            _print_json(
                busy,
                **asdict(found),
                bundle=bundle.fingerprint(),
                tokenizer=tokenizer.fingerprint,
                compute_dtype="float32",
                repeats=self.repeats,
            )
            return
        show_header()
        show_core(found)

    def _subject(self, asking: "list[AskedTask]") -> "tuple[str, LoopedLM, Tokenizer]":
        """What the model is called, the model and its tokenizer."""
        if self.run_path is not None:
            opened = Measuring(device="cpu").open_run(self.run_path)
            return str(self.run_path), opened.model, opened.tokenizer()
        from mixerloop.benchmarking.core_speed import tokenizer_of
        from mixerloop.model.initialization import fresh_model

        config = preset(self.size)
        tokenizer = tokenizer_of(asking, vocab_size=config.vocab_size)
        return f"{self.size}, fresh", fresh_model(config, seed=0).eval(), tokenizer


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The options of `mixerloop bench`."""

    what: (
        Annotated[Operator, tyro.conf.subcommand("operator", description=OPERATOR_HELP)]
        | Annotated[Prefill, tyro.conf.subcommand("prefill", description=PREFILL_HELP)]
        | Annotated[Decode, tyro.conf.subcommand("decode", description=DECODE_HELP)]
        | Annotated[Train, tyro.conf.subcommand("train", description=TRAIN_HELP)]
        | Annotated[Transport, tyro.conf.subcommand("transport", description=TRANSPORT_HELP)]
        | Annotated[Core, tyro.conf.subcommand("core", description=CORE_HELP)]
    )

    def run(self) -> None:
        """Run the one that was asked for."""
        self.what.run()


def _warn_if_busy(neighbours: machine.Neighbours) -> float | None:
    """How many cores others kept busy; a busy machine is no place to measure, so say so."""
    busy = neighbours.busy_cores()
    if busy is not None and busy > BUSY:
        print(f"others kept {busy:.1f} cores busy meanwhile; trust no figure", file=sys.stderr)
    return busy


def _config(size: str) -> ModelConfig:
    """The model of a preset, or of whatever folder has one."""
    if size in PRESETS or not Path(size).exists():
        return preset(size)
    from mixerloop.interop.loading import load_any

    return load_any(Path(size), form="torch").config.model


def _check_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")


def _check_some(kind: str, given: Sequence[object]) -> None:
    if not given:
        raise ValueError(f"name at least one {kind}")


def _check_known(kind: str, given: Sequence[str], known: Sequence[str]) -> None:
    from mixerloop.parsing import suggest

    _check_some(kind, given)
    for name in given:
        if name not in known:
            raise ValueError(f"unknown {kind} '{name}'; {suggest(name, known)}")


def _print_json(
    busy: float | None,
    *,
    form: FormChoice = "auto",
    device: str = "cpu",
    **found: Any,
) -> None:
    from mixerloop.ops.gated_delta_rule import choose_form

    facts = {key: found.pop(key) for key in ("compute_dtype", "repeats")}
    chosen: Form = choose_form(form, device)
    result = {
        key: [one if isinstance(one, dict) else asdict(one) for one in value]
        if isinstance(value, list)
        else value
        for key, value in found.items()
    }
    facts |= {"seed": 0, "form": chosen, "device": device, "busy_cores": busy}
    result["provenance"] = collect_provenance(**facts)
    print(json_text(result), end="")
