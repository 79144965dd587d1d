"""hosts.yaml: what is right becomes nouns, what is wrong is told with file, line and path."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import find_inventory, load_inventory
from orchestrator.errors import ConfigError
from orchestrator.model import Inventory, Limits, ProcessRule

REPOSITORY = Path(__file__).parents[2]
GOOD = """\
hosts:
  ct200: {roles: [train]}
  ct129: {ssh: root@10.1.230.172, roles: [eval], limits: {threads: 16, memory: 120GiB}}
runs:
  dflash:
    host: ct200
    checkpoints: /workspace/checkpoints
"""


def inventory(folder: Path, text: str | bytes) -> Inventory:
    path = folder / "hosts.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_inventory(path)


def refusal(folder: Path, text: str | bytes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of the message, as seen by a user who stands in the folder."""
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError) as caught:
        inventory(folder, text)
    assert caught.value.code == 2
    return caught.value.message.split("\n")


def test_the_example_describes_the_real_case():
    loaded = load_inventory(REPOSITORY / "hosts.yaml")
    run = loaded.runs["dflash"]
    assert loaded.hosts["ct200"].ssh == "ct200"
    assert loaded.hosts["ct129"].limits == Limits(threads=16, memory=120 * 2**30)
    assert (run.hosts, run.checkpoints, run.eval_host) == (("ct200",), "/workspace/checkpoints", "ct129")
    assert run.process == ProcessRule(match="train_dflash_pipeline.py")
    assert run.gpus == {"target": (0, 1, 2, 3, 4), "drafter": (5, 6, 7)}


def test_a_host_may_allow_more_than_one_evaluation_at_once(tmp_path):
    text = "hosts: {a: {roles: eval, limits: {evaluations: 2}}, b: {roles: eval}}\n"
    loaded = inventory(tmp_path, text)
    assert (loaded.hosts["a"].limits.evaluations, loaded.hosts["b"].limits.evaluations) == (2, None)


def test_a_run_needs_only_host_and_checkpoints(tmp_path):
    run = inventory(tmp_path, GOOD).runs["dflash"]
    assert (run.process, run.log, run.job, run.eval_host, dict(run.gpus)) == (None, None, None, None, {})


def test_a_run_on_several_hosts_keeps_their_order(tmp_path):
    text = "hosts: {b: {roles: train}, a: {roles: train}}\nruns: {r: {host: [b, a], checkpoints: /c}}\n"
    assert inventory(tmp_path, text).runs["r"].hosts == ("b", "a")


def test_timeouts_are_durations(tmp_path):
    timeouts = inventory(
        tmp_path, GOOD + "timeouts: {heartbeat: 100ms, dead: 1s, agent_dead: 2s, poll: 0.5}\n"
    ).timeouts
    assert (timeouts.heartbeat, timeouts.dead, timeouts.agent_dead, timeouts.poll) == (0.1, 1.0, 2.0, 0.5)
    assert timeouts.connect == 10.0


def test_this_machine_as_a_host_has_its_root_beside_the_inventory(tmp_path):
    host = inventory(tmp_path, "hosts: {here: {roles: [train, eval], transport: local, root: box}}\n").hosts["here"]
    assert host.root == tmp_path / "box"
    assert host.roles == {"train", "eval"}


def test_words_that_yaml_1_1_would_bend_stay_as_written(tmp_path):
    text = """\
hosts:
  no: {roles: train, python: on}
  "0": {roles: eval, workdir: 2024-01-02}
runs:
  1:30: {host: no, checkpoints: 0o17, gpus: {off: 0-4, y: 5, n: [6, 8-9], "~": 12-14}}
""".replace("1:30:", "'1_30':").replace('"~"', "null")
    loaded = inventory(tmp_path, text)
    assert list(loaded.hosts) == ["no", "0"]
    assert (loaded.hosts["no"].python, loaded.hosts["0"].workdir) == ("on", "2024-01-02")
    run = loaded.runs["1_30"]
    assert run.checkpoints == "0o17"
    assert run.gpus == {"off": (0, 1, 2, 3, 4), "y": (5,), "n": (6, 8, 9), "null": (12, 13, 14)}


