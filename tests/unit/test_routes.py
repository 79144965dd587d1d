"""Which way a shipment goes, and that the plan says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.model import Host
from orchestrator.routes import Ways, choose, lanes

TRAIN = Host(name="train", ssh="train", roles=frozenset({"train"}))
EVAL = Host(name="eval", ssh="eval", roles=frozenset({"eval"}))
REACHED = {"address": "10.0.0.2", "port": 22, "rtt": 0.08, "from": "10.0.0.1"}
ALL = Ways(
    source=TRAIN,
    target=EVAL,
    from_source={"ssh": "/usr/bin/ssh", "memory_files": True, "places": [REACHED]},
    from_target={"connection": ["192.0.2.9", "50000", "10.0.0.2", "22"]},
    straight=True,
    openssh=True,
    trusted=True,
    tunnels=2,
)


def test_box_to_box_comes_first_and_nothing_passes_this_machine() -> None:
    choice, why_not = choose("auto", ALL, None)
    assert [route.kind for route in choice] == ["direct", "tunnel", "relay"] and why_not == ()
    assert choice[0].source == "10.0.0.1" and choice[0].lanes == 5
    assert "nothing passes this machine" in choice[0].why and "authorized_keys on eval" in choice[0].why
    assert choice[1].source == "192.0.2.9", "the tunnel's end is this machine"
    assert "normal priority" in choice[1].why and "normal priority" in choice[2].why


UNREACHED = {"address": "10.0.0.2", "port": 22, "error": "no answer within 4 s"}
NO_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"source": replace(TRAIN, one_use_keys=False)}, "one_use_keys is off for train"),
    ({"target": replace(EVAL, one_use_keys=False)}, "one_use_keys is off for eval"),
    ({"trusted": False}, "no plain host key of eval"),
    ({"from_source": {**ALL.from_source, "ssh": None}}, "no ssh on train"),
    ({"from_source": {**ALL.from_source, "memory_files": False}}, "no memory files"),
    ({"source": replace(TRAIN, transport="local")}, ""),
]


@pytest.mark.parametrize(("change", "why"), NO_KEYS)
def test_without_a_one_use_key_bytes_are_relayed_and_the_plan_says_why(change: dict[str, Any], why: str) -> None:
    choice, why_not = choose("auto", replace(ALL, **change), None)
    assert [route.kind for route in choice] == ["relay"] and len(why_not) == 2
    assert why in choice[0].why
    assert choose("direct", replace(ALL, **change), None)[0] == ()


def test_boxes_that_do_not_reach_each_other_use_a_tunnel_unless_a_jump_host_is_between() -> None:
    apart = replace(ALL, from_source={**ALL.from_source, "places": [UNREACHED]})
    choice, _ = choose("auto", apart, None)
    assert [route.kind for route in choice] == ["tunnel", "relay"]
    assert choice[0].why.startswith("train does not reach eval (10.0.0.2: no answer within 4 s)")
    choice, _ = choose("auto", replace(apart, straight=False), None)
    assert [route.kind for route in choice] == ["relay"] and "behind a jump host" in choice[0].why


@pytest.mark.parametrize(
    ("rtt", "rate", "count"),
    [
        (0.0003, None, 2),
        (0.016, None, 2),
        (0.08, None, 5),
        (0.3, None, 8),
        (0.08, 20_000_000, 1),
        (0.0003, 20_000_000, 1),
    ],
)
def test_connections_are_counted_by_what_one_carries_in_a_round_trip(rtt: float, rate: int | None, count: int) -> None:
    assert lanes(rtt, rate) == count
