"""The whole space, exactly, at once: reject, estimate, rank.

``search`` is the entrance; its answer is data (``SearchResult``). ``explain`` says of one
layout what binds it and when it would lose, ``teach`` walks the rule of thumb beside it.
"""

from planner.search.constraints import Constraints, read_constraints
from planner.search.explain import Crossing, Explanation, Knob, Rival, explain
from planner.search.pricing import Pricing
from planner.search.result import Candidate, Loss, Remedy, SearchResult
from planner.search.run import search
from planner.search.teach import Branch, Difference, Lesson, teach

__all__ = [
    "Branch",
    "Candidate",
    "Constraints",
    "Crossing",
    "Difference",
    "Explanation",
    "Knob",
    "Lesson",
    "Loss",
    "Pricing",
    "Remedy",
    "Rival",
    "SearchResult",
    "explain",
    "read_constraints",
    "search",
    "teach",
]
