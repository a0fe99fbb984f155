"""Published timings of collectives as data: how far off the shipped constants are."""

from collections import defaultdict

import numpy as np
import pytest

from benchmarks.collectives import errors, read_timings
from planner.cost.comm import default_communication
from planner.units import MIB

TIMINGS = [timing for timing in read_timings() if timing.fabric == "clean"]


@pytest.fixture(scope="module")
def found():
    return errors(TIMINGS, default_communication())


def summary(found, timings):
    values = np.array([found[t.id] for t in timings])
    return np.median(np.abs(values)), np.exp(np.mean(np.log1p(values))) - 1


def test_large_messages_are_within_eight_percent(found):
    large = [t for t in TIMINGS if t.sample.buffer_bytes >= 16 * MIB]
    assert len(large) > 900
    median, bias = summary(found, large)
    assert median < 0.08
    assert abs(bias) < 0.03


def test_all_sizes_are_within_an_eighth(found):
    median, bias = summary(found, TIMINGS)
    assert median < 0.125
    assert abs(bias) < 0.03


def test_no_kind_on_no_tier_is_far_off(found):
    groups = defaultdict(list)
    for timing in TIMINGS:
        if timing.sample.buffer_bytes >= 16 * MIB:
            groups[timing.sample.kind, timing.tier].append(timing)
    for name, timings in groups.items():
        if len(timings) >= 10:
            median, bias = summary(found, timings)
            assert median < 0.2, name
            assert abs(bias) < 0.16, name


def test_every_row_names_its_source():
    assert all(timing.source for timing in read_timings())
