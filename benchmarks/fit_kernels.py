"""Learn the kernel constants of every architecture generation from public timings.

Run ``python -m benchmarks.fit_kernels``: writes ``planner/presets/calibrations/kernels.json``.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from importlib import resources
from pathlib import Path

import numpy as np

from benchmarks.kernel_samples import read_samples
from planner.cost.kernels.constants import KernelConstants, generation_of
from planner.cost.kernels.fit import fit_kernels, median_constants
from planner.cost.kernels.samples import KernelSample, predict_seconds

MIN_SAMPLES = 5  # a generation with fewer timings keeps the typical constants
MIN_SAMPLES_TYPICAL = 200  # generations whose constants enter the typical ones
CALIBRATION = Path(str(resources.files("planner"))) / "presets" / "calibrations" / "kernels.json"


def by_generation(samples: Iterable[KernelSample]) -> dict[str, list[KernelSample]]:
    """Samples of devices of the same architecture."""
    generations: dict[str, list[KernelSample]] = defaultdict(list)
    for sample in samples:
        generations[generation_of(sample.device)].append(sample)
    return dict(generations)


def fit_generation(
    name: str, samples: list[KernelSample], typical: KernelConstants | None = None
) -> KernelConstants:
    """Constants of one generation, held near those of a typical device."""
    start = typical or KernelConstants(generation=name)
    return fit_kernels(samples, samples[0].device, start=start)


def fit_all(samples: Iterable[KernelSample]) -> dict[str, KernelConstants]:
    """Constants of every generation, and of the typical one (``gpu``: the median).

    Generations with many timings are fitted first; what is typical for them is the prior of
    the others.
    """
    generations = by_generation(samples)
    rich = {k: v for k, v in generations.items() if len(v) >= MIN_SAMPLES_TYPICAL}
    found = {name: fit_generation(name, rows) for name, rows in rich.items()}
    found["gpu"] = typical = median_constants(list(found.values()))
    for name, rows in generations.items():
        if name not in found and len(rows) >= MIN_SAMPLES:
            found[name] = fit_generation(name, rows, typical)
    return found


def entry_of(constants: KernelConstants, samples: list[KernelSample]) -> dict[str, object]:
    """The entry of one generation in the calibration file."""
    values = {key: value for key, value in asdict(constants).items() if key != "generation"}
    if not samples:
        return {"constants": values, "source": "median of the fitted generations"}
    predicted = predict_seconds(samples, constants)
    error = np.abs(predicted / np.array([s.seconds for s in samples]) - 1)
    return {
        "constants": values,
        "source": "benchmarks/published/kernels.csv: "
        + ", ".join(sorted({s.group for s in samples})),
        "rows": len(samples),
        "devices": sorted({s.device.name for s in samples}),
        "median_abs_error": round(float(np.median(error)), 4),
        "p90_abs_error": round(float(np.quantile(error, 0.9)), 4),
    }


def main() -> None:
    samples = read_samples()
    generations = by_generation(samples)
    calibration = json.loads(CALIBRATION.read_text(encoding="utf-8"))
    for name, constants in fit_all(samples).items():
        entry = entry_of(constants, generations.get(name, []))
        calibration["generations"][name] = entry
        print(name, entry.get("rows"), entry.get("median_abs_error"), entry.get("p90_abs_error"))
    CALIBRATION.write_text(json.dumps(calibration, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
