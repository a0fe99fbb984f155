"""A layout in a sentence."""

from planner.layout import Layout
from planner.setting import Setting


def layout_in_words(layout: Layout, setting: Setting) -> str:
    """Say what a layout does, from the replicas down to the microbatch.

    ``4 replicas, each cut over 8 GPUs: 2 pipeline stages of 4-way tensor parallelism ...``
    """
    device = {"gpu": "GPU", "cpu": "CPU rank"}.get(setting.cluster.device.kind, "device")
    each = layout.tp * layout.pp * layout.cp
    replicas = f"{layout.dp} replica{'s' * (layout.dp > 1)}"
    if each == 1:
        said = f"{replicas}, each whole on 1 {device}"
    else:
        said = f"{replicas}, each cut over {each} {device}s: {_cuts(layout)}"
    said += f"; {_states(layout)}"
    if layout.ep > 1:
        tensor = f" (each over {layout.etp} ranks)" if layout.etp > 1 else ""
        said += f"; experts spread over {layout.ep} ranks{tensor}"
    said += f"; {_batches(layout)}"
    if layout.recompute != "none":
        some = f" of {layout.recompute_layers} layers" if layout.recompute_layers else ""
        said += f"; {layout.recompute} recompute{some}"
    if layout.offload_optimizer:
        said += "; optimizer states offloaded to the host"
    return said + f"; {_placement(layout, setting)}"


def _cuts(layout: Layout) -> str:
    cuts = []
    if layout.pp > 1:
        chunks = f" in {layout.vpp} chunks each" if layout.vpp > 1 else ""
        cuts.append(f"{layout.pp} pipeline stages{chunks} ({layout.schedule})")
    if layout.tp > 1:
        sequence = " with sequence parallelism" if layout.sequence_parallel else ""
        cuts.append(f"{layout.tp}-way tensor parallelism{sequence}")
    if layout.cp > 1:
        cuts.append(f"{layout.cp}-way context parallelism ({layout.cp_kind})")
    return " of ".join(cuts[:2]) + "".join(f" and {cut}" for cut in cuts[2:])


def _states(layout: Layout) -> str:
    if layout.zero_stage == 0 or layout.shard_group == 1:
        return "every replica keeps all model states"
    what = {
        1: "optimizer states",
        2: "optimizer states and gradients",
        3: "optimizer states, gradients and parameters",
    }[layout.zero_stage]
    return f"{what} sharded over {layout.shard_group} ranks (ZeRO-{layout.zero_stage})"


def _batches(layout: Layout) -> str:
    one = "s" * (layout.microbatches > 1)
    return (
        f"each replica takes {layout.microbatches} microbatch{'e' if one else ''}{one} of "
        f"{layout.microbatch} per step"
    )


def _placement(layout: Layout, setting: Setting) -> str:
    """Which degrees have all their members inside one node, and which cross nodes."""
    size = setting.cluster.devices_per_node
    degrees = {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp, "pp": layout.pp}
    inside: list[str] = []
    across: list[str] = []
    for axis in layout.axis_order:
        if degrees[axis] > 1:
            reach = layout.stride(axis) * degrees[axis]
            (inside if reach <= size else across).append(axis)
    if not across:
        return "all inside one node"
    within = f"{', '.join(inside)} inside the node, " if inside else ""
    return f"{within}{', '.join(across)} across nodes"
