"""The trainer imports the drafter from the harness folder, as its script does."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "remote_payload" / "harness"))
