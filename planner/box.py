"""A box of equal devices, joined as their vendor joins them, with no network beside it."""

from planner.cluster import Cluster, Device, Tier
from planner.units import GB, MICROSECOND

# NCCL's own per-hop latencies, ring, Simple protocol (github NVIDIA/nccl@5067397c,
# src/graph/tuning.cc).
LINK_HOP_SECONDS = 3.4 * MICROSECOND
BUS_HOP_SECONDS = 5.7 * MICROSECOND


def one_box(device: Device, count: int, *, name: str) -> Cluster:
    """A cluster of one host.

    >>> from planner.catalogue import load_device
    >>> [tier.size for tier in one_box(load_device("a100-pcie"), 8, name="box").tiers]
    [2, 8]
    """
    return Cluster(
        name=name,
        device=device,
        tiers=box_tiers(device, count),
        devices_per_host=count,
        num_devices=count,
        source=device.source,
        notes="one box, no network",
    )


def box_tiers(device: Device, count: int) -> tuple[Tier, ...]:
    """The links inside one box: the vendor's own as far as they reach, then PCIe."""
    domain = min(device.link_domain or count, count)
    tiers = []
    # With an odd card left over, bridges join only some: count on the bus that all share.
    if device.link_bytes_per_second and count % domain == 0:
        tiers.append(
            Tier(
                name="link",
                size=domain,
                link=device.link,
                bytes_per_second=device.link_bytes_per_second,
                latency_seconds=LINK_HOP_SECONDS,
            )
        )
    if not tiers or domain < count:
        tiers.append(
            Tier(
                name="pcie",
                size=count,
                link="pcie",
                bytes_per_second=device.pcie_bytes_per_second or GB,  # a TPU shows no slot
                latency_seconds=BUS_HOP_SECONDS,
            )
        )
    return tuple(tiers)
