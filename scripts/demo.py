"""Plays the README's story for real: a training box with a live training, an evaluation box, and the three commands.

Run it as scripts/demo. Both boxes are embedded SSH servers on 127.0.0.1 below one temporary folder; the training is
remote_payload/trainer, the evaluation remote_payload/harness. Everything that it starts it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from embedded_hosts import EmbeddedHosts

ROOT = Path(__file__).resolve().parent.parent
PAYLOAD = ROOT / "remote_payload"
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
PATIENCE = 400
"""seconds for one command: the evaluation yields to everything else on a busy machine, as it should"""
STILL, LONGEST = 120, 900
"""seconds without a new line in the training's log, and in all, that a checkpoint is waited for"""

HOSTS = """\
hosts:
  train-box: {{roles: [train], python: {python}}}
  # one_use_keys: the embedded boxes read no authorized_keys, so the weights go through this machine
  eval-box: {{roles: [eval], workdir: ~/orch, python: {python}, limits: {{threads: 1}}, one_use_keys: false}}
runs:
  dflash:
    host: train-box
    checkpoints: {train}/checkpoints
    process: {{match: train_dflash_pipeline.py}}
    log: {train}/train.log
    job: eval-dflash
    eval_host: eval-box
"""
JOB = """\
harness: {{local: harness, remote: {remote}}}
data: {{cache: {remote}/cached_hidden_states, baseline: {remote}/baseline}}
checkpoint: {{ship: model}}
command: ["{{python}}", eval_drafter.py, --drafter, "{{checkpoint}}", --cache, "{{data.cache}}",
          --baseline, "{{data.baseline}}", --budgets, "16,64", --out, "{{result}}"]
env: {{HF_HUB_OFFLINE: "1"}}
result: {{file: eval_results.json, headline: acceptance_length.walk_macro, better: higher,
         items: prompts, item_id: id, item_value: acceptance_length}}
"""


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


