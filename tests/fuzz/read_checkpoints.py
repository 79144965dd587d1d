"""Coverage-guided fuzzing of the readers that meet files of others: python read_checkpoints.py TARGET CORPUS [OPTION..]

Targets: `archive` (the zip directory), `pickle` (one pickle by itself), `file` (a whole file: zip or the older stream,
up to the plan of what would be shipped), `packed` (a pickle in a sound archive: its CRC fits, so it is read on). A
reader may answer, or say Torn or Refusal. Anything else, a hang, or growth past libFuzzer's limits is a finding.
"""

import io
import os
import sys
import zipfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["remote_payload"]):
    from remote_payload.agent.modelplan import Plan
    from remote_payload.agent.openfile import OpenFile
    from remote_payload.agent.tensors import UNDERSTOOD, Storages
    from remote_payload.agent.torchfile import TorchFile
    from remote_payload.agent.unpickler import Unpickler
    from remote_payload.agent.verdicts import Refusal, Torn
    from remote_payload.agent.zipreader import data_offset, read_archive


def opened(data: bytes) -> OpenFile:
    """The bytes as a file that no disk has."""
    descriptor = os.memfd_create("fuzzed")
    os.write(descriptor, data)
    return OpenFile(descriptor, "fuzzed")


def archive(data: bytes) -> None:
    file = opened(data)
    try:
        found = read_archive(file)
        for name in found.records:
            data_offset(file, found, name)
    finally:
        file.close()


def pickle(data: bytes) -> None:
    Unpickler(io.BytesIO(data), UNDERSTOOD, Storages().persistent, small=len(data) % 2 == 0).load()


def file(data: bytes) -> None:
    source = opened(data)
    try:
        torch = TorchFile(source)
        for name, tensor in Plan(torch, None, "fuzzed").order:
            assert name and torch.extent(tensor.storage.key).size >= 0
    finally:
        source.close()


def packed(data: bytes) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as made:
        made.writestr("a/data.pkl", data)
        for key in range(3):
            made.writestr(f"a/data/{key}", bytes(16 << key))
    file(whole.getvalue())


def main() -> None:
    target = {"archive": archive, "pickle": pickle, "file": file, "packed": packed}[sys.argv[1]]

    def one(data: bytes) -> None:
        try:
            target(data)
        except (Torn, Refusal):
            pass

    atheris.Setup([sys.argv[0], *sys.argv[2:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
