"""The receipt's verdict over windows of samples; test_witness.py reaches each verdict for real."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.actions import receipt_files
from orchestrator.actions.training import window
from orchestrator.errors import ConfigError
from orchestrator.receipts import receipt
from orchestrator.windows import MOST_SAMPLES, is_sound, thinned


def sample(minute: int, pid: int | None = 7, state: str = "running", step: int = 0) -> dict[str, Any]:
    identity = {"incarnation": "b", "pid": pid, "start_ticks": 5} if pid else None
    at = f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z"
    return {"at": at, "pid": pid, "state": state, "started_at": "then", "identity": identity, "step": step}


CASES = {
    "same process throughout": ([(0, 7), (1, 7), (60, 7), (60, 7)], "undisturbed"),
    "died inside a window": ([(0, 7), (1, None), (60, None), (60, None)], "changed"),
    "replaced inside a window": ([(0, 7), (1, 8)], "changed"),
    "gone within a minute after a window": ([(0, 7), (1, 7), (2, None), (2, None)], "changed"),
    "gone an hour after a window": ([(0, 7), (1, 7), (61, None), (61, None)], "ended"),
    "restarted an hour after a window": ([(0, 7), (1, 7), (61, 8), (61, 8)], "ended"),
    "never seen": ([(0, None), (1, None)], "not_observed"),
}


@pytest.mark.parametrize("name", CASES)
def test_verdicts(name: str) -> None:
    moments, verdict = CASES[name]
    samples = [sample(minute, pid, "running" if pid else "absent") for minute, pid in moments]
    windows = [window("ship", "box", a, b) for a, b in zip(samples[::2], samples[1::2], strict=True)]
    assert receipt(windows).verdict == verdict


def test_a_training_stopped_inside_a_window_is_changed_and_said() -> None:
    found = receipt([window("ship", "box", sample(0), sample(1, state="stopped"))])
    assert found.verdict == "changed"
    assert "went from running to stopped" in found.reasons[0]


def test_a_box_that_could_not_be_looked_at_afterwards_is_called_neither_undisturbed_nor_changed() -> None:
    assert receipt([window("ship", "box", sample(0), None)]).verdict == "not_observed"


def test_an_undisturbed_training_names_its_steps() -> None:
    found = receipt([window("ship", "box", sample(0, step=100), sample(1, step=140))])
    assert "step 100 to 140" in found.reasons[0]


@pytest.mark.parametrize("state", ["hidden", "ambiguous", None])
@pytest.mark.parametrize("at", [1, 2])
def test_a_look_that_could_not_see_the_process_accuses_nobody(state: str | None, at: int) -> None:
    """The box was unreachable, /proc hid the process, or a second one matched: nobody knows whether it ended."""
    samples = [sample(minute) for minute in range(4)]
    samples[at] = sample(at, None, state=state)  # type: ignore[arg-type]
    windows = [window("ship", "box", *samples[:2]), window("collect", "box", *samples[2:])]
    assert receipt(windows).verdict == "not_observed"


@pytest.mark.parametrize("then", [None, 8])
@pytest.mark.parametrize("at", [1, 2])
def test_a_rule_that_was_edited_meanwhile_accuses_nobody(then: int | None, at: int) -> None:
    samples: list[dict[str, Any]] = [{**sample(minute), "rule": {"match": "train.py"}} for minute in range(4)]
    for late in range(at, 4):
        state = "running" if then else "absent"
        samples[late] = {**sample(late, then, state), "rule": {"match": "other.py"}, "ending": {"how": "finished"}}
    found = receipt([window("ship", "box", *samples[:2]), window("collect", "box", *samples[2:])])
    assert found.verdict == "not_observed"
    assert "was match: train.py, and is now match: other.py" in found.reasons[0]


def test_a_rule_that_was_edited_and_names_the_same_process_changes_nothing() -> None:
    rules = [{"match": "train.py"}, {"match": "train.py"}, {"pid": 7}, {"pid": 7}]
    looks = [{**sample(minute), "rule": rule} for minute, rule in enumerate(rules)]
    windows = [window("ship", "box", *looks[:2]), window("collect", "box", *looks[2:])]
    assert receipt(windows).verdict == "undisturbed"
    looks[0]["ranks"], looks[3]["ranks"] = [7, 8], [7]
    assert receipt([window("evaluate", "box", looks[0], looks[3])]).verdict == "undisturbed", (
        "ranks are the rule's, too"
    )
    looks[0]["rule"] = looks[3]["rule"]
    assert receipt([window("evaluate", "box", looks[0], looks[3])]).verdict == "changed"


def test_a_box_that_can_not_be_reached_at_the_end_is_not_observed() -> None:
    found = receipt([window("ship", "box", sample(0), sample(1)), window("collect", "box", None, None)])
    assert found.verdict == "not_observed"


@pytest.mark.parametrize(("minute", "verdict"), [(2, "changed"), (70, "ended")])
def test_a_zombie_between_two_windows_has_ended(minute: int, verdict: str) -> None:
    """Nobody waited for it, as happens in containers: its number and start are still there, but it trains no more."""
    dead = sample(minute, state="zombie")
    found = receipt([window("ship", "box", sample(0), sample(1)), window("collect", "box", dead, dead)])
    assert found.verdict == verdict


# -- samples as they are taken now: with the time since the boot, the log's age and how training ended ---------------


def now(seconds: float, pid: int | None = 7, *, wall: float | None = None, **more: Any) -> dict[str, Any]:
    """A sample so many seconds after the first; `wall`: what the box's clock shows, where it was set."""
    shown = int(wall if wall is not None else seconds) + 10 * 3600
    at = f"2026-01-01T{shown // 3600:02}:{shown // 60 % 60:02}:{shown % 60:02}Z"
    found = {
        "at": at,
        "monotonic": 5000 + seconds,
        "incarnation": "b/1/1",
        "up_s": 4000 + seconds,
        "state": "running" if pid else "absent",
        "identity": {"incarnation": "b/1/1", "pid": pid, "start_ticks": 5} if pid else None,
        "pid": pid,
        "started_at": "then",
        "lived_s": 1000 + seconds if pid else None,
        "step": int(seconds),
        "interval_s": 2.0,
        "reason": "" if pid else "process 7 ended",
    }
    return {**found, **more}


