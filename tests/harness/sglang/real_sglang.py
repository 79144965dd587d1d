"""A real SGLang on the CPU: its own venv (2.8 GB, some minutes to make), its own server on the loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent


def make_venv(folder):
    """Install SGLang below `folder`, or find it there; return its python."""
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "-q", "-c", HERE / "requirements.txt"]  # its own pins, torch among them
        subprocess.run([*pip, "torch"], check=True)
        subprocess.run([*pip, "--no-deps", "-r", HERE / "requirements-nodeps.txt"], check=True)
        subprocess.run([*pip, "-r", HERE / "requirements.txt"], check=True)
        (folder / "installed").touch()
    return python


def with_tokenizer(target, folder, stop_ids):
    """A copy of a target with a tokenizer of made-up words, one per id: the server wants one, the ids don't need it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, PreTrainedTokenizerFast

    shutil.copytree(target, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stop_ids}))
    words = {f"w{index}": index for index in range(AutoConfig.from_pretrained(target).vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    return folder


@contextmanager
def serve(python, target, log):
    """The server's address, while the context is open. Ends it and the processes that it started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "model-path": target.name,
        "device": "cpu",
        "host": "127.0.0.1",
        "port": port,
        "attention-backend": "torch_native",
        "sampling-backend": "pytorch",
        "dtype": "float32",
        "max-total-tokens": 16384,
        "max-running-requests": 8,
    }
    command = [python, HERE / "launch_on_cpu.py", "--disable-overlap-schedule", "--skip-server-warmup"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env=environment, start_new_session=True, cwd=target.parent
        )
    try:
        yield _ready(f"http://127.0.0.1:{port}", process, log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the group that was started above, and nothing else
        process.wait()


def _ready(url, process, log, seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return url
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise RuntimeError(f"SGLang didn't come up:\n{log.read_text(errors='replace')[-3000:]}")
