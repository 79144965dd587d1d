"""Reading a torch file without torch: the right bytes of every kind of tensor, or an error that names it."""

from __future__ import annotations

import argparse
import collections
import json
import math
import pathlib
import struct
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ckpt_files import Shipped, facts, flip_bit, look, put, raw, records, store, touch, training_state, weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote_payload.agent import gather
from remote_payload.agent.errors import AgentError
from remote_payload.agent.stream import open_source
from remote_payload.agent.tensors import DTYPES, Storage, Tensor

CHECKPOINT = "step_1/checkpoint.pt"


def ship(root: Path, model: Any, **options: Any) -> Shipped:
    put(root / CHECKPOINT, {"model": model, "step": 1}, **options)
    return Shipped(root, CHECKPOINT, ship="model")


SHIPPABLE = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


@pytest.mark.parametrize("legacy", [False, True])
def test_every_dtype_arrives_bit_for_bit_and_is_never_cast(tmp_path: Path, legacy: bool) -> None:
    untyped = [torch.uint16, torch.uint32, torch.uint64, *(dtype for dtype in SHIPPABLE if "float8" in str(dtype))]
    kinds = [dtype for dtype in SHIPPABLE if not legacy or dtype not in untyped]
    model = {str(dtype): (torch.arange(1, 7) % 2).reshape(2, 3).to(dtype) for dtype in kinds}
    model |= {"scalar": torch.tensor(7), "empty": torch.zeros(0, 4), "one": torch.zeros(1, 1, 1)}
    assert facts(ship(tmp_path, model, _use_new_zipfile_serialization=not legacy).tensors) == facts(model)


@pytest.mark.parametrize("legacy", [False, True])
def test_tied_names_are_shipped_once_and_views_ship_only_what_they_cover(tmp_path: Path, legacy: bool) -> None:
    big, tied = torch.randn(1000, 8), torch.randn(16, 8)
    model = {
        "embed": tied,
        "head": tied,
        "slice": big[100:104],
        "column": big[:5, 3],
        "transposed": torch.randn(6, 4).t(),
        "permuted": torch.randn(3, 4, 5).permute(2, 0, 1),
        "expanded": torch.ones(1, 4).expand(3, 4),
        "reversed": torch.randn(9)[::2],
        "windows": torch.arange(10.0).unfold(0, 4, 2),
    }
    shipped = ship(tmp_path, model, _use_new_zipfile_serialization=not legacy)
    assert facts(shipped.tensors) == facts(model)
    assert shipped.account["aliases"] == {"head": "embed"}
    assert json.loads(shipped.metadata(tmp_path)["aliases"]) == {"head": "embed"}
    assert shipped.account["bytes"] < 4000


def test_wrapper_names_are_stripped_repeatedly_and_said(tmp_path: Path) -> None:
    net = torch.nn.Module()
    net.fc = torch.nn.Linear(4, 3)
    net.register_buffer("count", torch.tensor(7))
    plain = net.state_dict()
    wrapped = collections.OrderedDict(
        ("module._orig_mod." + name.replace("fc.", "fc._checkpoint_wrapped_module."), torch.nn.Parameter(t, False))
        for name, t in plain.items()
    )
    wrapped._metadata = plain._metadata  # type: ignore[attr-defined]
    shipped = ship(tmp_path, wrapped)
    assert facts(shipped.tensors) == facts(plain)
    assert shipped.account["stripped"] == ["_checkpoint_wrapped_module.", "_orig_mod.", "module."]


def test_names_that_collide_without_their_wrappers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"'w' and 'module\.w' are both 'w'"):
        ship(tmp_path, {"w": torch.zeros(1), "module.w": torch.ones(1)})


@pytest.mark.parametrize("key", ["model", "state_dict", "draft_state_dict", "module", "model_state_dict"])
def test_the_key_that_holds_the_model_is_found(tmp_path: Path, key: str) -> None:
    put(tmp_path / CHECKPOINT, {key: weights(1), "optimizer": {"state": {0: {"exp_avg": torch.zeros(9)}}}})
    assert facts(Shipped(tmp_path, CHECKPOINT).tensors) == facts(weights(1))


def test_a_key_can_be_named_and_two_models_are_never_guessed_between(tmp_path: Path) -> None:
    content = {"model": weights(1), "module": weights(2), "ema": {"shadow": weights(3)}}
    put(tmp_path / CHECKPOINT, content)
    with pytest.raises(AgentError, match="'model', 'module'"):
        Shipped(tmp_path, CHECKPOINT)
    assert facts(Shipped(tmp_path, CHECKPOINT, model_key="module").tensors) == facts(weights(2))
    assert facts(Shipped(tmp_path, CHECKPOINT, model_key="ema.shadow").tensors) == facts(weights(3))
    with pytest.raises(AgentError, match=r"no state dict under 'student'.*'model', 'module', 'ema'"):
        Shipped(tmp_path, CHECKPOINT, model_key="student")
    answer = look(tmp_path)
    assert answer["latest"]["ship_bytes"] == answer["latest"]["bytes"]
    assert "several keys" in answer["warnings"][0]


