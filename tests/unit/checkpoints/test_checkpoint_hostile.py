"""Hostile files: nothing runs, nothing grows, nothing hangs, and the reason is said."""

from __future__ import annotations

import pickle
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from ckpt_files import Shipped, facts, look, put, records, store, touch, training_state, weights, with_pickle, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote_payload.agent.errors import AgentError

CHECKPOINT = "step_1/checkpoint.pt"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return put(tmp_path / CHECKPOINT, training_state(1))


def refused(root: Path, said: str) -> None:
    """Looking and shipping both end soon and say why, in little memory."""
    began = time.monotonic()
    tracemalloc.start()
    try:
        answer = look(root)
        assert said in answer["candidates"][0]["reason"]
        with pytest.raises(AgentError, match=said):
            Shipped(root, CHECKPOINT, ship="model")
        assert tracemalloc.get_traced_memory()[1] < 100 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 60


def test_code_in_the_pickle_is_listed_and_not_run(tmp_path: Path, whole: Path) -> None:
    mark = tmp_path / "ran"
    command = b"touch " + str(mark).encode()
    evil = b"\x80\x02cposix\nsystem\n(X" + struct.pack("<I", len(command)) + command + b"tR0"
    with_pickle(whole, lambda data: evil + data[2:])
    shipped = Shipped(tmp_path, CHECKPOINT)
    assert shipped.account["placeholders"] == ["posix.system"]
    assert facts(shipped.tensors) == facts(weights(1))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\x80\x02Nr\xff\xff\xff\x0f" + b"}.", "no key of the file|holds a dict"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.", "ends inside"),
        (b"\x80\x04\x8b\xff\xff\xff\x7f", "an integer of"),
        (b"\x80\x02" + b"]" * 3_000_000 + b".", "at once"),
        (b"\x80\x02]" + b"]a" * 50 + b"\x82\x01.", "does not belong"),
        (b"\x80\x05\x97.", "does not belong"),
        (b"\x80\x02}(X\x01\x00\x00\x00aK", "ends inside|ends before"),
        (b"\x80\x02K\x01}s.", "malformed|items set"),
        (b"\x80\x02(K\x01K\x02u.", "malformed"),
        (b"I" + b"1" * 10_000, "a line of more"),
        (b"\x80\x02]" + b"(" + b"]" * 900 + b"e" * 1, "ends before|malformed"),
        (b"\x80\x02X\x05\x00\x00\x00modelQ.", "persistent value"),
    ],
)
def test_a_malformed_pickle_is_told_apart_and_costs_nothing(
    tmp_path: Path, whole: Path, body: bytes, said: str
) -> None:
    with_pickle(whole, lambda _: body)
    answer = look(tmp_path)
    told = answer["candidates"][0]["reason"]
    assert any(word in told for word in said.split("|")), told
    with pytest.raises(AgentError):
        Shipped(tmp_path, CHECKPOINT)


def test_nested_lists_and_endless_objects_end_at_the_budget(tmp_path: Path, whole: Path) -> None:
    with_pickle(whole, lambda _: b"\x80\x02" + b"(" * 200_000 + b"K\x01" + b"l" * 200_000 + b".")
    assert look(tmp_path)["candidates"][0]["state"] == "complete"  # readable, but no model in it
    with_pickle(
        whole, lambda _: b"\x80\x02]" + b"(" + b"}" * 400_000 + b"e" + (b"(" + b"}" * 400_000 + b"e") * 4 + b"."
    )
    refused(tmp_path, "needs more than 56 MB")


def test_a_dictionary_that_holds_one_child_twice_sixty_levels_deep_ends(tmp_path: Path, whole: Path) -> None:
    level = b"}q\x00"
    for at in range(60):
        level += b"}(X\x01\x00\x00\x00ah" + bytes([at]) + b"X\x01\x00\x00\x00bh" + bytes([at]) + b"uq" + bytes([at + 1])
    with_pickle(whole, lambda _: b"\x80\x02}(X\x05\x00\x00\x00model" + level + b"u.")
    began = time.monotonic()
    with pytest.raises(AgentError):
        Shipped(tmp_path, CHECKPOINT, model_key="model")
    assert time.monotonic() - began < 30


def test_keys_chosen_to_collide_do_not_cost_time(tmp_path: Path, whole: Path) -> None:
    keys = b"".join(b"\x8a\x0b" + (n * (2**61 - 1)).to_bytes(11, "little", signed=True) + b"N" for n in range(60_000))
    with_pickle(whole, lambda _: b"\x80\x02}(" + keys + b"u.")
    began = time.monotonic()
    look(tmp_path)
    assert time.monotonic() - began < 20


def test_a_view_past_its_storage_and_one_that_claims_a_terabyte_are_refused_by_name(
    tmp_path: Path, whole: Path
) -> None:
    def tensor(shape: bytes, stride: bytes) -> bytes:
        storage = b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
        rest = b"K\x00" + shape + b"\x85" + stride + b"\x85\x89ccollections\nOrderedDict\n)RtR"
        return b"ctorch._utils\n_rebuild_tensor_v2\n" + storage + rest

    for shape, stride, said in (
        (b"K\x05", b"K\x01", "'w' is no plain dense tensor"),
        (b"\x8a\x06\x00\x00\x00\x00\x00\x01", b"K\x00", "times the file"),
        (b"J\xff\xff\xff\xff", b"K\x01", "'w' is no plain dense tensor"),
    ):
        body = b"\x80\x02}X\x05\x00\x00\x00model}X\x01\x00\x00\x00w" + tensor(shape, stride) + b"ss."
        store(whole, [("checkpoint/data.pkl", body), ("checkpoint/data/0", bytes(16))])
        with pytest.raises(AgentError, match=said):
            Shipped(tmp_path, CHECKPOINT)


