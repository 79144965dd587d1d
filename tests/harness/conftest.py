"""The harness runs as plain scripts from its own folder; so do these tests of it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "remote_payload" / "harness"))
