"""Diagrams of a plan as inline SVG, drawn by hand: who holds what, and the pipeline in time.

Colours are Okabe and Ito's; whatever a colour says is also said by a place or a text.
"""

from html import escape

from planner.layout import Axis, Layout
from planner.layout_table import tabulate
from planner.schedules.timeline import Timeline
from planner.units import format_seconds

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
MOST_NODES = 16
"""Nodes that are drawn: the others repeat them."""
MOST_EVENTS = 30_000
_CELL, _GAP, _WIDTH, _ROW = 34, 14, 960, 26


def svg(width: float, height: float, body: str, label: str) -> str:
    """One picture, which scales to the page and names itself to a screen reader."""
    return (
        f'<svg width="{width:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", fill: str = "#000") -> str:
    """A line of text, its baseline at ``y``."""
    place = f'x="{x:.1f}" y="{y:.1f}"'
    return f'<text {place} text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>'


def coordinates(layout: Layout, rank: int) -> dict[Axis, int]:
    """Where a rank lies along every axis.

    >>> coordinates(Layout(dp=2, tp=2, pp=2), 5)
    {'tp': 1, 'cp': 0, 'dp': 0, 'pp': 1}
    """
    found: dict[Axis, int] = {}
    for axis in layout.axis_order:
        degree = getattr(layout, axis)
        found[axis] = rank % degree
        rank //= degree
    return found


def layers_of_rank(layout: Layout, num_layers: int, stage: int) -> str:
    """The layers that a pipeline rank holds, as ranges, chunk by chunk.

    >>> layout = Layout(pp=2, vpp=2, schedule="interleaved", stage_layers=(2, 2, 2, 2))
    >>> layers_of_rank(layout, 8, 1)
    '2-3, 6-7'
    """
    counts = layout.stage_layers or (num_layers,)
    owners = tabulate([layout]).splits[0].rank_of_stage().tolist() if layout.pp > 1 else [0]
    held, first = [], 0
    for owner, count in zip(owners, counts, strict=True):
        if owner == stage and count:
            held.append(f"{first}-{first + count - 1}" if count > 1 else f"{first}")
        first += count
    return ", ".join(held) or "none"


def ranks_of_stages(layout: Layout) -> list[str]:
    """The ranks of every pipeline stage, as ranges; past the fourth range, how many there are.

    >>> ranks_of_stages(Layout(dp=2, tp=2, pp=2, axis_order=("tp", "cp", "pp", "dp")))
    ['0-1, 4-5', '2-3, 6-7']
    """
    stride, pp = layout.stride("pp"), layout.pp
    lines = []
    for stage in range(pp):
        firsts = range(stage * stride, layout.world_size, stride * pp)
        shown = [f"{first}-{first + stride - 1}" if stride > 1 else str(first)
                 for first in firsts[:4]]  # fmt: skip
        more = f" and {len(firsts) - 4} more" if len(firsts) > 4 else ""
        lines.append(", ".join(shown) + more)
    return lines


def layout_diagram(layout: Layout, *, devices_per_node: int, num_layers: int) -> str:
    """Every node with its ranks: colour and the letter say the stage, the text the shards."""
    per_node = min(devices_per_node, layout.world_size)
    nodes = -(-layout.world_size // per_node)
    shown = min(nodes, MOST_NODES)
    columns = max(min(int(_WIDTH // (per_node * _CELL + _GAP)), shown), 1)
    wide = min(per_node, int(_WIDTH // _CELL))
    tall = -(-per_node // wide)
    node_width, node_height = wide * _CELL + _GAP, tall * _CELL + 24
    parts = []
    for node in range(shown):
        row, column = divmod(node, columns)
        left, top = column * node_width, row * node_height
        parts.append(text(left + 2, top + 12, f"node {node}"))
        for place in range(per_node):
            rank = node * per_node + place
            if rank < layout.world_size:
                x, y = left + place % wide * _CELL, top + 16 + place // wide * _CELL
                parts.append(_rank_cell(layout, rank, x, y, num_layers))
    label = f"{layout.world_size} ranks on {nodes} nodes"
    rows = -(-shown // columns)
    return svg(columns * node_width, rows * node_height, "".join(parts), label)


def _rank_cell(layout: Layout, rank: int, x: float, y: float, num_layers: int) -> str:
    at = coordinates(layout, rank)
    stage = at["pp"]
    colour = PALETTE[stage % len(PALETTE)]
    said = f"rank {rank}: layers {layers_of_rank(layout, num_layers, stage)}"
    said += "".join(f", {axis} {at[axis] + 1} of {getattr(layout, axis)}"
                    for axis in ("pp", "tp", "cp", "dp") if getattr(layout, axis) > 1)  # fmt: skip
    ink = "#000" if colour in ("#F0E442", "#56B4E9", "#E69F00", "#999999") else "#fff"
    middle = x + (_CELL - 2) / 2
    return (
        f'<g><title>{escape(said)}</title><rect x="{x}" y="{y}" width="{_CELL - 2}" '
        f'height="{_CELL - 2}" rx="3" fill="{colour}"/>'
        + text(middle, y + 14, f"s{stage}", anchor="middle", fill=ink)
        + text(middle, y + 27, f"d{at['dp']}", anchor="middle", fill=ink)
        + "</g>"
    )


def timeline_diagram(played: Timeline, *, pp: int) -> tuple[str, str]:
    """The pipeline in time, a row for each rank, and a line on what is drawn of it."""
    events = sorted(played.events(), key=lambda event: event.start_seconds)
    drawn = events[:MOST_EVENTS]
    end = max(event.end_seconds for event in drawn)
    left, scale = 60.0, (_WIDTH - 60.0) / end
    colours = {"F": PALETTE[0], "B": PALETTE[1], "I": PALETTE[1], "W": PALETTE[2]}
    paths: dict[tuple[str, int], list[str]] = {}
    for event in drawn:
        x = left + event.start_seconds * scale
        width = max((event.end_seconds - event.start_seconds) * scale, 0.05)
        shade = event.action.microbatch % 2
        paths.setdefault((event.action.kind, shade), []).append(
            f"M{x:.2f} {event.rank * _ROW + 3}h{width:.2f}v{_ROW - 6}h-{width:.2f}z"
        )
    body = "".join(
        f'<path d="{"".join(pieces)}" fill="{colours[kind]}" fill-opacity="{1 - 0.3 * shade}"/>'
        for (kind, shade), pieces in sorted(paths.items())
    )
    body += "".join(text(0, rank * _ROW + 18, f"rank {rank}") for rank in range(pp))
    legend = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
    used = [kind for kind in legend if any(kind == one for one, _ in paths)]
    below = pp * _ROW + 18
    for place, kind in enumerate(used):
        x = left + 140 * place
        body += f'<rect x="{x}" y="{below - 10}" width="12" height="12" fill="{colours[kind]}"/>'
        body += text(x + 16, below, legend[kind])
    body += text(_WIDTH, below, f"0 to {format_seconds(end)}", anchor="end")
    part = "" if len(drawn) == len(events) else f"the first {format_seconds(end)} of "
    said = (f"{part}{format_seconds(played.makespan_seconds)}; every second microbatch is "
            f"lighter; ranks wait {played.bubble_fraction:.1%} of the time")  # fmt: skip
    return svg(_WIDTH, below + 8, body, "pipeline timeline"), said


def bars_diagram(rows: list[tuple[str, float, str]], label: str) -> str:
    """Horizontal bars: a name, a length and the words beside it."""
    longest = max((value for _, value, _ in rows), default=0.0) or 1.0
    left, room = 190.0, 560.0
    parts = []
    for i, (name, value, said) in enumerate(rows):
        y = i * 24
        width = value / longest * room
        parts.append(text(left - 8, y + 16, name, anchor="end"))
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{width:.1f}" height="18" '
                     f'fill="{PALETTE[0]}"/>')  # fmt: skip
        parts.append(text(left + width + 6, y + 16, said))
    return svg(_WIDTH, max(len(rows), 1) * 24, "".join(parts), label)


def scatter_diagram(points: list[tuple[float, float, str]], *, across: str, up: str) -> str:
    """Points by two numbers, each with its words on hover; the first is a square: the choice."""
    left, top, width, height = 90.0, 10.0, 800.0, 260.0
    columns = [[point[0] for point in points], [point[1] for point in points]]
    most = [max(column) * 1.05 for column in columns]
    least = [min(column) * 0.95 for column in columns]
    body = f'<path d="M{left} {top}v{height}h{width}" fill="none" stroke="#444"/>'
    for i, (x, y, words) in reversed(list(enumerate(points))):
        at = left + (x - least[0]) / (most[0] - least[0]) * width
        down = top + height - (y - least[1]) / (most[1] - least[1]) * height
        mark = (f'<rect x="{at - 6:.1f}" y="{down - 6:.1f}" width="12" height="12"' if i == 0
                else f'<circle cx="{at:.1f}" cy="{down:.1f}" r="5"')  # fmt: skip
        colour = PALETTE[5] if i == 0 else PALETTE[0]
        body += f'<g><title>{escape(words)}</title>{mark} fill="{colour}"/></g>'
    below = top + height
    body += text(left, below + 18, f"{least[0]:.3g}") + text(left + width / 2, below + 18, across,
                 anchor="middle") + text(left + width, below + 18, f"{most[0]:.3g}",
                                         anchor="end")  # fmt: skip
    body += text(left - 6, below, f"{least[1]:.3g}", anchor="end")
    body += text(left - 6, top + 10, f"{most[1]:.3g}", anchor="end")
    body += text(left - 6, top + height / 2, up, anchor="end")
    return svg(_WIDTH, below + 26, body, f"{up} against {across}")