def test_a_storage_of_another_size_than_declared_is_not_whole(tmp_path: Path, whole: Path) -> None:
    store(whole, [(n, data + b"x" if n.endswith("data/1") else data) for n, data in records(whole)])
    assert "where data.pkl says" in look(tmp_path)["candidates"][0]["reason"]


@pytest.mark.parametrize(
    "name",
    ["../../../../tmp/escaped", "checkpoint/../x", "/etc/passwd", "other/data.pkl", "checkpoint//x", "checkpoint/a\\b"],
)
def test_records_outside_the_archive_are_refused_and_left_alone(tmp_path: Path, whole: Path, name: str) -> None:
    store(whole, [*records(whole), (name, b"x")])
    answer = look(tmp_path)
    assert answer["latest"]["path"] == CHECKPOINT
    assert "outside" in answer["candidates"][0]["reason"]
    with pytest.raises(AgentError, match="outside") as error:
        Shipped(tmp_path, CHECKPOINT)
    assert error.value.kind == "refused"
    assert Shipped(tmp_path, CHECKPOINT, ship="whole").files == {"checkpoint.pt": whole.read_bytes()}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_torch_never_writes_is_refused(tmp_path: Path, whole: Path) -> None:
    items = records(whole)
    store(whole, [*items, items[0]])
    refused(tmp_path, "two records named 'data.pkl'")
    store(whole, items, zipfile.ZIP_DEFLATED)
    refused(tmp_path, "compressed")
    store(whole, items)
    write(whole, b"#!/bin/sh\n" + whole.read_bytes())
    assert look(tmp_path)["latest"] is None
    store(whole, items)
    data = bytearray(whole.read_bytes())
    at = data.index(b"PK\1\2")
    data[at + 8] |= 1
    write(whole, bytes(data))
    refused(tmp_path, "encrypted")


def test_bytes_before_the_archive_are_refused_with_their_number(tmp_path: Path, whole: Path) -> None:
    prefix = b"PK\3\4" + bytes(96)
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}, 2))
    write(whole, prefix + whole.read_bytes())
    assert "100 bytes more" in look(tmp_path)["candidates"][0]["reason"]


def terabyte(path: Path) -> Path:
    """A file whose model is one view that repeats four bytes."""
    storage = b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    view = b"K\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x85K\x00\x85\x89ccollections\nOrderedDict\n)RtR"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n" + storage + view
    body = b"\x80\x02}X\x05\x00\x00\x00model}X\x01\x00\x00\x00w" + tensor + b"ss."
    return store(path, [("checkpoint/data.pkl", body), ("checkpoint/data/0", bytes(16))])


@pytest.mark.parametrize("kind", ["deflated", "outside", "endless", "terabyte"])
def test_a_hostile_newest_one_is_passed_over_where_the_model_is_wanted(tmp_path: Path, whole: Path, kind: str) -> None:
    path = put(tmp_path / "step_2" / "checkpoint.pt", training_state(2))
    if kind == "deflated":
        store(path, records(path), zipfile.ZIP_DEFLATED)
    elif kind == "outside":
        store(path, [*records(path), ("../x", b"x")])
    elif kind == "endless":
        with_pickle(path, lambda _: b"\x80\x02" + b"]" * 3_000_000 + b".")
    else:
        terabyte(path)
    answer = look(tmp_path, ship="model")
    row = next(row for row in answer["candidates"] if row["step"] == 2)
    assert answer["latest"]["step"] == 1 and row["state"] == "ignored"
    assert "orch does not read it" in row["reason"] and "`ship: whole`" in row["reason"]
    assert any(row["reason"] in warning for warning in answer["warnings"])
    assert look(tmp_path, ship="whole")["latest"]["step"] == 2
    assert look(tmp_path)["latest"]["step"] == 2, "what is asked without a job names the newest, with a warning"


def test_a_record_that_its_own_header_calls_otherwise_makes_it_torn_while_it_is_shipped(
    tmp_path: Path, whole: Path
) -> None:
    data = bytearray(whole.read_bytes())
    at = data.index(b"/data/1", data.index(b"/data/0") + 1)
    struct.pack_into("<H", data, data.rindex(b"PK\3\4", 0, at) + 8, 8)
    touch(write(whole, bytes(data)))
    assert look(tmp_path, ship="model")["latest"]["step"] == 1, "not all headers are read to find the latest one"
    with pytest.raises(AgentError, match="own header") as torn:
        Shipped(tmp_path, CHECKPOINT)
    assert torn.value.kind == "torn"


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_ends_in_an_answer(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / CHECKPOINT
    original = tmp_path / "original.bin"
    if not original.exists():
        legacy = tmp_path / "legacy" / "x.pt"
        original.write_bytes(put(path, training_state(1)).read_bytes())
        put(legacy, training_state(1), _use_new_zipfile_serialization=False)
    source = data.draw(st.sampled_from([original, tmp_path / "legacy" / "x.pt"]))
    content = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        end = min(len(content), at + data.draw(st.sampled_from([1, 1, 4, 60])))
        content[at:end] = data.draw(st.binary(min_size=0, max_size=8))
    write(path, bytes(content))
    touch(path)
    answer = look(tmp_path, "step-folders")
    if answer["latest"]:
        try:
            Shipped(tmp_path, CHECKPOINT, layout="step-folders")
        except AgentError:
            pass
