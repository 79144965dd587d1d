"""The layouts, in the order in which they are tried: those with telling names and contents first.

Adding one is a new file beside this one, and its line in LAYOUTS.
"""

from typing import List, NamedTuple, Optional, Tuple

from remote_payload.agent.errors import AgentError
from remote_payload.agent.layouts.accelerate import Accelerate
from remote_payload.agent.layouts.base import Findings, Layout
from remote_payload.agent.layouts.dcp import Dcp
from remote_payload.agent.layouts.deepspeed import DeepSpeed
from remote_payload.agent.layouts.hf_trainer import HfTrainer
from remote_payload.agent.layouts.lerobot import LeRobot
from remote_payload.agent.layouts.lightning import Lightning
from remote_payload.agent.layouts.megatron import Megatron
from remote_payload.agent.layouts.nemo import Nemo
from remote_payload.agent.layouts.orbax import Orbax
from remote_payload.agent.layouts.pattern import PatternLayout
from remote_payload.agent.layouts.prime_rl import PrimeRl
from remote_payload.agent.layouts.safetensors_folder import SafetensorsFolder
from remote_payload.agent.layouts.single import SingleFile
from remote_payload.agent.layouts.specforge import SpecForge
from remote_payload.agent.layouts.speculators import Speculators
from remote_payload.agent.layouts.step_files import StepFiles
from remote_payload.agent.layouts.step_folders import NumberedTorchFolders, StepFolders
from remote_payload.agent.proofs import Proof, torch_proof, weights_file_proof, weights_proof
from remote_payload.agent.tree import Tree, join

LAYOUTS: Tuple[Layout, ...] = (
    DeepSpeed(),
    Megatron(),
    Dcp(),
    HfTrainer(),
    SpecForge(),
    Accelerate(),
    Orbax(),
    LeRobot(),
    Speculators(),
    PrimeRl(),
    Nemo(),
    StepFolders(),
    NumberedTorchFolders(),
    Lightning(),
    StepFiles(),
    SingleFile(),
    SafetensorsFolder(),
)
BELOW = ("", "checkpoints", "ckpts", "checkpoint")
"""folders below a run's own that hold its checkpoints"""
MAX_RUNS = 200


class Recognised(NamedTuple):
    """A layout, the folder (relative to the root) in which it was found, and what it found there."""

    layout: Layout
    folder: str
    findings: Findings


def named(name: str) -> Layout:
    """A layout by its name or as a pattern with {step}. Raises AgentError listing what there is."""
    if "{" in name:
        return PatternLayout(name)
    for layout in LAYOUTS:
        if layout.name == name:
            return layout
    known = ", ".join(layout.name for layout in LAYOUTS)
    raise AgentError("no layout %r" % name, "One of %s, or a pattern like step_{step}/checkpoint.pt" % known, "config")


def recognise(tree: Tree, layout: Optional[str], folder: str = "") -> Optional[Recognised]:
    """The layout of one run's folder, where it holds checkpoints. Raises AgentError for an unknown name."""
    asked = [named(layout)] if layout else list(LAYOUTS)
    for below in BELOW:
        place = join(folder, below) if below else folder
        unsure: Optional[Recognised] = None
        for candidate in asked:
            try:
                findings = candidate.find(tree, place)
            except OSError:
                break  # no such folder, or one that can't be read: the root itself was checked before
            here = Recognised(candidate, place, findings)
            if findings.found and (layout or candidate.claims(tree, findings)):
                return here
            if findings.found and unsure is None:
                unsure = here
        if unsure is not None:
            return unsure
    return None


def overlooked(tree: Tree, run: Recognised) -> Optional[Tuple[str, str]]:
    """(layout, path) of a checkpoint in the run's folder that another layout would find, and this one does not see."""
    seen = [found.path for found in run.findings.found] + [path for path, _ in run.findings.ignored]
    for other in LAYOUTS:
        findings = other.find(tree, run.folder)
        unseen = [each.path for each in findings.found if not any((each.path + "/").startswith(p + "/") for p in seen)]
        if unseen and other.claims(tree, findings):
            return other.name, unseen[-1]
    return None


def runs_below(tree: Tree, layout: Optional[str]) -> List[Recognised]:
    """The runs in folders directly below the root, where the root itself holds no checkpoints.

    A lone model there (a target, a base model) is no run of this training, unless its layout is asked for.
    """
    folders = [entry.name for entry in tree.entries() if entry.kind == "dir" and not entry.name.startswith(".")]
    found = (recognise(tree, layout, folder) for folder in folders[:MAX_RUNS])
    return [run for run in found if run is not None and (layout or not isinstance(run.layout, SafetensorsFolder))]


def prove(tree: Tree, path: str, layout: Optional[str]) -> Proof:
    """The proof of one checkpoint by its path, as the layout that finds it there says. A path that no layout finds is
    judged by itself: a torch file, a safetensors file, a folder of weights. Raises Torn, Refusal, OSError, AgentError.
    """
    parts = [] if path == "." else path.split("/")
    for depth in range(len(parts) + 1):
        place = "/".join(parts[:depth])
        run = recognise(tree, layout, place)
        if run is not None and any(found.path == path for found in run.findings.found):
            return run.layout.prove(tree, path)
    if tree.is_folder(path):
        return weights_proof(tree, path)
    return weights_file_proof(tree, path) if path.endswith(".safetensors") else torch_proof(tree, path)
