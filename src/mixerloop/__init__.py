"""mixerloop: which part of a language model should loop, how often, and did it pay?

The names below are loaded when they are first used: `import mixerloop` loads no torch. In a program
of your own, call `mixerloop.settle()` before torch is loaded; see `mixerloop.machine.settle`.
"""

TYPE_CHECKING = False  # `typing` takes longer to load than all else that a process does first
if TYPE_CHECKING:
    from typing import Any

    from mixerloop.config import load as load_config
    from mixerloop.data.corpora import prepare_climbmix, prepare_hops, prepare_stdlib, prepare_text
    from mixerloop.description import describe
    from mixerloop.evaluation.core.evaluate_core import evaluate_core
    from mixerloop.evaluation.held_out_nll import evaluate_nll
    from mixerloop.evaluation.hops_accuracy import evaluate_hops
    from mixerloop.evaluation.recording import record
    from mixerloop.evaluation.task_accuracy import evaluate_task
    from mixerloop.interop.loading import open_subject
    from mixerloop.interop.parents import open_parent
    from mixerloop.laws.study_law import fit_law
    from mixerloop.machine import settle
    from mixerloop.model.generation import Sampling
    from mixerloop.studies.comparing import compare_runs
    from mixerloop.studies.reporting import make_report
    from mixerloop.studies.running import run_study
    from mixerloop.text_generation import generate
    from mixerloop.training.sessions import resume, train
    from mixerloop.transport.measurement import Looking, measure_transport

__all__ = [
    "Looking",
    "Sampling",
    "__version__",
    "compare_runs",
    "describe",
    "evaluate_core",
    "evaluate_hops",
    "evaluate_nll",
    "evaluate_task",
    "fit_law",
    "generate",
    "load_config",
    "make_report",
    "measure_transport",
    "open_parent",
    "open_subject",
    "prepare_climbmix",
    "prepare_hops",
    "prepare_stdlib",
    "prepare_text",
    "record",
    "resume",
    "run_study",
    "settle",
    "train",
]
__version__ = "0.2.0"

_HOMES = {
    "Looking": "transport.measurement:Looking",
    "Sampling": "model.generation:Sampling",
    "compare_runs": "studies.comparing:compare_runs",
    "describe": "description:describe",
    "evaluate_core": "evaluation.core.evaluate_core:evaluate_core",
    "evaluate_hops": "evaluation.hops_accuracy:evaluate_hops",
    "evaluate_nll": "evaluation.held_out_nll:evaluate_nll",
    "evaluate_task": "evaluation.task_accuracy:evaluate_task",
    "fit_law": "laws.study_law:fit_law",
    "generate": "text_generation:generate",
    "load_config": "config:load",
    "make_report": "studies.reporting:make_report",
    "measure_transport": "transport.measurement:measure_transport",
    "open_parent": "interop.parents:open_parent",
    "open_subject": "interop.loading:open_subject",
    "prepare_climbmix": "data.corpora:prepare_climbmix",
    "prepare_hops": "data.corpora:prepare_hops",
    "prepare_stdlib": "data.corpora:prepare_stdlib",
    "prepare_text": "data.corpora:prepare_text",
    "record": "evaluation.recording:record",
    "resume": "training.sessions:resume",
    "run_study": "studies.running:run_study",
    "settle": "machine:settle",
    "train": "training.sessions:train",
}
"""The module and the name of each public name that is loaded on first use."""


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module 'mixerloop' has no attribute '{name}'")
    import importlib

    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(f"mixerloop.{module}"), attribute)


def __dir__() -> list[str]:
    return __all__
