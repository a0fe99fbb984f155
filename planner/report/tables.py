"""Tables for the terminal, from the documents of ``describe``."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from planner.compare import Comparison
from planner.dry_run import DryRun
from planner.layout import format_layout
from planner.trial import Tried
from planner.units import format_bytes, format_count, format_seconds


def grid(title: str, *columns: str, right: int = 99) -> Table:
    """An open table; columns from index ``right`` on are numbers."""
    from rich import box

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index >= right else "left")
    return table


def model_tables(document: dict[str, Any]) -> list[Any]:
    """``planner show``."""
    head = Text(f"{document['name']}: {document['family']}, {document['layers']} layers, ")
    head.append(f"hidden {document['hidden']}, vocabulary {document['vocabulary']}, ")
    head.append(f"sequence length {document['sequence_length']}")
    table = grid("", "part", "count", "parameters each", "forward FLOPs each", right=1)
    for part in document["parts"]:
        table.add_row(
            part["kind"],
            str(part["count"]),
            f"{part['parameters_each']:,}",
            format_count(part["forward_flops_each"]),
        )
    totals = Text(
        f"parameters {document['total_parameters']:,} "
        f"({format_count(document['total_parameters'])}), active per token "
        f"{document['active_parameters']:,}; training FLOPs per token "
        f"{format_count(document['training_flops_per_token'])}"
    )
    dimensions = [
        Text(f"{part['kind']}: {_flat(part['dimensions'])}") for part in document["parts"]
    ]
    notes = [Text(f"assumed: {line}") for line in document["assumptions"]]
    source = [Text(f"source: {document['source']}")] if document["source"] else []
    return [Group(head, table, totals, Text(), *dimensions, *notes, *source)]


def _flat(dimensions: dict[str, Any], prefix: str = "") -> str:
    parts = []
    for key, value in dimensions.items():
        if isinstance(value, dict):
            inner = {k: v for k, v in value.items() if k != "kind" and v not in (0, False, None)}
            parts.append(_flat(inner, f"{key}."))
        else:
            parts.append(f"{prefix}{key}={value}")
    return ", ".join(parts)


_WRITERS = {
    "seconds": format_seconds,
    "bytes": format_bytes,
    "times": lambda value: f"{value:.2f}x",
}


def comparison_table(comparison: Comparison) -> Group:
    """``planner compare``."""
    table = grid("predicted and measured", "", "predicted", "measured", "error", right=1)
    for line in comparison.lines:
        write = _WRITERS[line.unit]
        mark = "" if not line.judged else " *"
        error = f"{line.error:+.1%}" if line.measured else ""
        table.add_row(line.name + mark, write(line.predicted), write(line.measured), error)
    worst = comparison.worst
    verdict = "within" if comparison.within else "beyond"
    said = (
        f"* judged: the worst is {worst.name} at {worst.error:+.1%}, {verdict} the tolerance of "
        f"{comparison.tolerance:.0%}; 80 % interval of the step "
        f"{format_seconds(comparison.low_seconds)} to {format_seconds(comparison.high_seconds)}"
    )
    return Group(table, Text(said))


def trial_table(tried: Sequence[Tried]) -> Group:
    """``planner execute --top``: the fastest first."""
    table = grid("tried", "layout", "predicted", "measured", "error", right=1)
    for one in tried:
        seconds = one.measurement.step_seconds
        table.add_row(
            format_layout(one.layout).replace(",", " "),
            format_seconds(one.predicted_seconds),
            format_seconds(seconds),
            f"{one.predicted_seconds / seconds - 1:+.1%}",
        )
    return Group(table, Text(f"the fastest is {tried[0].path}"))


def dry_run_document(result: DryRun) -> dict[str, Any]:
    """``planner dry-run --json``."""
    return {
        "rank": result.rank,
        "peak_bytes": result.counted_bytes,
        "estimated_peak_bytes": result.estimated_bytes,
        "error": result.error,
        "categories": {
            name: {"counted": counted, "estimated": estimated}
            for name, (counted, estimated) in result.categories.items()
        },
        "seconds": result.seconds,
    }


def dry_run_table(result: DryRun) -> Group:
    """``planner dry-run``: counted beside estimated."""
    table = grid(f"rank {result.rank} at its peak", "", "counted", "estimated", "error", right=1)
    for name, (counted, estimated) in result.categories.items():
        error = f"{estimated / counted - 1:+.1%}" if counted else ""
        table.add_row(name, format_bytes(counted), format_bytes(estimated), error)
    table.add_section()
    both = (format_bytes(result.counted_bytes), format_bytes(result.estimated_bytes))
    table.add_row("peak", *both, f"{result.error:+.2%}")
    return Group(table, Text(f"the executor's own code on fake tensors, {result.seconds:.0f} s"))