def test_a_file_that_is_a_state_dict_itself_is_the_model(tmp_path: Path) -> None:
    put(tmp_path / CHECKPOINT, weights(6))
    assert facts(Shipped(tmp_path, CHECKPOINT).tensors) == facts(weights(6))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.sparse_coo_tensor([[0]], [1.0], (2,)), "bad.*_rebuild_sparse_tensor"),
        (lambda: torch.zeros(2, dtype=torch.complex128), "bad.*complex128"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "bad.*_rebuild_qtensor"),
        (lambda: torch.empty(2, device="meta"), "bad.*meta"),
        (lambda: np.ones(3), "bad.*numpy"),
    ],
    ids=["sparse", "complex128", "quantized", "meta", "numpy"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_plain_tensor_is_refused_by_its_name(tmp_path: Path, make: Any, said: str) -> None:
    with pytest.raises(AgentError, match=said) as refused:
        ship(tmp_path, {"good": torch.zeros(1), "bad": make()})
    assert refused.value.kind == "refused"


def test_a_pickled_module_is_refused_by_its_class(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"whole torch\.nn\.modules\.linear\.Linear"):
        ship(tmp_path, torch.nn.Linear(1, 1))


def test_classes_of_the_trainer_become_listed_placeholders_and_settings_come_along(tmp_path: Path) -> None:
    module = types.ModuleType("private_trainer")

    class Schedule:
        __module__, __qualname__ = "private_trainer", "Schedule"

    module.Schedule = Schedule  # type: ignore[attr-defined]
    sys.modules["private_trainer"] = module
    args = argparse.Namespace(lr=1e-4, out=pathlib.PurePosixPath("/x"), heads=[1, 2], bad=math.inf, inner={"a": None})
    more = {"args": args, "sched": Schedule(), "best": np.float64(1.25), "hist": collections.defaultdict(list, a=[1])}
    try:
        put(tmp_path / CHECKPOINT, training_state(1, **more))
    finally:
        del sys.modules["private_trainer"]
    shipped = Shipped(tmp_path, CHECKPOINT)
    assert facts(shipped.tensors) == facts(weights(1))
    assert {"argparse.Namespace", "private_trainer.Schedule", "pathlib.PurePosixPath"} <= set(
        shipped.account["placeholders"]
    )
    metadata = shipped.metadata(tmp_path)
    assert json.loads(metadata["config"]) == {"lr": 1e-4, "heads": [1, 2], "inner": {"a": None}}
    assert set(json.loads(metadata["config_left_out"])) == {"args.out", "args.bad"}
    assert (metadata["step"], metadata["format"], metadata["model_key"]) == ("1", "pt", "model")
    assert metadata["identity"] == shipped.account["identity"]
    assert metadata["source"] == str(tmp_path / CHECKPOINT)


def test_values_that_are_no_tensors_are_left_out_by_name(tmp_path: Path) -> None:
    shipped = ship(tmp_path, {"w": torch.zeros(1), "version": 3, "block": {"b": torch.ones(2), "note": "x"}})
    assert set(shipped.tensors) == {"w", "block.b"}
    assert json.loads(shipped.metadata(tmp_path)["left_out"]) == ["version", "block.note"]


def test_big_endian_files_arrive_as_the_same_numbers(tmp_path: Path) -> None:
    model = {
        "half": torch.randn(700, 401).half(),
        "long": torch.arange(5),
        "bool": torch.tensor([True, False]),
        "complex": torch.randn(3, dtype=torch.complex64),
        "view": torch.randn(6, 4).t(),
    }
    path = put(tmp_path / CHECKPOINT, {"model": model, "step": torch.tensor(1)})
    widths = {"0": 2, "1": 8, "2": 1, "3": 4, "4": 4, "5": 8}

    def turned(name: str, data: bytes) -> bytes:
        if name.endswith("/byteorder"):
            return b"big"
        width = widths.get(name.rpartition("data/")[2], 1)
        return np.frombuffer(data, f"u{width}").byteswap().tobytes()

    store(path, [(name, turned(name, data)) for name, data in records(path)])
    shipped = Shipped(tmp_path, CHECKPOINT)
    assert facts(shipped.tensors) == facts(model)
    assert shipped.account["step"] == 1


def test_a_file_past_four_gigabytes_is_read_where_its_numbers_need_64_bits(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        with torch.serialization.skip_data():
            filler = torch.empty((5 << 30) // 2, dtype=torch.bfloat16, device="meta")
            big = torch.empty_like(filler, device="cpu")
            put(tmp_path / CHECKPOINT, {"optimizer": big, "model": {"w": torch.ones(4)}, "step": 1})
    finally:
        torch.serialization.set_crc32_options(True)
    answer = look(tmp_path)
    assert answer["latest"]["bytes"] > 5 << 30
    assert facts(Shipped(tmp_path, CHECKPOINT).tensors) == facts({"w": torch.zeros(4)})  # skip_data leaves zeros


def test_ship_whole_is_the_file_byte_for_byte(tmp_path: Path) -> None:
    path = put(tmp_path / CHECKPOINT, training_state(1))
    shipped = Shipped(tmp_path, CHECKPOINT, ship="whole")
    assert shipped.files == {"checkpoint.pt": path.read_bytes()}


@pytest.mark.parametrize("ship_as", ["model", "whole"])
def test_one_flipped_bit_makes_the_checkpoint_torn(tmp_path: Path, ship_as: str) -> None:
    path = put(tmp_path / CHECKPOINT, training_state(1))
    flip_bit(path, "data/1")
    assert look(tmp_path)["latest"] is not None
    with pytest.raises(AgentError, match=r"torn: record data/1 does not fit its CRC") as torn:
        Shipped(tmp_path, CHECKPOINT, ship=ship_as)
    assert torn.value.kind == "torn"


def test_a_data_pkl_of_another_save_is_torn_before_anything_is_read(tmp_path: Path) -> None:
    path = put(tmp_path / CHECKPOINT, training_state(1))
    flip_bit(path, "data.pkl")
    assert "data.pkl does not fit its CRC" in look(tmp_path)["candidates"][0]["reason"]
    touch(path)


names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20).filter(
    lambda n: n != "__metadata__"
)


@given(
    model=st.dictionaries(
        names, st.tuples(st.sampled_from(SHIPPABLE), st.lists(st.integers(0, 4), max_size=4)), min_size=1, max_size=6
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_and_sizes_come_back_equal(tmp_path: Path, model: dict[str, Any]) -> None:
    parts = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
    tensors = {
        name: torch.ones(shape).to(dtype)
        for name, (dtype, shape) in model.items()
        if not any(part in name for part in parts)
    }
    if tensors:
        assert facts(ship(tmp_path, tensors).tensors) == facts(tensors)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_part_of_a_shipment_is_what_the_whole_has_there(tmp_path: Path, data: st.DataObject) -> None:
    if not (tmp_path / CHECKPOINT).exists():
        put(tmp_path / CHECKPOINT, training_state(1))
    ship = data.draw(st.sampled_from(["model", "whole"]))
    source = open_source(str(tmp_path), CHECKPOINT, ship=ship)
    whole = b"".join(source.chunks())
    ends = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=8)))
    ranges = [(start, stop) for start, stop in zip(ends[::2], ends[1::2], strict=False)]
    parts = list(source.pieces(ranges))
    source.close()
    assert b"".join(bytes(part) for _, part in parts) == b"".join(whole[start:stop] for start, stop in ranges)
    assert all(whole[at : at + len(part)] == part for at, part in parts)


@st.composite
def strided(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    stride = [draw(st.integers(0, 9)) for _ in shape]
    dtype = draw(st.sampled_from([torch.uint8, torch.int16, torch.int32, torch.int64]))
    offset = draw(st.integers(0, 5))
    needed = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    memory = torch.arange(needed + draw(st.integers(0, 3))).to(dtype)
    return torch.as_strided(memory, shape, stride, offset)


@given(view=strided(), held=st.integers(8, 200), out=st.integers(8, 200), far=st.integers(1, 60))
@settings(max_examples=300, deadline=None)
def test_any_view_is_gathered_in_steps_of_any_size(view: torch.Tensor, held: int, out: int, far: int) -> None:
    memory = raw(torch.as_strided(view, (view.untyped_storage().nbytes() // view.element_size(),), (1,), 0))
    dtype = DTYPES[str(view.dtype).removeprefix("torch.")]
    tensor = Tensor(Storage("0", dtype, len(memory)), dtype, view.storage_offset(), tuple(view.shape), view.stride())
    before = gather.IN_MEMORY, gather.HELD, gather.FAR
    gather.IN_MEMORY, gather.HELD, gather.FAR = out, held, far
    try:
        assert b"".join(gather.gathered(tensor, lambda at, size: memory[at : at + size])) == raw(view)
    finally:
        gather.IN_MEMORY, gather.HELD, gather.FAR = before


def test_a_record_that_only_its_own_header_calls_compressed_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / CHECKPOINT, training_state(1))
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 8, 8)
    path.write_bytes(data)
    touch(path)
    assert "own header" in look(tmp_path)["candidates"][0]["reason"]
