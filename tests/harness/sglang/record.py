"""Ask a real SGLang what the tests ask, and write down its answers: python tests/harness/sglang/record.py VENV"""

import json
import sys
import tempfile
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "remote_payload" / "harness")]
from real_sglang import make_venv, serve, with_tokenizer  # noqa: E402
from servers import completions_request, generate_request  # noqa: E402

DATA = HERE.parents[1] / "data"
TARGET = DATA / "drafter" / "target_hf"
RECORDED = DATA / "sglang" / "recorded.json"
STOP_IDS = [317, 468]  # the first prompt's text meets one of them
COUNT = 24
PROMPTS = [[1, 2, 3], [5] * 9, list(range(100, 140)), [511, 7], list(range(0, 500, 29))]
KEPT = ("version", "model_path", "dtype", "attention_backend", "device", "sampling_backend")  # of 500 settings


def ask(url, path, request=None):
    body = None if request is None else json.dumps(request).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
    ) as answer:
        return json.load(answer)


def record(url):
    model = ask(url, "/v1/models")["data"][0]["id"]
    asked = [("/model_info", None), ("/server_info", None), ("/v1/models", None)]
    for prompt in PROMPTS:
        asked.append(("/generate", generate_request(prompt, COUNT, frozenset(STOP_IDS))))
        asked.append(("/v1/completions", completions_request(prompt, COUNT, frozenset(STOP_IDS), model)))
    answers = [{"path": path, "request": request, "answer": ask(url, path, request)} for path, request in asked]
    settings = answers[1]["answer"]
    answers[1]["answer"] = {key: settings[key] for key in KEPT if key in settings}
    return answers


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = with_tokenizer(TARGET, folder / "target", STOP_IDS)
        with serve(make_venv(Path(sys.argv[1])), target, folder / "log") as url:
            answers = record(url)
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