def between(*later: dict[str, Any]) -> Any:
    """The receipt of a shipment, and of a look at its end."""
    return receipt([window("ship", "box", now(0), now(10)), window("collect", "box", later[0], later[-1])])


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_was_set_turns_no_ended_into_changed(hours: int) -> None:
    """Set back, the wall clock makes an hour look like nothing; set forward, it makes the log look old."""
    wall = 3600 + hours * 3600
    gone = now(3600, None, wall=wall, age_s=max(0.0, wall - 10.0))
    assert between(gone).verdict == "ended"
    assert between(now(30, None, wall=30 + hours * 3600)).verdict == "changed", "and no changed into ended"


def test_clocks_of_two_machines_are_never_compared() -> None:
    """Two training hosts: each is judged by its own; the worst counts, and each one's reasons are kept."""
    windows = [
        window("command", "one", now(0), now(10)),
        window("command", "two", now(90_000), now(90_010, None, ending={"how": "killed", "why": "signal 9"})),
        window("aftermath", "one", now(11), now(70)),
    ]
    found = receipt(windows)
    assert found.verdict == "changed"
    assert [(row["host"], row["verdict"]) for row in found.hosts] == [("one", "undisturbed"), ("two", "changed")]
    assert found.reasons[0].startswith("two: while the command ran: process 7 is absent: it was killed (signal 9)")


def test_a_log_tells_whether_training_died_within_the_minute_that_nobody_watched() -> None:
    """It was gone an hour later: its log says until when it lived, if the clock can be believed."""
    assert between(now(3600, None, age_s=3570.0)).verdict == "changed"
    assert "its log ends 20 s after orch did `ship`" in between(now(3600, None, age_s=3570.0)).reasons[0]
    lived = between(now(3600, None, age_s=600.0))
    assert lived.verdict == "ended" and "its log still moved" in lived.reasons[0]
    assert "can't be told" in between(now(3600, None)).reasons[0]


