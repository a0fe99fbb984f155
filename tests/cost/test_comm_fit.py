"""The fit finds constants that made the samples, and leaves alone what they cannot tell."""

from dataclasses import replace

import numpy as np
import pytest

from planner.catalogue import load_cluster
from planner.cluster import Cluster, Tier
from planner.cost.collectives.fit import CollectiveSample, fit_collectives, predicted_seconds
from planner.cost.comm import LinkConstants, default_communication

SHIPPED = default_communication()
SIZES = (2**12, 2**16, 2**20, 2**23)
MEASURED_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def two_cores() -> Cluster:
    """A laptop: four gloo ranks in one box, as ``local.py`` describes this machine."""
    device = load_cluster("laptop").device
    tier = Tier(
        name="host",
        size=4,
        link="gloo",
        bytes_per_second=1e9,
        latency_seconds=1e-4,
        switched=False,
    )
    return Cluster(name="two cores", device=device, tiers=(tier,))


def samples_of(constants, cluster, *, noise=0.0, kinds=MEASURED_KINDS):
    plain = [
        CollectiveSample(kind=kind, buffer_bytes=size, seconds=1.0, degree=degree)
        for kind in kinds
        for size in SIZES
        for degree in (2, 4)
        if kind != "send_recv" or degree == 2
    ]
    times = predicted_seconds(plain, cluster, constants)
    times = times * np.exp(noise * np.random.default_rng(0).standard_normal(len(times)))
    return [replace(s, seconds=float(t)) for s, t in zip(plain, times, strict=True)]


def other_machine():
    gloo = LinkConstants(
        rate_fraction=0.25, hop_factor=0.6, fill_factor=0.3, crowding_exponent=1.0
    )
    return replace(
        SHIPPED,
        links={**SHIPPED.links, "gloo": gloo},
        base_seconds={**SHIPPED.base_seconds, "ring": 8e-5, "tree": 8e-5, "all_to_all": 2e-4},
        kind_rate_fractions={"all_to_all": 0.5, "reduce_scatter": 0.7},
    )


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.05), (0.1, 0.15)])
def test_the_fit_predicts_a_machine_it_has_seen(noise, tolerance):
    cluster, truth = two_cores(), other_machine()
    fitted = fit_collectives(samples_of(truth, cluster, noise=noise), cluster)
    # Scored between the sizes that were shown.
    unseen = [
        CollectiveSample(kind=kind, buffer_bytes=2**18, seconds=1.0, degree=degree)
        for kind in MEASURED_KINDS[:4]
        for degree in (2, 4)
    ]
    predicted = predicted_seconds(unseen, cluster, fitted)
    true = predicted_seconds(unseen, cluster, truth)
    assert np.median(np.abs(predicted / true - 1)) < tolerance
    before = predicted_seconds(unseen, cluster, SHIPPED)
    assert np.median(np.abs(before / true - 1)) > 2 * tolerance


def test_links_without_samples_keep_their_constants():
    cluster = two_cores()
    fitted = fit_collectives(samples_of(other_machine(), cluster), cluster)
    for kind in ("nvlink", "infiniband", "pcie"):
        assert fitted.link(kind) == SHIPPED.link(kind)
    assert fitted.switch_rate_fraction == SHIPPED.switch_rate_fraction
    assert fitted.degradation_exponent == SHIPPED.degradation_exponent
    assert fitted.rows > 0


def test_a_few_samples_of_one_kind_move_only_that():
    cluster = two_cores()
    samples = samples_of(other_machine(), cluster, kinds=("all_reduce",))
    fitted = fit_collectives(samples, cluster)
    assert fitted.rate_fraction("all_to_all") == SHIPPED.rate_fraction("all_to_all")
    assert fitted.base("all_to_all") == SHIPPED.base("all_to_all")
    assert fitted.median_error < 0.05


def test_a_slow_network_between_nodes_is_found():
    cluster = load_cluster("a100-80g-8x200g")
    slow = replace(SHIPPED.link("infiniband"), rate_fraction=0.3, hop_factor=2.0)
    truth = replace(SHIPPED, links={**SHIPPED.links, "infiniband": slow})
    plain = [
        CollectiveSample(kind=kind, buffer_bytes=size, seconds=1.0, degree=degree)
        for kind in ("all_reduce", "all_gather")
        for size in (2**16, 2**22, 2**28)
        for degree in (8, 16, 32)
    ]
    times = predicted_seconds(plain, cluster, truth)
    samples = [replace(s, seconds=float(t)) for s, t in zip(plain, times, strict=True)]
    fitted = fit_collectives(samples, cluster)
    assert fitted.link("infiniband").rate_fraction == pytest.approx(0.3, rel=0.15)
    assert fitted.link("nvlink").rate_fraction == pytest.approx(
        SHIPPED.link("nvlink").rate_fraction, rel=0.1
    )


@pytest.mark.parametrize("change", [{"seconds": 0.0}, {"buffer_bytes": 0}, {"degree": 1}])
def test_impossible_samples_are_refused(change):
    cluster = two_cores()
    sample = replace(samples_of(SHIPPED, cluster)[0], **change)
    with pytest.raises(ValueError, match="positive bytes"):
        fit_collectives([sample], cluster)


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        fit_collectives([], two_cores())
