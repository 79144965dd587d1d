"""Train a small DFlash drafter for real: the live run of the demonstration and of the tests.

    python train_dflash_pipeline.py --out DIR

Makes a tiny target in DIR/target on the spot (no download), lets it write greedy text, and trains a drafter on that
text until it is stopped: progress lines on stdout, DIR/step_N/checkpoint.pt every so many steps. Runs from any
folder. docs/trainer.md explains the flags and the files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

PAYLOAD = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PAYLOAD.parent), str(PAYLOAD / "harness")]

from refusal import Refused  # noqa: E402

from remote_payload.trainer.language import Language  # noqa: E402
from remote_payload.trainer.pace import Pace, StopRequest  # noqa: E402

if TYPE_CHECKING:  # torch and transformers take seconds to import: only a training run waits for them
    import torch

    from remote_payload.trainer.dflash_training import DrafterTraining


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.write_prompts:
        write_prompts(args.write_prompts, Language.from_seed(args.seed), args.n, args.texts)
        return 0
    if args.out is None:
        parser.error("--out is needed for training")
    stop = StopRequest()
    stop.listen()
    try:
        with _pidfile(args.pidfile):
            train(args, stop)
    except Refused as refusal:
        parser.exit(2, f"{refusal}\n")
    return 0


def train(args: argparse.Namespace, stop: StopRequest) -> None:
    """Prepare target, text and drafter in args.out, then step until `stop` or args.steps."""
    from remote_payload.trainer.run_folder import Checkpoints, ProgressLog, progress_line

    training = prepare(args)
    configuration = training.drafter.config.to_hf()
    described = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    described["drafter"] = configuration
    (args.out / "drafter.json").write_text(json.dumps(configuration, indent=2) + "\n")
    checkpoints, pace = Checkpoints(args.out, args.keep), Pace(args.pace)
    last_step = None if args.steps is None else args.first_step + args.steps - 1
    step, window_began, window_steps = args.first_step - 1, time.monotonic(), 0

    with open(args.log, "a") if args.log else contextlib.nullcontext() as file:
        log = ProgressLog(file)
        stop.stepping = True
        while not stop.requested and step != last_step:
            step += 1
            loss = training.step()
            window_steps += 1
            if step % args.log_every == 0:
                rate = window_steps * training.tokens_per_step / (time.monotonic() - window_began)
                log.write(progress_line(step, step / training.steps_per_epoch, loss, rate))
                window_began, window_steps = time.monotonic(), 0
            if step % args.save_every == 0:
                checkpoints.save(step, {**training.state(), "step": step, "args": described})
            pace.wait(stop)
        log.end(f"training {'finished' if step == last_step else 'stopped'} after step {step}")


def prepare(args: argparse.Namespace) -> DrafterTraining:
    """Everything before the first step: the target is complete in args.out/target when this returns."""
    print("preparing the target and its greedy text", file=sys.stderr, flush=True)
    import torch
    from drafter import Drafter

    from remote_payload.trainer.dflash_training import DrafterTraining, drafter_config
    from remote_payload.trainer.greedy_text import greedy_text
    from remote_payload.trainer.tiny_target import TEXT_LENGTH, target_in

    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    device = _device(args.device)
    language = Language.from_seed(args.seed)
    target = target_in(args.out / "target", language, device)
    config = drafter_config(target.config)
    prompts = language.training_prompts(args.texts)
    text = greedy_text(target, prompts, length=TEXT_LENGTH, layer_ids=config.target_layer_ids)
    torch.manual_seed(args.seed)
    drafter = Drafter(config).to(device)
    return DrafterTraining(drafter, target, text, args.learning_rate, torch.Generator().manual_seed(args.seed))


def write_prompts(file: Path, language: Language, count: int, training_prompts: int) -> None:
    """Write held-out prompts as JSON lines {"id", "data_set", "token_ids"}, in two data sets by their length."""
    with open(file, "w") as lines:
        for number, token_ids in enumerate(language.held_out_prompts(count, training_prompts=training_prompts)):
            data_set = "short-prompts" if len(token_ids) < 22 else "long-prompts"
            lines.write(json.dumps({"id": f"{data_set}-{number}", "data_set": data_set, "token_ids": token_ids}) + "\n")


def _device(name: str) -> torch.device:
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


@contextlib.contextmanager
def _pidfile(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    path.write_text(f"{os.getpid()}\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 up")
    return number


def _rate(text: str) -> float:
    if not 0 < (number := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train a small DFlash drafter for real; its target is made on the spot."
    )

    def flag(name: str, help: str, **how: Any) -> None:
        parser.add_argument(name, help=help, **how)

    flag("--out", "folder of the target and the checkpoints", type=Path)
    flag("--steps", "steps to make (default: until stopped)", type=_positive)
    flag("--first-step", "number of the first step (default 1)", type=_positive, default=1)
    flag("--save-every", "save when the step is a multiple of this (default 100)", type=_positive, default=100)
    flag("--keep", "newest checkpoints of this run to keep (default 10)", type=_positive, default=10)
    flag("--log-every", "print progress when the step is a multiple of this (default 10)", type=_positive, default=10)
    flag("--log", "file to append the progress lines to as well", type=Path)
    flag("--pace", "steps a second at most (default: as fast as it goes)", type=_rate)
    flag("--pidfile", "file that holds the process id while training", type=Path)
    flag("--threads", "CPU threads (default 1)", type=_positive, default=1)
    flag(
        "--device",
        "auto takes a GPU where there is one (default auto)",
        choices=("auto", "cpu", "cuda"),
        default="auto",
    )
    flag("--seed", "of the language, the target and the training (default 0)", type=int, default=0)
    flag("--texts", "greedy texts to train on (default 256)", type=_positive, default=256)
    flag("--learning-rate", "(default 3e-3)", type=_rate, default=3e-3)
    flag("--write-prompts", "write held-out prompts (JSON lines) to this file instead of training", type=Path)
    flag("--n", "how many held-out prompts (default 12)", type=_positive, default=12)
    return parser


if __name__ == "__main__":
    sys.exit(main())
