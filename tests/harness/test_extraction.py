"""Where texts come from: a server that takes and returns ids, and prompts in words through the target's template."""

import json
import shutil

import pytest
from cache import load_cache
from completions import load_target
from eval_drafter import main as evaluate
from extract_hidden_states import DEMO
from extract_hidden_states import main as extract
from harness_bench import make_target
from harness_server import answering
from prompt_files import read_prompts
from refusal import Refused
from servers import completed_ids


def generate_server(answer, keys=None):
    """POST /generate answers as SGLang does: `answer(request)` -> (status, ids)."""

    def reply(path, request):
        status, ids = answer(request) if path == "/generate" else (404, [])
        meta = {"finish_reason": {"type": "length"}, "completion_tokens": len(ids)}
        return status, {"text": "", "output_ids": ids, "meta_info": meta}

    return answering(reply, keys)


def extract_from(url, bench, out):
    options = ["--target", bench.target, "--drafter", bench.drafter, "--prompts", bench.prompts, "--server", url]
    return extract([*map(str, options), "--max-new-tokens", "24", "--out", str(out)])


def test_a_servers_greedy_text_gives_the_same_cache_even_after_a_hiccup(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("servers._PAUSES", (0, 0))
    target, requests = load_target(bench.target), []

    def answer(request):
        requests.append(request)
        if len(requests) == 2:
            return 503, []
        return 200, target.complete(request["sampling_params"]["max_new_tokens"], request["input_ids"])

    with generate_server(answer) as url:
        assert extract_from(url, bench, tmp_path / "cache") == 0
    assert len(requests) == 4
    assert all(request["sampling_params"]["temperature"] == 0 for request in requests)
    ours, reference = load_cache(tmp_path / "cache"), load_cache(bench.cache)
    assert ours.prompts == reference.prompts
    assert ours.manifest["text"]["engine"] == "sglang"


def test_text_that_is_not_the_targets_choice_is_counted_and_censored(bench, tmp_path, capsys):
    target = load_target(bench.target)

    def answer(request):
        ids = list(target.complete(10, request["input_ids"]))
        ids[4] = (ids[4] + 1) % 95
        return 200, [*ids[:5], *target.complete(5, [*request["input_ids"], *ids[:5]])]

    with generate_server(answer) as url:
        assert extract_from(url, bench, tmp_path / "cache") == 0
    assert "warning: 3 of them are not the target's own choice" in capsys.readouterr().out
    for prompt in load_cache(tmp_path / "cache").prompts:
        start = prompt.text.prompt_length
        assert prompt.text.known(start, 9) == prompt.text.token_ids[start + 1 : start + 4]
        assert len(prompt.text.known(start + 4, 9)) == 5
    options = ["--drafter", bench.drafter, "--cache", tmp_path / "cache", "--out", tmp_path / "r.json"]
    assert evaluate([*map(str, options)]) == 0


def test_only_missing_texts_are_asked_for_again(bench, tmp_path, capsys):
    """The second of three is declined; what came stays, and the same command asks for the rest."""
    target, asked = load_target(bench.target), []

    def answer(request):
        asked.append(len(request["input_ids"]))
        if len(asked) == 2:
            return 400, []
        return 200, target.complete(24, request["input_ids"])

    with generate_server(answer) as url:
        options = ["--target", bench.target, "--layers", "0,2", "--prompts", bench.prompts, "--server", url]
        command = [*map(str, options), "--max-new-tokens", "24", "--at-once", "1", "--out", str(tmp_path / "cache")]
        assert extract(command) == 2
        assert "400" in capsys.readouterr().err and not (tmp_path / "cache").exists()
        kept = len(list((tmp_path / "cache.partial" / "texts").iterdir()))
        before = len(asked)
        assert extract(command) == 0
    assert kept >= 1 and len(asked) - before == 3 - kept
    assert load_cache(tmp_path / "cache").prompts == load_cache(bench.cache).prompts


@pytest.mark.parametrize(
    "choice",
    [{"token_ids": [4, 5]}, {"tokens": [4, 5]}, {"logprobs": {"tokens": ["token_id:4", "token_id:5"]}}],
    ids=["vllm and sglang", "llama.cpp", "names"],
)
def test_ids_of_a_completion_are_found_wherever_the_engine_puts_them(choice):
    assert completed_ids({"choices": [{"text": "x", **choice}]}) == (4, 5)


@pytest.mark.parametrize("choice", [{}, {"logprobs": {"tokens": ["a", "token_id:5"]}}, {"token_ids": [1, -1]}])
def test_a_completion_without_ids_is_refused(choice):
    with pytest.raises(Refused, match="no token ids"):
        completed_ids({"choices": [{"text": "x", **choice}]})


def test_a_key_goes_to_the_server_and_nowhere_else(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MY_KEY", "s3cret-value")
    target, keys = load_target(bench.target), set()
    with generate_server(lambda request: (200, target.complete(4, request["input_ids"])), keys) as url:
        options = ["--target", bench.target, "--layers", "0", "--prompts", bench.prompts, "--server", url]
        more = ["--max-new-tokens", "4", "--server-key-from", "MY_KEY", "--out", str(tmp_path / "cache")]
        assert extract([*map(str, options), *more]) == 0
    assert keys == {"Bearer s3cret-value"}
    said = capsys.readouterr()
    assert "s3cret" not in said.out + said.err + (tmp_path / "cache" / "manifest.json").read_text()
    monkeypatch.delenv("MY_KEY")
    more[-1] = str(tmp_path / "other")
    assert extract([*map(str, options), *more]) == 2
    assert "the environment has no MY_KEY" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url, sentence", [("http://me:s3cret@127.0.0.1:1", "holds a user or password"), ("127.0.0.1:30000", "like http://")]
)
def test_a_server_address_is_an_address_and_no_secret(bench, tmp_path, capsys, url, sentence):
    options = ["--target", bench.target, "--layers", "0", "--prompts", bench.prompts, "--server", url]
    assert extract([*map(str, options), "--out", str(tmp_path / "cache")]) == 2
    err = capsys.readouterr().err
    assert sentence in err and "s3cret" not in err


def test_a_batch_gives_the_text_of_each_alone(bench):
    target = load_target(bench.target)
    prompts = [[1, 2, 3], [7], list(range(20, 40))]
    assert target.complete_batch(12, prompts) == [target.complete(12, prompt) for prompt in prompts]


def test_a_target_that_does_not_fit_is_not_loaded(bench, tmp_path, capsys):
    options = ["--target", bench.target, "--layers", "0,2", "--prompts", bench.prompts, "--memory", "2MB"]
    assert extract([*map(str, options), "--out", str(tmp_path / "cache")]) == 2
    assert "Take its texts from a server (--server URL)" in capsys.readouterr().err


def test_an_answer_without_ids_is_refused(bench, tmp_path, capsys):
    with generate_server(lambda request: (200, [])) as url:
        assert extract_from(url, bench, tmp_path / "cache") == 2
    assert "no output_ids" in capsys.readouterr().err


@pytest.fixture(scope="module")
def speaking_target(tmp_path_factory):
    """A target with a word tokenizer, made on the spot, and a chat template that tells thinking apart."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = make_target(tmp_path_factory.mktemp("speaking") / "target")
    words = ["<unk>", "<user>", "<think>", "<reply>", "a", "the", "of", "and", "in"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.chat_template = "<user> {{ messages[0].content }} {% if enable_thinking %}<think>{% else %}<reply>{% endif %}"
    fast.save_pretrained(folder)
    return folder


def test_the_demo_prompts_go_through_the_targets_own_template(speaking_target, tmp_path):
    options = ["--target", speaking_target, "--layers", "0,2", "--max-new-tokens", 2, "--out", tmp_path / "cache"]
    assert extract([*map(str, options)]) == 0
    cache = load_cache(tmp_path / "cache")
    assert (cache.manifest["template"], cache.manifest["thinking"]) == ("chat", False)
    assert len(cache.prompts) == 16
    assert {prompt.data_set for prompt in cache.prompts} == {"arithmetic", "mathematics", "code", "conversation"}
    for prompt in cache.prompts:
        assert prompt.text.token_ids[0] == 1 and prompt.text.token_ids[prompt.text.prompt_length - 1] == 3


def test_thinking_and_raw_text_change_the_prompt_and_its_digest(speaking_target):
    chat = read_prompts(DEMO, speaking_target, None, thinking=False)
    thinking = read_prompts(DEMO, speaking_target, None, thinking=True)
    raw = read_prompts(DEMO, speaking_target, "raw", thinking=False)
    assert thinking.prompts[0].token_ids[-1] == 2
    assert raw.template == "raw" and raw.prompts[0].token_ids == chat.prompts[0].token_ids[1:-1]
    assert len({chat.digest, thinking.digest, raw.digest}) == 3


def test_a_stop_token_ends_a_text(bench, tmp_path):
    stopping = tmp_path / "target"
    shutil.copytree(bench.target, stopping)
    prompt = [1, 2, 3]
    text = load_target(bench.target).complete(12, prompt)
    (stopping / "generation_config.json").write_text(json.dumps({"eos_token_id": [text[3], 95]}))
    assert load_target(stopping).complete(12, prompt) == text[: text.index(text[3]) + 1]