def test_what_took_its_place_bounds_when_it_ended() -> None:
    soon = between(now(3600, 8, lived_s=3560.0))
    assert soon.verdict == "changed" and "was replaced within 30 s" in soon.reasons[0]
    late = between(now(3600, 8, lived_s=60.0))
    assert late.verdict == "ended" and "was started again (process 7, now 8)" in late.reasons[0]


def test_a_reboot_is_dated_by_how_long_the_box_is_up() -> None:
    other = {"incarnation": "c/1/1", "monotonic": 20.0}
    soon = between(now(3600, None, **other, up_s=3560.0))
    assert soon.verdict == "changed"
    late = between(now(3600, None, **other, up_s=20.0))
    assert late.verdict == "ended" and "restart of the host or container" in late.reasons[0]
    unknown = between(now(3600, None, wall=-3600, **other, up_s=20.0))
    assert unknown.verdict == "ended" and "its clock was set" in unknown.reasons[0]


@pytest.mark.parametrize("at", [12, 3600])
def test_training_that_is_known_to_have_finished_has_ended_whenever_that_was(at: int) -> None:
    done = {"how": "finished", "why": "exit code 0"}
    assert between(now(at, None, ending=done)).verdict == "ended"
    assert receipt([window("ship", "box", now(0), now(10, None, ending=done))]).verdict == "ended"


def test_training_that_stops_stepping_in_a_window_is_changed() -> None:
    found = receipt([window("ship", "box", now(0, stalled=False), now(100, step=0, stalled=True, age_s=90.0))])
    assert found.verdict == "changed" and "no step for 90 s" in found.reasons[0]
    stalled_before = receipt([window("ship", "box", now(0, stalled=True), now(100, stalled=True, age_s=900.0))])
    assert stalled_before.verdict == "undisturbed"


def paced(seconds: float, *rates: float) -> dict[str, Any]:
    """A sample whose log told these rates last."""
    first = int(seconds) - len(rates) + 1
    return now(seconds, paces=[[first + place, rate] for place, rate in enumerate(rates)], rate_unit="tok/s")


@pytest.mark.parametrize(
    ("usual", "during", "verdict"),
    [
        ([100.0] * 10, [95.0] * 5, "undisturbed"),
        ([100.0] * 10, [80.0] * 5, "changed"),
        ([100.0, 60.0] * 5, [70.0] * 5, "undisturbed"),
        ([100.0] * 10, [130.0] * 5, "undisturbed"),
        ([100.0] * 10, [5.0] + [99.0] * 4, "undisturbed"),
        ([100.0] * 3, [10.0] * 5, "undisturbed"),
    ],
    ids=["a little slower", "a fifth slower", "noisy by itself", "faster", "one slow line, a save", "too few to know"],
)
def test_a_rate_is_held_against_its_own_earlier_variation(
    usual: list[float], during: list[float], verdict: str
) -> None:
    assert receipt([window("ship", "box", paced(100, *usual), paced(130, *during))]).verdict == verdict


def waiting(seconds: float, ran: float, waited: float) -> dict[str, Any]:
    return now(seconds, run_ns=int(ran * 1e9), run_queue_wait_ns=int(waited * 1e9))


@pytest.mark.parametrize(
    ("ran", "waited", "verdict"),
    [(9.0, 0.2, "undisturbed"), (5.0, 5.0, "changed"), (0.05, 0.04, "undisturbed"), (600.0, 3.0, "undisturbed")],
    ids=["hardly", "half the time", "it hardly wants to run", "64 threads"],
)
def test_waiting_for_a_core_is_held_against_what_is_usual(ran: float, waited: float, verdict: str) -> None:
    found = receipt([window("ship", "box", waiting(0, 900, 9), waiting(10, 900 + ran, 9 + waited))])
    assert found.verdict == verdict


def test_a_box_that_was_always_busy_accuses_nobody() -> None:
    found = receipt([window("ship", "box", waiting(0, 500, 500), waiting(10, 505, 506))])
    assert found.verdict == "undisturbed"


