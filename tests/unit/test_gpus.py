"""GPUs as the driver's tool tells them. tests/data/gpu: what nvidia-smi 580.159.04 printed beside a real training."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observing import Spawner

from remote_payload.agent import gpus

DATA = Path(__file__).resolve().parents[1] / "data" / "gpu"
H200 = {
    "index": 0,
    "name": "NVIDIA H200",
    "utilisation": 99,
    "memory_used": 2861 << 20,
    "memory_total": 143771 << 20,
    "temperature": 59,
    "clients": [],
}


def test_a_busy_gpu_and_its_client_are_read_from_the_real_output():
    uuid = "GPU-c7e0467e-c3ff-fad6-751a-fdae44fc3506"
    assert gpus.parse_gpus((DATA / "query-gpu-nounits.csv").read_text()) == [(uuid, H200)]
    assert gpus.parse_clients((DATA / "compute-apps.csv").read_text()) == [(uuid, 413)]
    assert gpus.parse_clients((DATA / "compute-apps-idle.csv").read_text()) == []


def test_what_the_driver_does_not_tell_is_none():
    line = "3, GPU-1, NVIDIA A100-SXM4-80GB MIG 1g.10gb, [N/A], [N/A], 81920, [Not Supported]\n"
    ((_, gpu),) = gpus.parse_gpus(line)
    assert (gpu["index"], gpu["utilisation"], gpu["memory_used"], gpu["temperature"]) == (3, None, None, None)
    assert gpu["memory_total"] == 81920 << 20


def test_rocm_cards_are_read():
    cards = {
        "card10": {"GPU use (%)": "7", "VRAM Total Memory (B)": "200", "VRAM Total Used Memory (B)": "100"},
        "card2": {"Card Series": "Instinct MI300X", "Temperature (Sensor junction) (C)": "45.0", "GPU use (%)": "N/A"},
        "system": {"Driver version": "6.1"},
    }
    two, ten = gpus.parse_rocm("WARNING: something\n" + json.dumps(cards))
    assert (two["index"], two["name"], two["temperature"], two["utilisation"]) == (2, "Instinct MI300X", 45, None)
    assert (ten["index"], ten["memory_used"], ten["memory_total"], ten["utilisation"]) == (10, 100, 200, 7)


def test_rocm_clients_are_read_device_by_device():
    text = (
        "\n============== ROCm System Management Interface ==============\n"
        "==================== GPUs Indexed by PID =====================\n"
        "PID 33915 is using 2 DRM device(s):\n0 3 \nPID 7 is using 0 DRM device(s)\n"
        "PID 8 is using 1 DRM device(s):\n1\n"
        "==============================================================\n"
    )
    assert gpus.parse_rocm_clients(text) == [("0", 33915), ("3", 33915), ("1", 8)]
    assert gpus.parse_rocm_clients("No KFD PIDs currently running\n4\n") == []


@given(st.text(max_size=300))
def test_any_output_is_read_without_a_surprise(text):
    gpus.parse_gpus(text)
    gpus.parse_clients(text)
    gpus.parse_rocm(text)
    gpus.parse_rocm_clients(text)


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a stand-in for the driver's tool first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gpus, "FOLDERS", ())

    def make(script: str, name: str = "nvidia-smi") -> None:
        path = tmp_path / name
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)

    return make


def answer(cards: str, apps: str) -> str:
    return f'case "$1" in --query-gpu=*) cat {DATA}/{cards};; *) {apps};; esac\n'


def test_gpus_and_clients_come_together(tool):
    tool(answer("query-gpu-nounits.csv", f"sed s/413/{os.getpid()}/ {DATA}/compute-apps.csv"))
    assert gpus.read(Spawner()) == {"gpus": [{**H200, "clients": [os.getpid()]}], "note": None}


def test_hidden_clients_are_said(tool):
    tool(answer("query-gpu-nounits.csv", "true"))
    assert "hides them" in gpus.read(Spawner())["note"]
    tool(answer("query-gpu-nounits.csv", "echo GPU-c7e0467e-c3ff-fad6-751a-fdae44fc3506, 4194305"))
    told = gpus.read(Spawner())
    assert told["gpus"][0]["clients"] == [4194305]
    assert "another PID namespace" in told["note"]


def test_no_driver_a_failing_and_a_hanging_one_are_said(tool, monkeypatch):
    tool(f"cat {DATA}/bad-field.txt; exit 2\n")
    told = gpus.read(Spawner())
    assert told["gpus"] == [] and "exit code 2" in told["note"] and "not a valid field" in told["note"]
    tool("exec sleep 30\n")
    monkeypatch.setattr(gpus, "LIMIT_S", 0.2)
    spawner = Spawner()
    assert "did not answer" in gpus.read(spawner)["note"]
    assert all(child.returncode is not None for child in spawner.children)


def test_a_host_without_a_tool_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "FOLDERS", ())
    assert gpus.read(Spawner()) == {"gpus": [], "note": "neither nvidia-smi nor rocm-smi is on this host"}


def test_rocm_gpus_and_clients_come_together(tmp_path, monkeypatch, tool):
    cards = json.dumps({"card0": {"Card Series": "MI300X", "GPU use (%)": "9", "VRAM Total Used Memory (B)": "5"}})
    asked = f'case "$1" in --showpidgpus) echo "PID {os.getpid()} is using 1 DRM device(s):"; echo 0;; '
    tool(asked + f"*) echo '{cards}';; esac\n", "rocm-smi")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    if gpus.find("nvidia-smi"):
        pytest.skip("this machine has a GPU of another maker")
    told = gpus.read(Spawner())
    assert (told["gpus"][0]["clients"], told["gpus"][0]["utilisation"], told["note"]) == ([os.getpid()], 9, None)
    question = gpus.client_question()
    assert question is not None and question[0][1:] == ["--showpidgpus"]
