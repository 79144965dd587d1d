"""Both programs explain themselves, and say what they don't understand."""

import subprocess
import sys

import pytest
from eval_drafter import main as evaluate
from eval_drafter import parser as evaluation_parser
from extract_hidden_states import main as extract
from extract_hidden_states import parser as extraction_parser
from harness_bench import HARNESS

SAID = {
    "eval_drafter.py": (
        "acceptance length",
        "probable config mismatch",
        "near ties",
        "Censored",
        "--resume",
        "130: interrupted",
        "root not counted",
    ),
    "extract_hidden_states.py": (
        "layer by layer",
        '"token_ids"',
        "data_set",
        "greedy check",
        "CACHE.partial",
        "130: interrupted",
        "--rebuild",
    ),
}


@pytest.mark.parametrize("script", SAID)
def test_help_explains_the_program_without_anything_else_there(script, tmp_path):
    said = subprocess.run([sys.executable, HARNESS / script, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0 and not said.stderr
    unwrapped = " ".join(said.stdout.split())
    assert [words for words in SAID[script] if words not in unwrapped] == []


@pytest.mark.parametrize("make", [evaluation_parser, extraction_parser], ids=["evaluation", "extraction"])
def test_every_option_is_explained(make):
    assert [action.dest for action in make()._actions if not action.help] == []


@pytest.mark.parametrize(
    "main, options, sentence",
    [
        (evaluate, ["--batch", "0"], "expected a number from 1 up"),
        (evaluate, ["--budgets", "16,x"], "expected a number, not 'x'"),
        (evaluate, ["--device", "cuda"], "invalid choice: 'cuda'"),
        (extract, ["--memory", "lots"], "'lots' is no size like 12GiB"),
        (extract, ["--memory", "12"], "'12' is 12 bytes, too little for anything"),
        (extract, ["--max-new-tokens", "0"], "expected a number from 1 up"),
        (extract, ["--layers", "1,x"], "expected layers like 1,9,17"),
        (extract, ["--layers", "1", "--drafter", "x"], "not allowed with argument --layers"),
    ],
)
def test_what_is_not_understood_is_said_and_exits_with_2(main, options, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2 and sentence in capsys.readouterr().err
