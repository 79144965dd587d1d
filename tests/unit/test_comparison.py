"""Headlines, intervals and verdicts from result documents."""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.actions.comparison import headline, interval, items, pick, verdict
from orchestrator.model import ResultRule

RULE = ResultRule(headline="score.mean", items="rows", item_id="id", item_value="value")


def document(*values: float) -> dict[str, Any]:
    rows = [{"id": index, "value": value} for index, value in enumerate(values)]
    return {"score": {"mean": sum(values) / len(values)}, "rows": rows}


def test_a_headline_has_its_interval_around_it() -> None:
    found = headline(document(1.0, 2.0, 3.0, 4.0), RULE)
    assert found is not None and found.low is not None and found.high is not None
    assert found.low < found.value == 2.5 < found.high


def test_without_items_there_is_no_interval() -> None:
    found = headline({"score": {"mean": 3}}, RULE)
    assert found is not None and (found.value, found.low, found.high) == (3.0, None, None)


def test_what_is_no_number_is_no_headline_and_no_item() -> None:
    for value in ("4", None, True, math.nan, math.inf, [1]):
        assert headline({"score": {"mean": value}}, RULE) is None
        assert items({"rows": [{"id": 1, "value": value}]}, RULE) == {}


def test_a_worse_set_is_found_worse_and_equal_ones_are_not_told_apart() -> None:
    generator = random.Random(1)
    base = {str(i): generator.gauss(4, 1) for i in range(40)}
    worse = {name: value - 0.3 + generator.gauss(0, 0.1) for name, value in base.items()}
    noise = {name: value + generator.gauss(0, 0.1) for name, value in base.items()}
    assert verdict(worse, base, "higher") == "worse"
    assert verdict(worse, base, "lower") == "better"
    assert verdict(noise, base, "higher") == "no_difference"


def test_nothing_is_said_of_fewer_than_two_shared_items() -> None:
    assert verdict({"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 2.0}, "higher") is None


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30))
def test_an_interval_is_the_same_each_time_and_holds_within_the_range(values: list[float]) -> None:
    low, high = interval(values)
    assert (low, high) == interval(values)
    slack = 1e-9
    assert min(values) - slack <= low <= high <= max(values) + slack


@given(st.recursive(st.none() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)), st.text())
def test_picking_never_fails(value: Any, path: str) -> None:
    pick(value, path)


def test_an_integer_past_the_range_of_floats_is_no_number() -> None:
    assert headline({"score": {"mean": 10**400}}, RULE) is None
    assert items({"rows": [{"id": "a", "value": -(10**400)}]}, RULE) == {}
