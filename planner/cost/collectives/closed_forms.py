"""Closed forms of single algorithms: ring, double tree, switch reduction, all-to-all.

Each takes plain numbers, arrays or pint quantities and broadcasts. None knows of a cluster:
``algorithms.py`` turns a ``Span`` into ranks, hops and rates, and picks the fastest legal one.
"""

import numpy as np


def pipelined_seconds(wire_seconds, *, latency_seconds, fill_seconds, saturation_seconds=np.inf):
    """Time of a message that is cut into the best number of chunks and pushed through a pipe.

    With ``k`` chunks the pipe needs ``fill`` once for its hops and a start-up per chunk; the
    best ``k`` balances both and leaves ``2 sqrt(fill * wire)``. Chunks cannot outgrow the
    library's buffers, so from some size on the fill stays what it is:

        t = latency + wire + 2 sqrt(fill * wire / (1 + wire / saturation))

    The rate climbs smoothly with size, as chunk and channel counts grow, and time never falls.

    Args:
        wire_seconds: Bytes over the slowest link by its sustained rate.
        latency_seconds: What an empty message costs.
        fill_seconds: Start-ups that lie in a row; 0 gives the plain alpha-beta line.
        saturation_seconds: Wire time from which on chunks are as large as they get.

    Reference: Sanders, Speck and Traff, "Two-tree algorithms for full bandwidth broadcast,
    reduction and scan", Parallel Computing 35(12), 2009, section 2 (optimal pipelining).

    >>> pipelined_seconds(9.0, latency_seconds=1.0, fill_seconds=1.0)
    16.0
    >>> pipelined_seconds(3.0, latency_seconds=1.0, fill_seconds=3.0, saturation_seconds=1.0)
    7.0
    """
    growing = wire_seconds / (1 + wire_seconds / saturation_seconds)
    return latency_seconds + wire_seconds + 2 * (fill_seconds * growing) ** 0.5


def low_latency_seconds(wire_seconds, *, latency_seconds, data_share=0.5):
    """Time of a message whose every word carries its own flag, so that nothing is waited for.

    NCCL's LL protocol stores 4 bytes of data with 4 of flag and needs no fence per chunk:

        t = latency + wire / data share

    Args:
        wire_seconds: Bytes over the slowest link by its sustained rate.
        latency_seconds: What an empty message costs.
        data_share: Data in what is sent.

    Reference: Hu et al., "Demystifying NCCL: an in-depth analysis of GPU communication
    protocols and algorithms", arXiv 2507.04786, section III (LL, LL128, Simple).

    >>> low_latency_seconds(2.0, latency_seconds=1.0)
    5.0
    """
    return latency_seconds + wire_seconds / data_share


def ring_wire_seconds(buffer_bytes, *, ranks, passes, bytes_per_second):
    """Time in which a ring moves its bytes over its slowest link.

    Every link carries ``(n - 1) / n`` of the buffer per pass; an all-reduce is a
    reduce-scatter and an all-gather, so two passes:

        t = passes * (n - 1) / n * buffer / rate

    Reference: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", JPDC 69(2), 2009.

    >>> float(ring_wire_seconds(4e9, ranks=4, passes=2, bytes_per_second=1e11))
    0.06
    """
    return passes * (ranks - 1) / ranks * buffer_bytes / bytes_per_second


def tree_wire_seconds(buffer_bytes, *, domains, bytes_per_second):
    """Time in which a double binary tree moves its bytes out of its busiest domain.

    Every domain is an inner node of one tree and a leaf of the other and each tree carries
    half of the buffer, up and down: 2 buffers leave a domain; with only 2 domains one does.

        t = min(domains - 1, 2) * buffer / rate

    Reference: Sanders, Speck and Traff 2009, section 4; Jeaugey, "Massively scale your deep
    learning training with NCCL 2.4", 2019.

    >>> float(tree_wire_seconds(1e9, domains=4, bytes_per_second=1e11))
    0.02
    >>> float(tree_wire_seconds(1e9, domains=2, bytes_per_second=1e11))
    0.01
    """
    return np.clip(domains - 1, 0, 2) * buffer_bytes / bytes_per_second


def chain_wire_seconds(buffer_bytes, *, members, bytes_per_second):
    """Time in which the ranks of one domain reduce to and broadcast from one of them.

    The chain inside a node that feeds an inter-node tree: each rank's kernel passes the whole
    buffer up and then down again.

        t = 2 * buffer / rate

    Reference: NCCL ``src/graph/tuning.cc``: the tree's algorithm rate is half its bus rate.

    >>> float(chain_wire_seconds(1e9, members=8, bytes_per_second=1e11))
    0.02
    """
    return 2 * np.clip(members - 1, 0, 1) * buffer_bytes / bytes_per_second


def switch_wire_seconds(buffer_bytes, *, members, bytes_per_second):
    """Time in which a switch that adds and multicasts (NVLS) reduces one buffer.

    A rank sends its buffer once and reads its share of the sum, whatever their number:

        t = buffer / rate

    Reference: Klenk et al., "An in-network architecture for accelerating shared-memory
    multiprocessor collectives", ISCA 2020.

    >>> float(switch_wire_seconds(1e9, members=8, bytes_per_second=2.5e11))
    0.004
    """
    return np.clip(members - 1, 0, 1) * buffer_bytes / bytes_per_second


def all_to_all_wire_seconds(buffer_bytes, *, ranks, inside, domain_bytes_per_second):
    """Time in which a domain of ``inside`` ranks sends what is meant for others.

    Each rank keeps ``inside / n`` of its buffer in the domain, so with ``inside = 1`` this
    is the plain ``(n - 1) / n`` of one rank:

        t = inside * (n - inside) / n * buffer / rate of the domain

    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication
    operations in MPICH", IJHPCA 19(1), 2005, section 4.3 (pairwise exchange).

    >>> float(all_to_all_wire_seconds(1.6e9, ranks=16, inside=8, domain_bytes_per_second=4e11))
    0.016
    """
    return inside * (ranks - inside) / ranks * buffer_bytes / domain_bytes_per_second
