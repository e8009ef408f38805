"""Find the few heads with which a language model looks things up.

>>> import retrieval_heads as rh
>>> rh.Head.parse("L16H22")
Head(layer=16, index=22, kind='attention')
"""

import warnings
from importlib import import_module
from typing import Any

# A plain bar instead of a widget is fine, and not worth a line in every notebook's output.
warnings.filterwarnings("ignore", message="IProgress not found")

# The public names and where they live. They are imported when first used: torch alone takes seconds.
_HOME = {
    "Answers": "probe.answers",
    "CountingUp": "tasks.counting",
    "During": "interventions.during",
    "Evidence": "evidence.measurements",
    "Facts": "tasks.facts",
    "Head": "heads",
    "HeadScores": "probe.head_scores",
    "HeadSet": "heads",
    "INTACT": "probe.engine",
    "Interval": "evidence.intervals",
    "Item": "tasks.items",
    "KeepOnly": "interventions.keep_only",
    "KVRetrieval": "tasks.kv_retrieval",
    "Knockout": "interventions.knockout",
    "MaskLastRow": "interventions.mask",
    "Mixing": "mixing.matrices",
    "Needle": "tasks.needle",
    "Omit": "interventions.exposure",
    "Patch": "interventions.patch",
    "Prune": "interventions.prune",
    "RunningText": "tasks.running_text",
    "Scorecard": "evidence.scorecard",
    "Sparsify": "interventions.sparsify",
    "Swap": "interventions.swap",
    "Task": "tasks.items",
    "World": "tasks.world",
    "WorldFacts": "tasks.world_facts",
    "WorldLetters": "tasks.world_facts",
    "agreement": "probe.attribution",
    "apply": "interventions.edits",
    "attribute": "probe.attribution",
    "bootstrap_mean": "evidence.intervals",
    "compare": "probe.conditions",
    "describe": "models.loading",
    "difference": "evidence.intervals",
    "during": "interventions.during",
    "estimate": "probe.conditions",
    "evaluate": "training.evaluation",
    "grade": "tasks.rubric",
    "head_outputs": "interventions.patch",
    "heads_of": "models.families",
    "keep_only": "interventions.keep_only",
    "knockout": "interventions.knockout",
    "language_loss": "probe.language_loss",
    "load": "models.loading",
    "mask_last_row": "interventions.mask",
    "measures": "mixing.measures",
    "minimal": "probe.minimal",
    "mixings": "mixing.matrices",
    "patching": "probe.patching",
    "plots": "plots",
    "profiles": "mixing.reads",
    "prune": "interventions.prune",
    "random_heads": "models.families",
    "reads": "mixing.reads",
    "record": "training.records",
    "roles": "mixing.roles",
    "score": "probe.engine",
    "share_of": "evidence.intervals",
    "show": "probe.conditions",
    "sparsify": "interventions.sparsify",
    "swap": "interventions.swap",
    "sweep": "probe.sweep",
    "training_curve": "training.records",
    "wilson": "evidence.intervals",
    "write": "probe.writing",
}

_MODULES = {"measures", "plots"}  # public as a whole

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOME[name]}")
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
