"""The whole space, exactly, at once: reject, estimate, rank.

``search`` is the entrance; its answer is data (``SearchResult``).
"""

from planner.search.constraints import Constraints, read_constraints
from planner.search.result import Candidate, Loss, Remedy, SearchResult
from planner.search.run import search

__all__ = [
    "Candidate",
    "Constraints",
    "Loss",
    "Remedy",
    "SearchResult",
    "read_constraints",
    "search",
]
