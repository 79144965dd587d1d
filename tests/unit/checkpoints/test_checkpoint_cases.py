"""Which checkpoint is the latest complete one: layouts, orders, torn saves, and what is said about each."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from ckpt_files import Shipped, facts, look, put, reasons, records, states, store, touch, training_state, weights, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from remote_payload.agent import scan as scanning
from remote_payload.agent.errors import AgentError


def step(root: Path, number: int, when: float = 0, **more: Any) -> Path:
    return put(root / f"step_{number}" / "checkpoint.pt", training_state(number, **more), when)


def test_order_is_by_integers_and_not_by_text(tmp_path: Path) -> None:
    for when, number in enumerate((900, 1000, 4000, 10000)):
        step(tmp_path, number, when)
    answer = look(tmp_path)
    assert answer["layout"] == "step-folders"
    assert answer["latest"]["path"] == "step_10000/checkpoint.pt"
    assert answer["latest"]["step"] == 10000
    assert [row["step"] for row in answer["candidates"]] == [10000, 4000, 1000, 900]
    assert answer["warnings"] == []
    shipped = Shipped(tmp_path, answer["latest"]["path"], ship="model", identity=answer["latest"]["identity"])
    assert facts(shipped.tensors) == facts(weights(10000))
    assert shipped.account["bytes"] == answer["latest"]["ship_bytes"] < answer["latest"]["bytes"]


def test_a_folder_full_of_broken_saves_is_given_up_in_time(tmp_path: Path) -> None:
    step(tmp_path, 1)
    for number in range(2, 1200):
        (tmp_path / f"step_{number}").mkdir()
    write(tmp_path / "step_1150" / "checkpoint.pt", b"cut")
    answer = look(tmp_path)
    assert answer["layout"] == "step-folders"
    assert answer["latest"] is None and len(answer["candidates"]) == 1000
    assert answer["warnings"][0] == (
        "none of the 1000 newest is complete; 199 older ones were not looked into: --step N looks at one"
    )
    assert look(tmp_path, step=1)["latest"]["step"] == 1


def test_where_nothing_is_complete_a_checkpoint_of_another_layout_is_named(tmp_path: Path) -> None:
    step(tmp_path, 1)
    write(tmp_path / "checkpoint-30" / "trainer_state.json", "{")
    write(tmp_path / "checkpoint-30" / "model.safetensors", b"cut")
    answer = look(tmp_path)
    assert answer["latest"] is None and answer["layout"] == "hf"
    (told,) = answer["warnings"]
    assert "step_1/checkpoint.pt would be one of layout step-folders" in told and "`layout:`" in told
    assert look(tmp_path, layout="step-folders")["latest"]["step"] == 1


file_names = st.one_of(
    st.builds("step{}{}".format, st.sampled_from(["", "_", "-", "=", " "]), st.integers(0, 10**19)),
    st.builds(
        "step_{:0{}d}{}".format, st.integers(0, 99), st.integers(1, 9), st.sampled_from(["", "\n", ".tmp", "é", "٣"])
    ),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=40),
)


@given(names=st.sets(file_names, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_folders_are_called_the_highest_whole_step_is_taken(tmp_path: Path, names: set[str]) -> None:
    root = tmp_path / "root"
    shutil.rmtree(root, ignore_errors=True)
    original = tmp_path / "original.pt"
    if not original.exists():
        put(original, {"model": {"w": torch.ones(1)}})
    taken = [name for name in names if name not in (".", "..") and len(name.encode()) < 200]
    for name in taken:
        (root / name).mkdir(parents=True)
        os.link(original, root / name / "checkpoint.pt")
    root.mkdir(exist_ok=True)
    fitting = [int(found[1]) for name in taken if (found := re.fullmatch(r"step[-_=]?([0-9]{1,18})", name, re.ASCII))]
    latest = look(root, "step-folders")["latest"]
    assert (latest and latest["step"]) == (max(fitting) if fitting else None)


def test_times_only_warn(tmp_path: Path) -> None:
    for number, when in ((4000, 0), (2000, 500), (3000, 400)):
        step(tmp_path, number, when)
    answer = look(tmp_path)
    assert answer["latest"]["step"] == 4000
    assert "order by time differs" in answer["warnings"][0]
    assert "step_2000" in answer["warnings"][0]
    assert "step_4000" in answer["warnings"][0]


def test_the_latest_complete_one_is_taken_and_the_torn_ones_are_passed_over_with_their_reason(tmp_path: Path) -> None:
    step(tmp_path, 4000)
    for number, keep in ((6000, 0.6), (7000, None)):
        path = step(tmp_path, number)
        os.truncate(path, int(path.stat().st_size * keep) if keep else path.stat().st_size - 1)
        touch(path)
    zeros = step(tmp_path, 8000)
    write(zeros, bytes(zeros.stat().st_size))
    write(tmp_path / "step_8500" / "checkpoint.pt", b"")
    (tmp_path / "step_8600").mkdir()
    write(tmp_path / "step_8700" / "checkpoint.pt.tmp", b"x")
    with pytest.raises((AttributeError, pickle.PicklingError)):
        put(tmp_path / "step_9000" / "checkpoint.pt", {"model": weights(1), "hook": lambda: 0})
    touch(tmp_path / "step_9000" / "checkpoint.pt")
    answer = look(tmp_path)
    assert answer["latest"]["step"] == 4000
    told = reasons(answer)
    assert "no end record" in told["step_6000/checkpoint.pt"]
    assert "cut short" in told["step_7000/checkpoint.pt"]
    assert "zeros" in told["step_8000/checkpoint.pt"]
    assert "empty file" in told["step_8500/checkpoint.pt"]
    assert "no checkpoint.pt" in told["step_8600"]
    assert "checkpoint.pt.tmp" in told["step_8700"]
    assert "without data.pkl" in told["step_9000/checkpoint.pt"]
    assert {state for path, state in states(answer).items() if path != "step_4000/checkpoint.pt"} == {"torn"}


def test_names_that_only_look_like_steps_are_ignored(tmp_path: Path) -> None:
    step(tmp_path, 4000)
    names = (
        "step_7000.tmp",
        "tmp_step_8000",
        "step_9000-partial",
        ".step_9500",
        "step_best",
        "step_4500 (copy)",
        "step_",
    )
    for name in names:
        put(tmp_path / name / "checkpoint.pt", training_state(1))
    write(tmp_path / "step_9999", b"a file")
    (tmp_path / "step_9998").symlink_to("step_4000")
    answer = look(tmp_path)
    assert answer["latest"]["step"] == 4000
    assert {path for path, state in states(answer).items() if state == "ignored"} == {*names, "step_9999", "step_9998"}


def test_links_are_said_and_never_followed_out_of_the_root(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    step(outside, 9000)
    step(root, 3000)
    (root / "latest").symlink_to("step_5000")
    (root / "best").symlink_to(outside / "step_9000")
    (root / "step_9000").symlink_to(outside / "step_9000")
    (root / "step_8000").mkdir()
    (root / "step_8000" / "checkpoint.pt").symlink_to(outside / "step_9000" / "checkpoint.pt")
    answer = look(root)
    assert answer["latest"]["step"] == 3000
    assert any("latest points at step_5000, which is not there" in said for said in answer["warnings"])
    assert any("best points at" in said and "leaves the root" in said for said in answer["warnings"])
    assert "link" in reasons(answer)["step_8000/checkpoint.pt"]
    with pytest.raises(AgentError, match="leaves"):
        Shipped(root, "step_8000/checkpoint.pt")
    with pytest.raises(AgentError, match="leaves"):
        Shipped(root, "../outside/step_9000/checkpoint.pt")


def test_two_runs_below_a_root_are_listed_and_none_is_chosen(tmp_path: Path) -> None:
    step(tmp_path / "lr1e-4", 9000)
    step(tmp_path / "lr3e-4", 3000)
    answer = look(tmp_path)
    assert answer["latest"] is None
    assert "lr1e-4 step 9000, lr3e-4 step 3000" in answer["warnings"][0]
    assert look(tmp_path / "lr1e-4")["latest"]["path"] == "step_9000/checkpoint.pt"


def test_a_single_run_below_the_root_is_found_there(tmp_path: Path) -> None:
    step(tmp_path / "run" / "checkpoints", 7)
    answer = look(tmp_path)
    assert answer["latest"]["path"] == "run/checkpoints/step_7/checkpoint.pt"
    assert facts(Shipped(tmp_path, answer["latest"]["path"]).tensors) == facts(weights(7))


def test_a_step_inside_that_differs_from_the_folder_is_said(tmp_path: Path) -> None:
    put(tmp_path / "step_4000" / "checkpoint.pt", training_state(3999))
    answer = look(tmp_path)
    assert answer["latest"]["step"] == 3999
    assert "holds step 3999, not 4000" in answer["warnings"][0]


def test_one_step_can_be_asked_for(tmp_path: Path) -> None:
    step(tmp_path, 1000)
    step(tmp_path, 2000)
    assert look(tmp_path, step=1000)["latest"]["step"] == 1000
    assert look(tmp_path, step=1500)["latest"] is None


def test_a_wrong_root_says_what_and_where(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="no such folder") as missing:
        look(tmp_path / "nowhere")
    assert missing.value.kind == "config"
    with pytest.raises(AgentError, match="not a folder"):
        look(write(tmp_path / "file", b""))
    with pytest.raises(AgentError, match="no layout 'stepfolders'"):
        look(tmp_path, "stepfolders")
    assert look(tmp_path)["latest"] is None


def test_hf_trainer_is_complete_with_its_state_and_ships_only_weights_and_settings(tmp_path: Path) -> None:
    def save(name: str, number: int, *, state: bool = True) -> None:
        folder = tmp_path / name
        folder.mkdir()
        save_file(weights(number, torch.float32), folder / "model.safetensors")
        write(folder / "config.json", '{"model_type": "x"}')
        put(folder / "optimizer.pt", {"x": torch.zeros(100)})
        if state:
            write(folder / "trainer_state.json", json.dumps({"global_step": number}))
        for file in folder.iterdir():
            touch(file)

    save("checkpoint-500", 500)
    save("checkpoint-1000", 1000, state=False)
    save("tmp-checkpoint-1500", 1500)
    answer = look(tmp_path)
    assert answer["layout"] == "hf"
    assert answer["latest"]["path"] == "checkpoint-500"
    assert answer["latest"]["step"] == 500
    assert "trainer_state.json" in reasons(answer)["checkpoint-1000"]
    assert states(answer)["tmp-checkpoint-1500"] == "ignored"
    shipped = Shipped(tmp_path, "checkpoint-500", ship="model", identity=answer["latest"]["identity"])
    assert set(shipped.files) == {"config.json", "model.safetensors"}
    assert shipped.account["config"] is True
    assert facts(shipped.tensors) == facts(weights(500, torch.float32))
    whole = Shipped(tmp_path, "checkpoint-500", ship="whole")
    assert whole.files == {file.name: file.read_bytes() for file in (tmp_path / "checkpoint-500").iterdir()}


def test_shards_are_complete_only_with_their_index_and_full_length(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for seed, name in enumerate(names):
        save_file({f"t{seed}": torch.full((64,), float(seed))}, folder / name)
    write(folder / "trainer_state.json", '{"global_step": 10}')
    assert "index" in reasons(look(tmp_path))["checkpoint-10"]
    index = {"weight_map": {"t0": names[0], "t1": names[1]}}
    write(folder / "model.safetensors.index.json", json.dumps(index))
    for file in folder.iterdir():
        touch(file)
    assert look(tmp_path)["latest"]["step"] == 10
    assert set(Shipped(tmp_path, "checkpoint-10").tensors) == {"t0", "t1"}
    os.truncate(folder / names[1], 80)
    touch(folder / names[1])
    assert names[1] in reasons(look(tmp_path))["checkpoint-10"]
    (folder / names[1]).unlink()
    touch(folder / names[0])
    assert "missing" in reasons(look(tmp_path))["checkpoint-10"]


def test_lightning_takes_the_step_and_then_the_later_run(tmp_path: Path) -> None:
    def save(name: str, number: int, seed: int, when: float) -> None:
        content = {"global_step": number, "state_dict": weights(seed), "optimizer_states": [], "callbacks": {}}
        put(tmp_path / "checkpoints" / name, content, when)

    save("epoch=0-step=900.ckpt", 900, 1, 0)
    save("epoch=1-step=1000.ckpt", 1000, 2, 10)
    save("epoch=1-step=1000-v1.ckpt", 1000, 3, 500)
    (tmp_path / "checkpoints" / "last.ckpt").symlink_to("epoch=1-step=1000.ckpt")
    answer = look(tmp_path)
    assert answer["layout"] == "lightning"
    assert answer["latest"]["path"] == "checkpoints/epoch=1-step=1000-v1.ckpt"
    assert facts(Shipped(tmp_path, answer["latest"]["path"]).tensors) == facts(weights(3))


def test_dcp_is_complete_with_its_metadata_and_is_shipped_whole(tmp_path: Path) -> None:
    for number, committed in ((90, True), (100, False)):
        write(tmp_path / f"step-{number}" / "__0_0.distcp", bytes(range(64)))
        if committed:
            write(tmp_path / f"step-{number}" / ".metadata", pickle.dumps({"stub": number}, 2))
    answer = look(tmp_path)
    assert answer["layout"] == "dcp"
    assert answer["latest"]["path"] == "step-90"
    assert ".metadata" in reasons(answer)["step-100"]
    with pytest.raises(AgentError, match="format_utils"):
        Shipped(tmp_path, "step-90")
    assert set(Shipped(tmp_path, "step-90", ship="whole").files) == {".metadata", "__0_0.distcp"}


def test_deepspeed_waits_for_latest_and_finds_a_lost_rank(tmp_path: Path) -> None:
    for number in (10, 20, 30):
        folder = tmp_path / f"global_step{number}"
        put(folder / "mp_rank_00_model_states.pt", {"module": weights(number), "global_steps": number})
        for rank in range(2):
            put(folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", {"x": torch.zeros(4)})
    write(tmp_path / "latest", "global_step20")
    (tmp_path / "global_step20" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    for folder in tmp_path.iterdir():
        if folder.is_dir():
            touch(next(folder.iterdir()))
    answer = look(tmp_path)
    assert answer["layout"] == "deepspeed"
    assert answer["latest"]["path"] == "global_step10"
    assert "latest" in reasons(answer)["global_step30"]
    assert "rank 0" in reasons(answer)["global_step20"]
    assert facts(Shipped(tmp_path, "global_step10").tensors) == facts(weights(10))


def test_megatron_trusts_its_tracker_only_to_hold_back_newer_folders(tmp_path: Path) -> None:
    for number in (5000, 6000):
        path = tmp_path / f"iter_{number:07}" / "mp_rank_00" / "model_optim_rng.pt"
        put(path, {"model": weights(number), "iteration": number, "optimizer": {}})
    write(tmp_path / "latest_checkpointed_iteration.txt", "5000")
    answer = look(tmp_path)
    assert (answer["layout"], answer["latest"]["path"]) == ("megatron", "iter_0005000")
    assert facts(Shipped(tmp_path, "iter_0005000").tensors) == facts(weights(5000))


@pytest.mark.parametrize(
    ("layout", "names", "newest"),
    [
        ("specforge", ["epoch_0_step_900", "epoch_1_step_100"], "epoch_1_step_100"),
        ("speculators", ["2", "10"], "10"),
        ("accelerate", ["checkpoint_9", "checkpoint_10"], "checkpoint_10"),
    ],
)
def test_folders_of_safetensors_are_recognised_by_what_lies_beside(
    tmp_path: Path, layout: str, names: list[str], newest: str
) -> None:
    for seed, name in enumerate(names):
        (tmp_path / name).mkdir()
        save_file(weights(seed), tmp_path / name / "model.safetensors")
        write(tmp_path / name / "config.json", "{}")
        if layout == "accelerate":
            write(tmp_path / name / "random_states_0.pkl", b"x")
        touch(tmp_path / name / "model.safetensors")
    answer = look(tmp_path)
    assert (answer["layout"], answer["latest"]["path"]) == (layout, newest)
    assert set(Shipped(tmp_path, newest).files) == {"config.json", "model.safetensors"}


def test_prime_rl_weights_are_complete_with_their_marker(tmp_path: Path) -> None:
    for number, stable in ((10, True), (20, True), (30, False)):
        folder = tmp_path / "weights" / f"step_{number}"
        folder.mkdir(parents=True)
        save_file(weights(number), folder / "model.safetensors")
        write(folder / "config.json", "{}")
        if stable:
            write(folder / "STABLE", "")
        touch(folder / "model.safetensors")
    answer = look(tmp_path / "weights")
    assert (answer["layout"], answer["latest"]["path"]) == ("prime-rl", "step_20")
    assert "STABLE" in reasons(answer)["step_30"]
    assert set(Shipped(tmp_path / "weights", "step_20").files) == {"config.json", "model.safetensors"}


def test_lerobot_counts_by_value_and_waits_for_its_link(tmp_path: Path) -> None:
    for name in ("080000", "0100000", "0120000"):  # the run was made longer, and the numbers wider
        folder = tmp_path / "checkpoints" / name
        (folder / "pretrained_model").mkdir(parents=True)
        save_file(weights(int(name)), folder / "pretrained_model" / "model.safetensors")
        write(folder / "pretrained_model" / "config.json", "{}")
        put(folder / "training_state" / "optimizer.pt", {"state": torch.zeros(99)})
        touch(folder / "pretrained_model" / "model.safetensors")
    (tmp_path / "checkpoints" / "last").symlink_to("0100000")
    answer = look(tmp_path)
    assert (answer["layout"], answer["latest"]["path"]) == ("lerobot", "checkpoints/0100000")
    assert "`last` still points at 0100000" in reasons(answer)["checkpoints/0120000"]
    shipped = Shipped(tmp_path, "checkpoints/0100000", identity=answer["latest"]["identity"])
    assert set(shipped.files) == {"config.json", "model.safetensors"}
    assert facts(shipped.tensors) == facts(weights(100000))


def test_nemo_checkpoints_with_their_marker_beside_are_not_finished(tmp_path: Path) -> None:
    for number in (100, 200):
        content = {"state_dict": weights(number), "global_step": number, "pytorch-lightning_version": "2"}
        put(tmp_path / "one" / f"gpt--val_loss=1.5-step={number}-consumed_samples={number}.0-last.ckpt", content)
        folder = tmp_path / "two" / f"gpt--val_loss=1.5-step={number}-consumed_samples={number}.0-last"
        write(folder / "weights" / ".metadata", pickle.dumps({}, 2))
        write(folder / "weights" / "__0_0.distcp", b"x" * 64)
        write(folder / "context" / "model.yaml", "")
    for kind, layout, suffix in (("one", "lightning", ".ckpt"), ("two", "nemo", "")):
        name = "gpt--val_loss=1.5-step=200-consumed_samples=200.0-last"
        write(tmp_path / kind / f"{name}-unfinished", "")
        answer = look(tmp_path / kind)
        assert (answer["layout"], answer["latest"]["step"]) == (layout, 100)
        assert "unfinished" in reasons(answer)[name + suffix]
    with pytest.raises(AgentError, match="format_utils"):
        Shipped(tmp_path / "two", answer["latest"]["path"])
    assert "weights/__0_0.distcp" in Shipped(tmp_path / "two", answer["latest"]["path"], ship="whole").files


def test_a_drafter_state_is_found_in_specforge_training_states(tmp_path: Path) -> None:
    content = {"draft_state_dict": weights(4), "global_step": 40, "epoch": 1}
    put(tmp_path / "run-a-step40" / "training_state.pt", content)
    answer = look(tmp_path)
    assert (answer["layout"], answer["latest"]["step"]) == ("specforge", 40)
    assert facts(Shipped(tmp_path, answer["latest"]["path"]).tensors) == facts(weights(4))


def test_orbax_temporary_folders_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("100", "200.orbax-checkpoint-tmp-7"):
        write(tmp_path / name / "_CHECKPOINT_METADATA", "{}")
    answer = look(tmp_path)
    assert (answer["layout"], answer["latest"]["path"]) == ("orbax", "100")


def test_a_single_file_is_known_by_the_step_inside(tmp_path: Path) -> None:
    model = {"_orig_mod." + name: tensor for name, tensor in weights(5).items()}
    content = {"model": model, "optimizer": {}, "model_args": {"n_layer": 1}, "iter_num": 2000, "config": {}}
    put(tmp_path / "ckpt.pt", content)
    answer = look(tmp_path)
    assert (answer["layout"], answer["latest"]["path"], answer["latest"]["step"]) == ("single", "ckpt.pt", 2000)
    shipped = Shipped(tmp_path, "ckpt.pt")
    assert facts(shipped.tensors) == facts(weights(5))
    assert shipped.account["stripped"] == ["_orig_mod."]
    assert json.loads(shipped.metadata(tmp_path)["config"]) == {"n_layer": 1}


def test_files_with_their_step_in_the_name_are_ordered_by_it(tmp_path: Path) -> None:
    for number in (9, 10):
        put(tmp_path / f"model_{number:04}.pth", weights(number))
        put(tmp_path / f"optim_{number:04}.pth", {"state": {}})
    answer = look(tmp_path)
    assert (answer["layout"], answer["latest"]["path"]) == ("step-files", "model_0010.pth")
    assert facts(Shipped(tmp_path, "model_0010.pth").tensors) == facts(weights(10))


def test_a_plain_folder_of_safetensors_is_a_checkpoint_itself(tmp_path: Path) -> None:
    save_file(weights(1), tmp_path / "model.safetensors", metadata={"step": "77"})
    write(tmp_path / "config.json", "{}")
    answer = look(tmp_path)
    assert (answer["layout"], answer["latest"]["path"], answer["latest"]["step"]) == ("safetensors", ".", 77)
    assert set(Shipped(tmp_path, ".").files) == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("pattern", ["it{step}/weights.pt", "saves/{any}-{step}.pt"])
def test_a_pattern_names_a_layout_of_ones_own(tmp_path: Path, pattern: str) -> None:
    for number in (5, 40):
        place = pattern.replace("{step}", str(number)).replace("{any}", "a")
        put(tmp_path / place, training_state(number))
    (tmp_path / "it50").mkdir()
    answer = look(tmp_path, pattern)
    assert answer["latest"]["step"] == 40
    assert states(answer).get("it50") in ("torn", None)
    args = {"layout": pattern}
    assert facts(Shipped(tmp_path, answer["latest"]["path"], **args).tensors) == facts(weights(40))
    with pytest.raises(AgentError, match=r"\{step\} once"):
        look(tmp_path, "{any}/x.pt")


def test_the_legacy_stream_is_read_and_a_cut_one_is_torn(tmp_path: Path) -> None:
    for number, cut in ((4000, 0), (5000, 5)):
        path = tmp_path / f"step_{number}" / "checkpoint.pt"
        put(path, training_state(number), _use_new_zipfile_serialization=False)
        os.truncate(path, path.stat().st_size - cut)
        touch(path)
    answer = look(tmp_path)
    assert answer["latest"]["step"] == 4000
    assert states(answer)["step_5000/checkpoint.pt"] == "torn"
    assert facts(Shipped(tmp_path, answer["latest"]["path"]).tensors) == facts(weights(4000))


def test_crcs_that_were_switched_off_are_not_a_torn_file_and_identity_then_follows_the_file(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        first, second = step(tmp_path, 1, seed=1), step(tmp_path, 2, seed=1)
    finally:
        torch.serialization.set_crc32_options(True)
    assert facts(Shipped(tmp_path, "step_2/checkpoint.pt").tensors) == facts(weights(1))
    identity = look(tmp_path, step=2)["latest"]["identity"]
    touch(second, 5)
    assert look(tmp_path, step=2)["latest"]["identity"] != identity
    assert first.exists()


def test_identity_is_equal_exactly_when_content_is(tmp_path: Path) -> None:
    path = step(tmp_path, 4000)
    identity = look(tmp_path)["latest"]["identity"]
    touch(path, 77)
    assert look(tmp_path)["latest"]["identity"] == identity
    put(tmp_path / "other" / "step_4000" / "renamed.pt", torch.load(path))
    assert look(tmp_path / "other")["latest"]["identity"] == identity
    put(path, training_state(4000, seed=4001))
    assert look(tmp_path)["latest"]["identity"] != identity


_STOPPED = """
import os, signal, sys, torch
path, way = sys.argv[1], sys.argv[2]
if way == "TERM":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
content = {"model": {f"l{i}": torch.full((64, 64), float(i)) for i in range(40)}, "step": 2000}
write = torch._C.PyTorchFileWriter.write_record
seen = 0
def slow(self, name, *rest):
    global seen
    seen += name.startswith("data/")
    if seen == 11:
        os.kill(os.getpid(), getattr(signal, "SIG" + way))
        for _ in range(1000):
            pass
    return write(self, name, *rest)
