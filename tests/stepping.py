"""A small training that really steps: burns a core (or sleeps), appends progress lines to its log, and can end in ways.

python stepping.py LOG [--until FILE] [--end finished|crashed|quiet] [--pause SECONDS | --burn]
"""

import argparse
import os
import sys
import time

ROUNDS = 60_000
"""of the loop that a burning step is made of: about 5 ms"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("log")
    parser.add_argument("--pidfile")
    parser.add_argument("--until", default="", help="steps until this file is there")
    parser.add_argument("--end", default="quiet")
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--burn", action="store_true")
    args = parser.parse_args()
    if args.pidfile:
        with open(args.pidfile, "w") as file:
            file.write(f"{os.getpid()}\n")
    step, began, every = 0, time.monotonic(), 10 if args.burn else 2
    while not (args.until and os.path.exists(args.until)):
        step += 1
        if args.burn:
            sum(range(ROUNDS))
        else:
            time.sleep(args.pause)
        if step % every == 0:
            now = time.monotonic()
            say(args.log, f"step {step} epoch {step / 1000:.2f} loss 2.31 {every / (now - began):.2f} tok/s")
            began = now
    if args.end == "finished":
        say(args.log, f"training finished after step {step}")
    if args.end == "crashed":
        say(args.log, "Traceback (most recent call last):\n  File x\nRuntimeError: CUDA error: out of luck")
        sys.exit(1)


def say(log: str, line: str) -> None:
    """Opened anew each time, so that a rotated log is followed."""
    with open(log, "a") as file:
        print(line, file=file)


if __name__ == "__main__":
    main()