def test_the_limits_say_who_watched_when_and_how_closely() -> None:
    found = receipt(
        [
            window("ship", "box", now(0, hidden=["io"]), now(40), [now(12), now(25)]),
            window("collect", "box", now(7240), now(7241)),
        ]
    )
    assert "nobody watched from 2026-01-01T10:00:40Z to 2026-01-01T12:00:40Z (2 h 00 min)" in found.limits
    assert "what came and went between two samples, up to 15 s apart, is not seen" in found.limits
    assert "the box hides: io" in found.limits


def test_days_of_samples_are_thinned_and_what_they_tell_stays() -> None:
    samples = [now(10 * place, state="stopped" if place == 1001 else "running") for place in range(3000)]
    kept = thinned(samples)
    assert len(kept) <= MOST_SAMPLES + 2
    assert [sample["state"] for sample in kept].count("stopped") == 1


def test_a_receipt_of_an_earlier_version_is_read() -> None:
    """Its windows had no gaps, no numbers, and samples without the time since the boot."""
    old = {"doing": "ship", "host": "box", "from": "x", "to": "y", "samples": []}
    found = receipt([{**old, "before": sample(0), "after": sample(1)}])
    assert found.verdict == "undisturbed"


@pytest.mark.parametrize(
    "damage",
    [
        {"before": "x"},
        {"samples": None},
        {"host": 7},
        {"after": {"monotonic": "soon"}},
        {"after": {"gpus": [1]}},
        {"after": {"paces": [[1]]}},
        {"before": {"identity": "me"}},
    ],
)
def test_a_damaged_window_is_told_from_a_sound_one(damage: dict[str, Any]) -> None:
    good = window("ship", "box", now(0), now(10), [now(5)])
    assert is_sound(good) and is_sound(window("collect", "box", None, None))
    assert not is_sound({**good, **damage}) and not is_sound([]) and not is_sound({})


def test_a_training_that_was_slowed_and_later_ended_by_itself_is_changed() -> None:
    slow = window("ship", "box", waiting(0, 900, 9), waiting(10, 905, 14))
    gone = now(7200, None)
    found = receipt([slow, window("collect", "box", gone, gone)])
    assert found.verdict == "changed"
    assert "of the time for a core" in found.reasons[0] and "training ended by itself" in found.reasons[1]


def test_a_rank_that_is_gone_while_its_leader_lives_is_changed() -> None:
    found = receipt([window("ship", "box", now(0, ranks=[7, 8, 9]), now(10, ranks=[7, 9]))])
    assert found.verdict == "changed" and "of its ranks, process 8 is gone" in found.reasons[0]


def test_a_kernel_that_killed_for_memory_meanwhile_is_a_hint() -> None:
    found = receipt([window("ship", "box", now(0, oom_kills=3), now(10, None, oom_kills=5))])
    assert "killed 2 for want of memory meanwhile" in found.reasons[0]


def test_a_training_without_a_new_step_is_not_said_to_have_stepped() -> None:
    found = receipt([window("ship", "box", now(0, step=5), now(1, step=5))])
    assert found.verdict == "undisturbed" and "still at step 5" in found.reasons[0]


@pytest.mark.parametrize(
    "damage",
    [
        {"verdict": "\x1b[31m"},
        {"reasons": [5]},
        {"limits": 7},
        {"windows": [1]},
        {"windows": [{"doing": 5, "before": "x"}]},
        {"hosts": [{"host": "box"}]},
    ],
)
def test_a_damaged_receipt_costs_itself_only(tmp_path: Path, damage: dict[str, Any]) -> None:
    kept = [
        receipt_files.keep_guarded(tmp_path, receipt([window("command", "box", sample(0), sample(1))]), "r", "true", 0)
        for _ in range(2)
    ]
    damaged = kept[1][1]
    damaged.write_text(json.dumps({**json.loads(damaged.read_text()), **damage}))
    assert receipt_files.find(tmp_path, "latest")["id"] == kept[0][0]
    with pytest.raises(ConfigError, match="no receipt"):
        receipt_files.find(tmp_path, kept[1][0])
