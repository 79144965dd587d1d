"""Makes the agent's modules importable from a dict of sources, each compiled when first imported.

The bundle is this file's text, a line that fills SOURCES, and the finder's registration (orchestrator/ssh/bundle.py).
"""

from importlib.machinery import ModuleSpec
from typing import Any, BinaryIO, Dict, Optional, Sequence

SOURCES: Dict[str, str] = {}
"""module name -> source text; a package's name ends with .__init__"""


class Sources:
    """A finder and loader over SOURCES."""

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> Optional[ModuleSpec]:
        package = name + ".__init__" in SOURCES
        if not package and name not in SOURCES:
            return None
        return ModuleSpec(name, self, is_package=package)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        name = module.__name__
        source = SOURCES.get(name) if name in SOURCES else SOURCES[name + ".__init__"]
        exec(compile(source or "", "orch-agent:" + name, "exec"), module.__dict__)


def main(stdin: BinaryIO, bundle: str) -> None:
    """Serve one question (see remote_payload.agent.main). `bundle` is the text that this came from."""
    from remote_payload.agent.main import serve

    serve(stdin, bundle)