class Demo:
    """The folder, the boxes, the training, and the commands typed against them."""

    def __init__(self, folder: Path, boxes: EmbeddedHosts) -> None:
        self.folder = folder
        self.train = boxes.home("train-box")
        self.eval = boxes.home("eval-box")
        self.project = folder / "project"
        self.environment = {
            **os.environ,
            **QUIET,
            "ORCH_SSH_CONFIG": str(boxes.config),
            "ORCH_HOME": str(folder / "laptop-state"),
        }
        self.training: subprocess.Popen[bytes] | None = None

    def start_training(self) -> None:
        """The live run: the trainer, on the training box, saving a checkpoint every few seconds."""
        script = PAYLOAD / "trainer" / "train_dflash_pipeline.py"
        command = [
            sys.executable,
            str(script),
            "--out",
            str(self.train / "checkpoints"),
            "--log",
            str(self.train / "train.log"),
        ]
        command += ["--save-every", "50", "--threads", "1", "--keep", "8", "--pace", "8"]
        with (self.train / "stdout.log").open("wb") as log:
            self.training = subprocess.Popen(
                command, cwd=self.train, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def wait_for_checkpoint(self, step: int) -> Path:
        """The checkpoint of that step, a second after its last write; waits as long as the training moves."""
        wanted = self.train / "checkpoints" / f"step_{step}" / "checkpoint.pt"
        log = self.train / "train.log"
        began = moved = time.monotonic()
        said = ""
        while time.monotonic() < min(moved + STILL, began + LONGEST):
            if self.training is not None and self.training.poll() is not None:
                raise SystemExit("the training ended early:\n" + (self.train / "stdout.log").read_text()[-2000:])
            if wanted.exists() and time.time() - wanted.stat().st_mtime > 1:
                return wanted
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            if lines and lines[-1] != said:
                moved, said = time.monotonic(), lines[-1]
            time.sleep(0.2)
        waited = time.monotonic() - began
        raise SystemExit(f"no step {step} after {waited:.0f} s; the training came to: {said or 'nothing yet'} ({log})")

    def furnish_evaluation_box(self) -> None:
        """An evaluation box as it is found: cached hidden states, a baseline, and a harness that somebody edited."""
        remote = self.eval / "eval"
        shutil.copytree(PAYLOAD / "harness", remote, ignore=shutil.ignore_patterns("__pycache__"))
        edited = remote / "eval_drafter.py"
        edited.write_text(edited.read_text() + "\n# quick fix on the box, never brought home\n")
        target = self.train / "checkpoints" / "target"
        prompts = remote / "prompts.jsonl"
        trainer = PAYLOAD / "trainer" / "train_dflash_pipeline.py"
        self.run_quietly(
            str(trainer), "--out", str(self.train / "checkpoints"), "--write-prompts", str(prompts), "--n", "12"
        )
        self.run_quietly(
            str(PAYLOAD / "harness" / "extract_hidden_states.py"),
            *("--target", str(target), "--prompts", str(prompts), "--max-new-tokens", "48"),
            *("--drafter", str(self.train / "checkpoints" / "drafter.json")),
            *("--out", str(remote / "cached_hidden_states")),
        )

    def furnish_baseline(self, checkpoint: Path) -> None:
        """An early checkpoint stands in for the public drafter."""
        folder = self.eval / "eval" / "baseline"
        folder.mkdir()
        code = (
            "import sys, json, torch; from safetensors.torch import save_file; d = torch.load(sys.argv[1]);"
            "save_file(d['model'], sys.argv[2] + '/model.safetensors');"
            "json.dump(d['args']['drafter'], open(sys.argv[2] + '/config.json', 'w'))"
        )
        self.run_quietly("-c", code, str(checkpoint), str(folder))

    def write_project(self) -> None:
        """The laptop's side: hosts.yaml, the job, and the harness as it should be."""
        (self.project / "jobs").mkdir(parents=True)
        shutil.copytree(PAYLOAD / "harness", self.project / "harness", ignore=shutil.ignore_patterns("__pycache__"))
        (self.project / "hosts.yaml").write_text(HOSTS.format(python=sys.executable, train=self.train))
        (self.project / "jobs" / "eval-dflash.yaml").write_text(JOB.format(remote=self.eval / "eval"))

    def run_quietly(self, *arguments: str) -> None:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def orch(self, *words: str) -> None:
        """Type a command as a user would."""
        say("$ orch " + " ".join(words))
        command = [sys.executable, "-c", "from orchestrator.cli import main; main()", *words]
        environment = {**self.environment, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=self.project, env=environment, timeout=PATIENCE)
        if done.returncode != 0:
            raise SystemExit(f"orch {' '.join(words)} ended with exit code {done.returncode}")

    def by_hand(self) -> list[str]:
        """What to type in another shell, so that orch there finds boxes and project."""
        program = shlex.join([sys.executable, "-c", "from orchestrator.cli import main; main()"])
        settings = {key: self.environment[key] for key in ("ORCH_SSH_CONFIG", "ORCH_HOME")}
        return [
            f"cd {shlex.quote(str(self.project))}",
            shlex.join(["export", *(f"{key}={value}" for key, value in settings.items())]),
            f'orch() {{ PYTHONPATH={shlex.quote(str(ROOT))} {program} "$@"; }}',
            "orch status",
        ]

    def stop_evaluations(self) -> None:
        """End what was detached and has not ended by itself: each supervisor leads a session of its own."""
        for started in self.eval.glob("orch/runs/*/started.json"):
            if not started.with_name("exit.json").exists():
                try:
                    os.killpg(json.loads(started.read_text())["pid"], signal.SIGTERM)
                except (ProcessLookupError, PermissionError):
                    continue

    def stop_training(self) -> None:
        if self.training is not None and self.training.poll() is None:
            self.training.send_signal(signal.SIGTERM)
            try:
                self.training.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.training.kill()
                self.training.wait()


def play(demo: Demo) -> None:
    """The story, in the order of the README."""
    demo.write_project()
    say("Starting a real DFlash training on the training box ...")
    demo.start_training()
    early = demo.wait_for_checkpoint(50)
    say("Furnishing the evaluation box: cached hidden states, a baseline, and a harness that was edited there ...")
    demo.furnish_evaluation_box()
    demo.furnish_baseline(early)
    demo.orch("status")
    demo.orch("sync-harness", "--yes")
    demo.wait_for_checkpoint(300)
    demo.orch("eval-latest")
    demo.orch("status")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stay", action="store_true", help="keep training and boxes up until Ctrl-C")
    stay = parser.parse_args().stay
    folder = Path(tempfile.mkdtemp(prefix="orch-demo-"))
    began, failed = time.monotonic(), False
    with EmbeddedHosts(folder, ["train-box", "eval-box"]) as boxes:
        demo = Demo(folder, boxes)
        try:
            play(demo)
            say(f"Done in {time.monotonic() - began:.0f} s. Everything is in {folder}:")
            print("  project/       hosts.yaml, the job and the harness")
            print("  train-box/     checkpoints and log of the training")
            print("  eval-box/      eval/ (harness, caches) and orch/ (shipped checkpoints, runs)")
            print("  laptop-state/  the ledger and each finished run's small files")
            if stay:
                print("The boxes are up. To type commands yourself, in another shell:")
                print("\n".join(f"  {line}" for line in demo.by_hand()))
                print("Ctrl-C here stops the training and the boxes.", flush=True)
                signal.pause()
            print("To type commands yourself, start the demo with --stay: it keeps training and boxes up.")
        except KeyboardInterrupt:
            pass
        except subprocess.TimeoutExpired as slow:
            print(f"demo: gave up after {PATIENCE} s of {' '.join(map(str, slow.cmd[-3:]))}: is this machine busy?")
            failed = True
        finally:
            demo.stop_training()
            demo.stop_evaluations()
    print(f"Training and boxes are stopped. To remove the folder: rm -r {folder}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