torch._C.PyTorchFileWriter.write_record = slow
torch.save(content, path)
"""


@pytest.mark.parametrize("way", ["TERM", "INT", "KILL"])
def test_a_save_stopped_in_the_middle_is_torn_even_where_it_closed_its_archive(tmp_path: Path, way: str) -> None:
    step(tmp_path, 1000)
    path = tmp_path / "step_2000" / "checkpoint.pt"
    path.parent.mkdir()
    done = subprocess.run([sys.executable, "-c", _STOPPED, str(path), way], capture_output=True, timeout=120)
    assert done.returncode != 0
    touch(path)
    answer = look(tmp_path)
    assert answer["latest"]["step"] == 1000
    assert states(answer)["step_2000/checkpoint.pt"] == "torn"
    if way != "KILL":
        assert "of 40 storages are missing" in reasons(answer)["step_2000/checkpoint.pt"]


def test_an_archive_by_another_writer_is_read_as_well(tmp_path: Path) -> None:
    path = step(tmp_path, 7)
    store(path, records(path))
    assert facts(Shipped(tmp_path, "step_7/checkpoint.pt").tensors) == facts(weights(7))


def test_with_known_stamps_every_checkpoint_is_proven_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "OLDER", -1.0)  # no time for older ones
    for step in (10, 20, 30):
        put(tmp_path / f"step_{step}" / "checkpoint.pt", training_state(step))
    plain = scanning.scan(str(tmp_path), layout=None, training_alive=False, now=time.time())
    assert "stamp" not in plain["candidates"][0] and plain["candidates"][2]["state"] == "ignored"

    def rows(known: dict[str, str]) -> dict[int, dict[str, Any]]:
        answer = scanning.scan(str(tmp_path), layout=None, training_alive=False, now=time.time(), known=known)
        return {row["step"]: row for row in answer["candidates"]}

    first = rows({})
    assert {row["state"] for row in first.values()} == {"complete"}
    assert first[30]["checkpoint"]["identity"] == plain["latest"]["identity"]
    assert first[10]["checkpoint"]["ship_bytes"] == plain["latest"]["ship_bytes"]
    stamps = {row["path"]: row["stamp"] for row in first.values()}
    put(tmp_path / "step_10" / "checkpoint.pt", training_state(10, seed=99), when=5)
    again = rows(stamps)
    assert again[20]["state"] == "complete" and again[20]["checkpoint"] is None, "not proven a second time"
    assert again[10]["checkpoint"]["identity"] != first[10]["checkpoint"]["identity"]
    assert again[30]["checkpoint"]["identity"] == first[30]["checkpoint"]["identity"], "the latest always is"
