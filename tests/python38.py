"""Where a real Python 3.8 is on this machine, the oldest that the agent promises to run on."""

import functools
import shutil
import subprocess
from pathlib import Path


@functools.cache
def python38() -> str | None:
    """A Python 3.8 that runs: on PATH, or one of pyenv's."""
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python"))
    for candidate in filter(None, (shutil.which("python3.8"), *map(str, installed))):
        if subprocess.run([candidate, "-c", "pass"], capture_output=True).returncode == 0:
            return candidate
    return None
