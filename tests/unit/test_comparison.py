"""Headlines, intervals and verdicts from result documents."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.actions import comparison
from orchestrator.actions.comparison import headline, interval, items, needed_items, paired, pick
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


def test_items_without_an_id_of_their_own_count_for_the_interval_and_are_not_paired() -> None:
    rows = [{"id": name, "value": value} for name, value in (("a", 1.0), ("b", 2.0), ("b", 4.0), (None, 5.0))]
    told: dict[str, Any] = {"score": {"mean": 3.0}, "rows": [*rows, {"value": 3.0}]}
    assert items(told, RULE) == {"a": 1.0} and comparison.unpaired(told, RULE) == 4
    found = headline(told, RULE)
    assert found is not None and (found.low, found.high) == interval([1.0, 2.0, 4.0, 5.0, 3.0])


def test_a_worse_set_is_found_worse_and_equal_ones_are_not_told_apart() -> None:
    generator = random.Random(1)
    base = {str(i): generator.gauss(4, 1) for i in range(40)}
    worse = {name: value - 0.3 + generator.gauss(0, 0.1) for name, value in base.items()}
    noise = {name: value + generator.gauss(0, 0.1) for name, value in base.items()}
    found = paired(worse, base, "higher")
    assert (found.verdict, found.items, found.needed_items) == ("worse", 40, None)
    assert found.estimate is not None and found.estimate.low is not None and found.estimate.high is not None
    assert found.estimate.low < found.estimate.value < found.estimate.high < 0
    assert paired(worse, base, "lower").verdict == "better"
    same = paired(noise, base, "higher")
    assert same.verdict == "no_difference" and (same.needed_items or 0) > 40


def test_the_items_that_would_settle_it_do_settle_it_four_times_out_of_five() -> None:
    generator = random.Random(7)
    pilot = [generator.gauss(0.05, 0.4) for _ in range(60)]
    wanted = needed_items(pilot)
    assert wanted is not None and wanted > 60
    mean, spread = sum(pilot) / 60, (sum((value - sum(pilot) / 60) ** 2 for value in pilot) / 59) ** 0.5
    shown = 0
    for _ in range(40):
        low, high = interval([generator.gauss(mean, spread) for _ in range(wanted)])
        shown += not low <= 0 <= high
    assert 24 <= shown <= 40


def test_no_spread_and_no_difference_need_no_more_items() -> None:
    assert needed_items([0.0, 0.0]) is None
    assert paired({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}, "higher").needed_items is None


def test_nothing_is_said_of_fewer_than_two_shared_items() -> None:
    found = paired({"a": 1.0, "b": 2.0}, {"a": 0.5, "c": 2.0}, "higher")
    assert found.verdict is None and found.items == 1
    assert found.estimate is not None and (found.estimate.value, found.estimate.low) == (0.5, None)
    assert paired({"a": 1.0}, {}, "higher").estimate is None


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30))
def test_an_interval_is_the_same_each_time_and_holds_the_mean(values: list[float]) -> None:
    low, high = interval(values)
    assert (low, high) == interval(values)
    slack = 1e-9
    assert low - slack <= sum(values) / len(values) <= high + slack


@given(st.recursive(st.none() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)), st.text())
def test_picking_never_fails(value: Any, path: str) -> None:
    pick(value, path)


def test_an_integer_past_the_range_of_floats_is_no_number() -> None:
    assert headline({"score": {"mean": 10**400}}, RULE) is None
    assert items({"rows": [{"id": "a", "value": -(10**400)}]}, RULE) == {}


def test_a_result_of_very_many_items_has_the_interval_of_its_resamples_in_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [float(index % 7) for index in range(20_000)]
    began = time.process_time()
    low, high = comparison.interval(values)
    assert time.process_time() - began < 2
    monkeypatch.setattr(comparison, "RESAMPLED", len(values))
    monkeypatch.setattr(comparison, "RESAMPLES", 400)
    assert comparison.interval(values) == pytest.approx((low, high), abs=0.01)


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_of_few_items_equal_ones_are_told_apart_no_more_often_than_of_many(count: int) -> None:
    generator = random.Random(count)
    missed = 0
    for _ in range(200):
        low, high = interval([generator.gauss(0.0, 1.0) for _ in range(count)])
        missed += not low <= 0 <= high
    assert missed / 200 < 0.1, "an interval of 95%"
