"""Closed forms: dimensions with pint, and totals counted message by message."""

import itertools

import numpy as np
import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.collectives import closed_forms as forms

UNITS = pint.UnitRegistry()
BYTES = 1e6 * UNITS.byte
RATE = 1e9 * UNITS.byte / UNITS.second


@pytest.mark.parametrize(
    "seconds",
    [
        forms.ring_wire_seconds(BYTES, ranks=4, passes=2, bytes_per_second=RATE),
        forms.tree_wire_seconds(BYTES, domains=4, bytes_per_second=RATE),
        forms.chain_wire_seconds(BYTES, members=4, bytes_per_second=RATE),
        forms.switch_wire_seconds(BYTES, members=4, bytes_per_second=RATE),
        forms.all_to_all_wire_seconds(BYTES, ranks=8, inside=4, domain_bytes_per_second=RATE),
        forms.pipelined_seconds(
            1 * UNITS.second,
            latency_seconds=1 * UNITS.second,
            fill_seconds=1 * UNITS.second,
            saturation_seconds=1 * UNITS.second,
        ),
    ],
)
def test_every_form_is_a_time(seconds):
    assert seconds.check("[time]")


def ring_messages(ranks: int, passes: int):
    """Each step every rank hands one block to the next: sender and block of every message."""
    for _, step in itertools.product(range(passes), range(ranks - 1)):
        yield from ((rank, (rank - step) % ranks) for rank in range(ranks))


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("passes", [1, 2])
def test_ring_bytes_are_those_of_its_messages(ranks, passes):
    blocks = [0] * ranks
    for sender, _ in ring_messages(ranks, passes):
        blocks[sender] += 1
    seconds = forms.ring_wire_seconds(1.0, ranks=ranks, passes=passes, bytes_per_second=1.0)
    assert blocks == pytest.approx([seconds * ranks] * ranks)


def binary_tree_edges(nodes: list[int]) -> list[tuple[int, int]]:
    """Child and parent of an in-order binary tree, the shape that NCCL builds."""
    if len(nodes) < 2:
        return []
    middle = len(nodes) // 2
    edges = []
    for half in (nodes[:middle], nodes[middle + 1 :]):
        if half:
            edges += [(half[len(half) // 2], nodes[middle]), *binary_tree_edges(half)]
    return edges


@pytest.mark.parametrize("domains", [2, 4, 8, 16, 32])
def test_tree_bytes_bound_those_of_the_busiest_domain(domains):
    # The second tree is the first one shifted by a node, so that leaves become inner nodes.
    sent = [0.0] * domains
    for shift in (0, 1):
        for child, parent in binary_tree_edges(list(range(domains))):
            sent[(child + shift) % domains] += 0.5  # half of the buffer goes up
            sent[(parent + shift) % domains] += 0.5  # and half comes down
    seconds = forms.tree_wire_seconds(1.0, domains=domains, bytes_per_second=1.0)
    assert np.mean(sent) <= seconds <= max(sent) + 1e-9


@given(st.integers(1, 6), st.integers(1, 8))
def test_all_to_all_bytes_are_those_that_leave_a_domain(domains, inside):
    ranks = domains * inside
    leaving = sum(
        1 / ranks
        for sender, receiver in itertools.product(range(inside), range(ranks))
        if receiver >= inside
    )
    seconds = forms.all_to_all_wire_seconds(
        1.0, ranks=ranks, inside=inside, domain_bytes_per_second=1.0
    )
    assert seconds == pytest.approx(leaving)


def test_pipeline_is_the_best_cut_into_chunks():
    wire, fill = 4.0, 0.25
    best = min(wire + fill + wire / k + k * fill for k in range(1, 100)) - fill
    # k chunks: k start-ups, and the last hop's chunk; the best k is sqrt(wire / fill) = 4.
    pipelined = forms.pipelined_seconds(wire, latency_seconds=0.0, fill_seconds=fill)
    assert best + fill == pytest.approx(pipelined + fill)


@given(
    st.floats(0, 10), st.floats(0, 10), st.floats(0, 1), st.floats(1e-6, 10), st.floats(0, 1e-3)
)
def test_pipelined_time_never_falls_with_the_wire(wire, more, fill, saturation, latency):
    def seconds(w):
        return forms.pipelined_seconds(
            w, latency_seconds=latency, fill_seconds=fill, saturation_seconds=saturation
        )

    assert seconds(wire) <= seconds(wire + more) + 1e-12