@pytest.mark.parametrize(
    ("written", "indices"),
    [("0-4", (0, 1, 2, 3, 4)), ("5,7", (5, 7)), ("[0, 2-3]", (0, 2, 3)), ("3", (3,)), ("12-31", tuple(range(12, 32)))],
)
def test_gpu_ranges(tmp_path, written, indices):
    assert inventory(tmp_path, GOOD + f"    gpus: {{g: '{written}'}}\n".replace("'[", "[").replace("]'", "]")).runs[
        "dflash"
    ].gpus == {"g": indices}


def test_anchors_and_merge_keys_work_and_x_keys_are_left_alone(tmp_path):
    text = """\
x-common: &common {roles: [eval], python: /venv/bin/python}
hosts:
  a: *common
  b: {<<: *common, python: /other/python}
  c: {<<: [{workdir: /first}, {workdir: /second, roles: [train]}]}
"""
    hosts = inventory(tmp_path, text).hosts
    assert (hosts["a"].python, hosts["b"].python) == ("/venv/bin/python", "/other/python")
    assert hosts["b"].roles == {"eval"}
    assert (hosts["c"].workdir, hosts["c"].roles) == ("/first", {"train"})


RUN = GOOD.rstrip("\n").removesuffix("    checkpoints: /workspace/checkpoints")
WRONG = {
    "a misspelt key": (
        RUN + "    chekpoints: /c\n",
        ["hosts.yaml:7: runs.dflash.chekpoints: unknown key; did you mean 'checkpoints'?"],
    ),
    "an unknown key": (
        "hosts: {a: {roles: train, colour: red}}\n",
        [
            "hosts.yaml:1: hosts.a.colour: unknown key; known: ssh, roles, transport, python, workdir, root, limits,"
            " one_use_keys, keep_free, keep_staged",
        ],
    ),
    "a missing key": (
        RUN,
        ["hosts.yaml:6: runs.dflash.checkpoints: missing: The folder on the first host that receives the checkpoints."],
    ),
    "two hosts of one name": (
        "hosts:\n  a: {roles: train}\n  b: {roles: eval}\n  a: {roles: eval}\n",
        ["hosts.yaml:4: hosts.a: given twice, first in line 2"],
    ),
    "two runs of one name": (
        GOOD + "  dflash: {host: ct200, checkpoints: /other}\n",
        ["hosts.yaml:8: runs.dflash: given twice, first in line 5"],
    ),
    "a doubled key": (GOOD + "    host: ct129\n", ["hosts.yaml:8: runs.dflash.host: given twice, first in line 6"]),
    "a run on a host that is not there": (
        GOOD.replace("host: ct200", "host: ct20"),
        ["hosts.yaml:6: runs.dflash.host: no host 'ct20' under hosts; did you mean 'ct200'?"],
    ),
    "a run on a host that doesn't train": (
        GOOD.replace("host: ct200", "host: ct129"),
        ["hosts.yaml:6: runs.dflash.host: host 'ct129' doesn't have the role train"],
    ),
    "a host given twice to a run": (
        GOOD.replace("host: ct200", "host: [ct200, ct200]"),
        ["hosts.yaml:6: runs.dflash.host: expected each host once"],
    ),
    "an eval_host that doesn't evaluate": (
        GOOD + "    eval_host: ct200\n",
        ["hosts.yaml:8: runs.dflash.eval_host: host 'ct200' doesn't have the role eval"],
    ),
    "an eval_host that is not there": (
        GOOD + "    eval_host: elsewhere\n",
        ["hosts.yaml:8: runs.dflash.eval_host: no host 'elsewhere' under hosts; known: ct200, ct129"],
    ),
    "a host without role": (
        "hosts: {a: {python: python3}}\n",
        [
            "hosts.yaml:1: hosts.a.roles: missing: What orch does there: train (look, never write) or eval "
            "(run evaluations); or both."
        ],
    ),
    "a role that there isn't": (
        "hosts: {a: {roles: [train, evil]}}\n",
        ["hosts.yaml:1: hosts.a.roles[1]: expected train or eval, found 'evil'"],
    ),
    "a transport that there isn't": (
        "hosts: {a: {roles: train, transport: telnet}}\n",
        ["hosts.yaml:1: hosts.a.transport: expected auto, fabric, openssh or local, found 'telnet'"],
    ),
    "an option as target": (
        "hosts: {a: {roles: train, ssh: -oProxyCommand=evil}}\n",
        ["hosts.yaml:1: hosts.a.ssh: expected an ssh target that doesn't begin with '-', found '-oProxyCommand=evil'"],
    ),
    "an option behind a user": (
        "hosts: {a: {roles: train, ssh: root@-oProxyCommand=evil}}\n",
        [
            "hosts.yaml:1: hosts.a.ssh: expected an ssh target that doesn't begin with '-', "
            "found 'root@-oProxyCommand=evil'"
        ],
    ),
    "a target with a space": (
        "hosts: {a: {roles: train, ssh: a b}}\n",
        ["hosts.yaml:1: hosts.a.ssh: expected an ssh target without spaces and control characters, found 'a b'"],
    ),
    "a target with control characters": (
        'hosts: {a: {roles: train, ssh: "a\\e[31m\\u202e"}}\n',
        [
            "hosts.yaml:1: hosts.a.ssh: expected an ssh target without spaces and control characters, "
            "found 'a\\x1b[31m\\u202e'"
        ],
    ),
    "a target with a shell's characters": (
        "hosts: {a: {roles: train, ssh: a$(id)}}\n",
        ["hosts.yaml:1: hosts.a.ssh: expected an ssh target like ct200 or root@10.1.2.6, found 'a$(id)'"],
    ),
    "a host's name that is an option": (
        "hosts: {-oX: {roles: train}}\n",
        [
            "hosts.yaml:1: hosts.-oX: expected a name of letters, digits, '.', '_' and '-', at most 64, found '-oX'",
        ],
    ),
    "root without local": (
        "hosts: {a: {roles: train, root: /x}}\n",
        ["hosts.yaml:1: hosts.a.root: has a meaning only with transport: local"],
    ),
    "ssh with local": (
        "hosts: {a: {roles: train, transport: local, ssh: b}}\n",
        ["hosts.yaml:1: hosts.a.ssh: has no meaning with transport: local"],
    ),
    "a workdir that is the home": (
        "hosts: {a: {roles: train, workdir: ~}}\n",
        ["hosts.yaml:1: hosts.a.workdir: expected a folder of its own, such as /root/eval or ~/orch, found '~'"],
    ),
    "an ambiguous size": (
        "hosts: {a: {roles: eval, limits: {memory: 60G}}}\n",
        ["hosts.yaml:1: hosts.a.limits.memory: expected a size like 60GiB, 512MiB or a number of bytes, found '60G'"],
    ),
    "an octal number": (
        "hosts: {a: {roles: eval, limits: {threads: 010}}}\n",
        ["hosts.yaml:1: hosts.a.limits.threads: expected a whole number, found '010'"],
    ),
    "a clock-like duration": (
        GOOD + "timeouts: {connect: 1:30}\n",
        ["hosts.yaml:8: timeouts.connect: expected a duration like 6h, 90s or 1h30m, found '1:30'"],
    ),
    "a connection that dies before its heart beats": (
        GOOD + "timeouts:\n  heartbeat: 30s\n  agent_dead: 60s\n",
        ["hosts.yaml:9: timeouts.dead: expected more than the heartbeat (30 s)"],
    ),
    "two ways to recognise a process": (
        GOOD + "    process: {match: x, pid: 1}\n",
        ["hosts.yaml:8: runs.dflash.process: expected exactly one of match, pid and pidfile, found match and pid"],
    ),
    "no way to recognise a process": (
        GOOD + "    process: {}\n",
        ["hosts.yaml:8: runs.dflash.process: expected exactly one of match, pid and pidfile, found none"],
    ),
    "a GPU in two roles": (
        GOOD + "    gpus:\n      target: 0-4\n      drafter: 4-7\n",
        ["hosts.yaml:10: runs.dflash.gpus.drafter: GPU 4 is given twice, first to target"],
    ),
    "GPU numbers that fall": (
        GOOD + "    gpus: {target: 4-0}\n",
        ["hosts.yaml:8: runs.dflash.gpus.target: expected GPU numbers that rise, like 0-4, found '4-0'"],
    ),
    "a layout without step": (
        GOOD + '    layout: "{epoch}/x.pt"\n',
        [
            "hosts.yaml:8: runs.dflash.layout: expected the name of a layout, or a pattern like "
            "step_{step}/checkpoint.pt, found '{epoch}/x.pt'"
        ],
    ),
    "a progress pattern without step": (
        GOOD + "    progress: 'loss (?P<loss>.*)'\n",
        [
            "hosts.yaml:8: runs.dflash.progress: expected a regular expression with named groups step and maybe "
            "epoch, loss, rate, unit, found 'loss (?P<loss>.*)'"
        ],
    ),
    "a progress pattern that repeats too often": (
        GOOD + "    progress: '(?P<step>x{99999999999})'\n",
        [
            "hosts.yaml:8: runs.dflash.progress: expected a regular expression (the repetition number is too large), "
            "found '(?P<step>x{99999999999})'"
        ],
    ),
    "a progress pattern that isn't one": (
        GOOD + "    progress: 'step ('\n",
        [
            "hosts.yaml:8: runs.dflash.progress: expected a regular expression (missing ), unterminated subpattern "
            "at position 5), found 'step ('"
        ],
    ),
    "a key without value": (
        GOOD + "    log:\n",
        ["hosts.yaml:8: runs.dflash.log: expected a path, found no value; leave the key out instead"],
    ),
    "a list for a word": (
        GOOD + "    log: [a, b]\n",
        ["hosts.yaml:8: runs.dflash.log: expected a path, found a list"],
    ),
    "a word for a mapping": (
        "hosts: ct200\n",
        ["hosts.yaml:1: hosts: expected a mapping of host names, found 'ct200'"],
    ),
    "no hosts": ("hosts: {}\n", ["hosts.yaml:1: hosts: expected at least one host, found none"]),
    "a list as file": ("- a\n", ["hosts.yaml:1: expected a mapping with the keys hosts and runs, found a list"]),
    "an empty file": ("", ["hosts.yaml: the file is empty"]),
    "a file of comments": ("# nothing yet\n", ["hosts.yaml: the file is empty"]),
    "a tab": (
        "hosts:\n\ta: {roles: train}\n",
        ["hosts.yaml:2: not YAML: a tab: YAML indents with spaces alone"],
    ),
    "bytes that are not UTF-8": (b"hosts:\n  a: {roles: train} # \xe9\n", ["hosts.yaml:2: not UTF-8: byte 0xe9"]),
    "a control character": (
        b"hosts:\n  a: {roles: tr\x1bain}\n",
        ["hosts.yaml:2: not YAML: a control character that YAML forbids"],
    ),
    "two documents": (
        GOOD + "---\nhosts: {}\n",
        ["hosts.yaml:8: not YAML: expected a single document in the stream but found another document"],
    ),
    "a tag that makes objects": (
        "hosts: {a: {roles: !!python/name:os.system train}}\n",
        ["hosts.yaml:1: hosts.a.roles: the YAML tag 'tag:yaml.org,2002:python/name:os.system' has no meaning here"],
    ),
    "a key that is a list": (
        "hosts: {[a]: {roles: train}}\n",
        ["hosts.yaml:1: hosts: expected a name as key, found a list or mapping"],
    ),
    "a file too large": (b"#" * 1_000_001, ["hosts.yaml: larger than 1000000 bytes: not a file of settings"]),
    "an alias bomb": (
        "x-a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"x-{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True))
        + "hosts: {a: {roles: *h}}\n",
        [
            "hosts.yaml:1: the file unfolds to more than 20000 values or 50 levels: aliases that multiply or contain "
            "themselves"
        ],
    ),
    "a merge bomb": (
        "x-a: &a {k: 1}\n"
        + "".join(
            f"x-{b}: &{b} {{<<: [{','.join(['*' + a] * 9)}]}}\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
        )
        + "hosts: {<<: *h}\n",
        [
            "hosts.yaml:1: the file unfolds to more than 20000 values or 50 levels: aliases that multiply or contain "
            "themselves"
        ],
    ),
    "a mapping that contains itself": (
        "hosts: &a {<<: *a}\n",
        [
            "hosts.yaml:1: the file unfolds to more than 20000 values or 50 levels: aliases that multiply or contain "
            "themselves"
        ],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_inventory_is_refused_with_line_and_path(tmp_path, monkeypatch, case):
    text, expected = WRONG[case]
    assert refusal(tmp_path, text, monkeypatch) == expected


def test_an_unclosed_bracket_is_told_with_its_line(tmp_path, monkeypatch):
    (message,) = refusal(tmp_path, "hosts: {a: {roles: train}\n", monkeypatch)
    assert message.startswith("hosts.yaml:2: not YAML: while parsing a flow mapping")


def test_nesting_without_end_is_refused_quickly(tmp_path, monkeypatch):
    assert "nesting" in refusal(tmp_path, "[" * 500_000, monkeypatch)[0]


def test_all_problems_are_told_at_once_in_the_order_of_the_file(tmp_path, monkeypatch):
    hosts = "hosts:\n  a: {roles: evil}\n  b: {colour: red, roles: train}\n"
    text = hosts + "runs:\n  r: {host: c, log: [], checkpoints: /c}\n"
    assert [line.split(": ")[:2] for line in refusal(tmp_path, text, monkeypatch)] == [
        ["hosts.yaml:2", "hosts.a.roles"],
        ["hosts.yaml:3", "hosts.b.colour"],
        ["hosts.yaml:5", "runs.r.log"],
        ["hosts.yaml:5", "runs.r.host"],
    ]


def test_past_ten_problems_the_rest_are_counted(tmp_path, monkeypatch):
    found = refusal(tmp_path, "hosts:\n" + "".join(f"  h{i}: {{roles: no}}\n" for i in range(14)), monkeypatch)
    assert len(found) == 11
    assert found[-1] == "hosts.yaml: and 4 more"


def test_a_broken_host_is_not_also_reported_as_absent(tmp_path, monkeypatch):
    assert len(refusal(tmp_path, GOOD.replace("roles: [train]", "roles: [drive]"), monkeypatch)) == 1


def test_the_message_escapes_and_cuts_what_the_file_holds(tmp_path, monkeypatch):
    (message,) = refusal(tmp_path, 'hosts: {a: {roles: "\\e[2J' + "x" * 5000 + '"}}\n', monkeypatch)
    assert "\x1b" not in message
    assert len(message) < 200


def test_a_file_outside_the_current_folder_is_named_in_full(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ConfigError) as caught:
        inventory(tmp_path / "project", "")
    assert caught.value.message == f"{tmp_path}/project/hosts.yaml: the file is empty"


def test_an_unreadable_inventory_says_why(tmp_path):
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        load_inventory(tmp_path)


def test_the_flag_comes_before_the_variable_and_the_variable_before_the_folder(tmp_path):
    for name in ("flag", "variable", "project/deep/er"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("flag", "variable", "project"):
        (tmp_path / name / "hosts.yaml").write_text(GOOD)
    deep = tmp_path / "project/deep/er"
    variable = {"ORCH_INVENTORY": str(tmp_path / "variable/hosts.yaml")}
    assert find_inventory(tmp_path / "flag/hosts.yaml", variable, deep) == tmp_path / "flag/hosts.yaml"
    assert find_inventory(tmp_path / "flag", {}, deep) == tmp_path / "flag/hosts.yaml"
    assert find_inventory(Path("../../hosts.yaml"), {}, deep).samefile(tmp_path / "project/hosts.yaml")
    assert find_inventory(None, variable, deep) == tmp_path / "variable/hosts.yaml"
    assert find_inventory(None, {"ORCH_INVENTORY": ""}, deep) == tmp_path / "project/hosts.yaml"


def test_a_missing_inventory_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(ConfigError) as caught:
        find_inventory(None, {}, tmp_path)
    assert caught.value.message == f"no hosts.yaml in {tmp_path} or any folder above it"
    assert "--inventory FILE" in caught.value.hint
    with pytest.raises(ConfigError, match=f"--inventory: there is no file '{tmp_path}/none.yaml'"):
        find_inventory(Path("none.yaml"), {}, tmp_path)
    with pytest.raises(ConfigError, match="ORCH_INVENTORY: there is no file"):
        find_inventory(None, {"ORCH_INVENTORY": "none.yaml"}, tmp_path)
