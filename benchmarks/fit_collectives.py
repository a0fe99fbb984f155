"""Fit the communication constants to published collectives, and cross-validate by source.

Run ``python -m benchmarks.fit_collectives``: writes
``planner/presets/calibrations/communication.json`` and the held-out errors that
``benchmarks/collectives.py`` reports. Every source counts with the root of its rows, so that a
long sweep of one machine does not outvote the others.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

from benchmarks.collectives import CROSS_VALIDATION, Timing, by_cluster, errors, read_timings
from planner.cluster import Cluster
from planner.cost.collectives.fit import CollectiveSample, fit_clusters, unknowns_of
from planner.cost.comm import CommunicationConstants, LinkConstants

TARGET = Path("planner/presets/calibrations/communication.json")
FOLDS = 10

PRIOR = CommunicationConstants(
    links={
        # Sustained share of the line rate: NCCL authors' rules of thumb (24 GB/s per 200 Gb/s
        # card, 48 per 400; 370 of 450 GB/s NVLink4). Start-ups: the low-latency protocols of
        # NCCL's src/graph/tuning.cc at 5067397c, as a share of its Simple protocol's figure.
        "nvlink": LinkConstants(rate_fraction=0.8, hop_factor=0.2, fill_factor=0.2),
        "xgmi": LinkConstants(rate_fraction=0.72, hop_factor=0.2, fill_factor=0.2),
        "pcie": LinkConstants(
            rate_fraction=0.8, hop_factor=0.2, fill_factor=0.2, crowding_exponent=0.3
        ),
        "infiniband": LinkConstants(rate_fraction=0.94, hop_factor=0.4, fill_factor=1.0),
        "roce": LinkConstants(rate_fraction=0.92, hop_factor=0.4, fill_factor=1.0),
        "efa": LinkConstants(rate_fraction=0.9, hop_factor=0.4, fill_factor=1.0),
        "ethernet": LinkConstants(rate_fraction=0.85, hop_factor=0.4, fill_factor=1.0),
        # Sockets between processes that share cores, with no chunks in flight: not fitted here.
        "gloo": LinkConstants(
            rate_fraction=1.0,
            hop_factor=1.0,
            fill_factor=0.02,
            crowding_exponent=1.0,
            startup_crowding_exponent=1.0,
        ),
    },
    other=LinkConstants(rate_fraction=0.75, hop_factor=0.3, fill_factor=0.5),
    base_seconds={"ring": 6.6e-6, "tree": 6.8e-6, "nvls": 2e-5, "all_to_all": 8e-6},
    kind_rate_fractions={"all_to_all": 0.95},
    # nvlsEfficiency of NCCL's src/graph/tuning.cc at 5067397c (2.30.7); not fitted.
    switch_efficiencies={"Hopper": 0.85, "Blackwell": 0.74, "Blackwell Ultra": 0.74},
)


def weighted(timings: Sequence[Timing]) -> list[Timing]:
    """Each source counts with the root of its rows."""
    rows = Counter(timing.source for timing in timings)
    return [replace(t, sample=replace(t.sample, weight=rows[t.source] ** -0.5)) for t in timings]


def sample_sets(timings: Sequence[Timing]) -> list[tuple[list[CollectiveSample], Cluster]]:
    return [([t.sample for t in rows], c) for rows, c in by_cluster(weighted(timings))]


def fit(timings: Sequence[Timing]) -> CommunicationConstants:
    return fit_clusters(sample_sets(timings), prior=PRIOR)


def held_out_errors(timings: Sequence[Timing]) -> dict[str, float]:
    """Error of each row under constants fitted without its source."""
    rows = Counter(timing.source for timing in timings)
    load, folds = [0] * FOLDS, defaultdict(list)
    for source, count in rows.most_common():
        lightest = int(np.argmin(load))
        load[lightest] += count
        folds[lightest].append(source)
    found = {}
    for number, sources in sorted(folds.items()):
        outside = [t for t in timings if t.source not in sources]
        constants = fit(outside)
        inside = [t for t in timings if t.source in sources]
        found |= errors(inside, constants)
        print(f"fold {number}: {len(inside)} rows held out", file=sys.stderr)
    return found


def rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    timings = [t for t in read_timings() if t.fabric == "clean"]
    constants = fit(timings)
    sources = sorted({t.source for t in timings})
    source = (
        f"{len(unknowns_of(sample_sets(timings), PRIOR))} numbers fitted {date.today()} to "
        f"{len(timings)} timings of {len(sources)} public sources "
        "(benchmarks/published/collectives.csv), clean fabrics only; priors from NCCL "
        "src/graph/tuning.cc at 5067397c (2.30.7)."
    )
    constants = replace(constants, source=source)
    table = {"schema_version": 1, "constants": rounded(constants.to_dict())}
    TARGET.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    if "--no-cross-validation" in sys.argv:
        return
    held_out = rounded(held_out_errors(timings))
    text = json.dumps({"schema_version": 1, "folds": FOLDS, "errors": held_out}, indent=0)
    CROSS_VALIDATION.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
