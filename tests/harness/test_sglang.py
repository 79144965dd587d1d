"""A real SGLang 0.5.23: its recorded answers on every run, the server itself with --full."""

import json
import sys
from pathlib import Path

import pytest
from cache import load_cache
from extract_hidden_states import main as extract
from harness_server import answering

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "sglang"))

from real_sglang import make_venv, serve, with_tokenizer  # noqa: E402
from record import COUNT, PROMPTS, RECORDED, STOP_IDS, TARGET, record  # noqa: E402


@pytest.fixture
def target(tmp_path):
    return with_tokenizer(TARGET, tmp_path / "target", STOP_IDS)


def extract_from(url, target, tmp_path, *more):
    prompts = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": str(i), "token_ids": ids}) for i, ids in enumerate(PROMPTS)]
    prompts.write_text("\n".join(lines))
    options = ["--target", target, "--layers", "0,1,2", "--prompts", prompts, "--max-new-tokens", COUNT, *more]
    server = ["--server", url] if url else []
    assert extract([*map(str, options), *server, "--out", str(tmp_path / f"cache{len(more)}{bool(url)}")]) == 0
    return load_cache(tmp_path / f"cache{len(more)}{bool(url)}")


def check(cache, by_transformers, engine):
    """Its texts are the target's own choice, token for token, and those that transformers makes."""
    assert cache.manifest["greedy_check"]["tokens_not_greedy"] == 0
    assert [prompt.text for prompt in cache.prompts] == [prompt.text for prompt in by_transformers.prompts]
    assert cache.manifest["text"]["engine"] == engine
    assert cache.manifest["text"]["version"] == "0.5.23" and cache.manifest["text"]["dtype"] == "float32"
    assert len(cache.prompts[0].text.argmax) == 4 and cache.prompts[0].text.token_ids[-1] == STOP_IDS[0]


def test_recorded_answers_are_the_targets_greedy_texts_by_either_api(target, tmp_path):
    recorded = json.loads(RECORDED.read_text())

    def answer(path, request):
        found = [each["answer"] for each in recorded if (each["path"], each["request"]) == (path, request)]
        return (200, found[0]) if found else (404, {})

    by_transformers = extract_from(None, target, tmp_path)
    with answering(answer) as url:
        check(extract_from(url, target, tmp_path), by_transformers, "sglang")
        check(extract_from(url, target, tmp_path, "--api", "completions"), by_transformers, "completions")


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_the_server_itself_gives_the_recorded_answers(target, tmp_path, pytestconfig):
    python = make_venv(Path(pytestconfig.cache.mkdir("sglang")))
    with serve(python, target, tmp_path / "log") as url:
        check(extract_from(url, target, tmp_path), extract_from(None, target, tmp_path), "sglang")
        now = [ids_of(each) for each in record(url)]
    assert now == [ids_of(each) for each in json.loads(RECORDED.read_text())]


def ids_of(recorded):
    answer = recorded["answer"]
    return answer.get("output_ids") or [choice["token_ids"] for choice in answer.get("choices", [])]
