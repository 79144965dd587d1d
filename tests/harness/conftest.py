"""The harness runs as plain scripts from its own folder; so do these tests of it."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "remote_payload" / "harness"))


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    from extract_hidden_states import main as extract
    from harness_bench import VOCABULARY, Bench, drafter_config, make_target, random_state, save_drafter

    root = tmp_path_factory.mktemp("bench")
    target = make_target(root / "target")
    generator = torch.Generator().manual_seed(3)
    prompts = root / "prompts.jsonl"
    with open(prompts, "w") as stream:
        for index in range(3):
            ids = torch.randint(0, VOCABULARY, (5 + index,), generator=generator).tolist()
            line = {"id": f"p{index}", "data_set": "even" if index % 2 == 0 else "odd", "token_ids": ids}
            stream.write(json.dumps(line) + "\n")
    config = drafter_config()
    drafter = save_drafter(root / "drafter", config, random_state(config))
    baseline = save_drafter(root / "baseline", config, random_state(config, seed=2))
    options = ["--target", target, "--drafter", drafter, "--prompts", prompts, "--max-new-tokens", 24]
    assert extract([*map(str, options), "--out", str(root / "cache")]) == 0
    return Bench(target, prompts, root / "cache", drafter, baseline)
