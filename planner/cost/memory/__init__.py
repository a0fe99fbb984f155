"""Memory of every rank, by category, in the three senses that people measure.

``memory`` prices a table of layouts (arrays, no loop over layouts), ``stage_memory`` shows
one layout stage by stage. Both read the same moments (``moments.py``).
"""

from planner.cost.memory.curve import MemoryCurve, memory_over_time
from planner.cost.memory.device import Overheads, overheads, usable_bytes
from planner.cost.memory.margin import Margin, fits, fits_safely, load_margin
from planner.cost.memory.moments import CATEGORIES
from planner.cost.memory.remedies import MemoryRemedy, remedies
from planner.cost.memory.table import MemoryTable, StageMemory, memory, stage_memory

__all__ = [
    "CATEGORIES",
    "Margin",
    "MemoryCurve",
    "MemoryRemedy",
    "MemoryTable",
    "Overheads",
    "StageMemory",
    "fits",
    "fits_safely",
    "load_margin",
    "memory",
    "memory_over_time",
    "overheads",
    "remedies",
    "stage_memory",
    "usable_bytes",
]
