"""From a layout to PyTorch's ``DeviceMesh``: the one place where axis order is decided."""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from planner.layout import Layout

PARTS = {"pp": ("pp",), "dp": ("dp_replicate", "dp_shard"), "cp": ("cp",), "tp": ("tp",)}
"""Mesh axes of each axis of a layout; data parallelism has two so that HSDP can shard one."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The ranks of a layout as a mesh, and this rank's place in it."""

    layout: Layout
    root: DeviceMesh
    device: torch.device

    def size(self, axis: str) -> int:
        """Ranks along one mesh axis."""
        return self.root[axis].size()

    def place(self, axis: str) -> int:
        """This rank's coordinate on one mesh axis."""
        return self.root.get_local_rank(axis)

    @property
    def replica(self) -> int:
        """Which share of the global batch is this rank's."""
        return self.place("dp_replicate") * self.size("dp_shard") + self.place("dp_shard")

    @property
    def pipeline_rank(self) -> int:
        """Place in the pipeline; a rank may hold several stages."""
        return self.place("pp")

    @cached_property
    def replicas(self) -> DeviceMesh:
        """All ranks that hold the same parameters of a dense model: ``dp * cp``."""
        return self._flat(("dp_replicate", "dp_shard", "cp"), "replicas")

    @cached_property
    def fully_sharded(self) -> DeviceMesh:
        """What FSDP2 takes: one axis to shard over, or (HSDP) replicas of such."""
        shard = self._flat(("dp_shard", "cp"), "shard")
        if self.size("dp_replicate") == 1:
            return shard
        return self.root["dp_replicate", axis_names(shard)[0]]

    @cached_property
    def experts(self) -> DeviceMesh:
        """``(expert_replicas, ep)``: the replicas, cut into groups that share the experts."""
        ep = self.layout.ep
        return self.replicas._unflatten(
            0, (self.replicas.size() // ep, ep), ("expert_replicas", "ep")
        )

    def _flat(self, names: tuple[str, ...], name: str) -> DeviceMesh:
        """Several axes as one; where only one is longer than 1, that axis itself."""
        order = axis_names(self.root)
        long = [n for n in order if n in names and self.size(n) > 1]
        if len(long) <= 1:
            return self.root[long[0] if long else names[0]]
        return self.root[tuple(long)]._flatten(name)


def make_grid(layout: Layout, device: torch.device) -> Grid:
    """Lay the ranks of the default process group out as the layout orders them.

    Raises:
        ValueError: If the world size is not the layout's.
    """
    world_size = dist.get_world_size()
    if world_size != layout.world_size:
        raise ValueError(
            f"the plan needs {layout.world_size} ranks, but {world_size} were started"
        )
    degrees = {"pp": layout.pp, "cp": layout.cp, "tp": layout.tp} | data_parallel_degrees(layout)
    outermost_first = [part for axis in reversed(layout.axis_order) for part in PARTS[axis]]
    root = init_device_mesh(
        device.type,
        tuple(degrees[part] for part in outermost_first),
        mesh_dim_names=tuple(outermost_first),
    )
    return Grid(layout=layout, root=root, device=device)


def data_parallel_degrees(layout: Layout) -> dict[str, int]:
    """How ``dp`` is split between replicas and the axis that ZeRO shards over.

    >>> data_parallel_degrees(Layout(dp=8, zero_stage=3, zero_group=4))
    {'dp_replicate': 2, 'dp_shard': 4}
    """
    if layout.zero_stage < 2:
        return {"dp_replicate": layout.dp, "dp_shard": 1}
    shard = max(layout.shard_group // layout.cp, 1)
    return {"dp_replicate": layout.dp // shard, "dp_shard": shard}


def axis_names(mesh: DeviceMesh) -> tuple[str, ...]:
    """Names of a mesh's axes; ours all have names."""
    assert mesh.mesh_dim_names is not None
    return mesh.mesh_dim_names
