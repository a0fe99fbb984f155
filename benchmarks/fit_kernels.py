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

from benchmarks.kernels import read_samples
from planner.cost.kernels.constants import KernelConstants, generation_of
from planner.cost.kernels.fit import KernelSample, fit_kernels, predict_seconds

MIN_SAMPLES = 30  # a generation with fewer timings keeps the typical constants
CALIBRATION = "planner/presets/calibrations/kernels.json"


def by_generation(samples: Iterable[KernelSample]) -> dict[str, list[KernelSample]]:
    """Samples of devices of the same architecture."""
    generations: dict[str, list[KernelSample]] = defaultdict(list)
    for sample in samples:
        generations[generation_of(sample.device)].append(sample)
    return dict(generations)


def fit_generation(name: str, samples: list[KernelSample]) -> KernelConstants:
    """Constants of one generation, from the class defaults as the prior."""
    return fit_kernels(samples, samples[0].device, start=KernelConstants(generation=name))


def entry_of(constants: KernelConstants, samples: list[KernelSample]) -> dict[str, object]:
    """The entry of one generation in the calibration file."""
    predicted = predict_seconds(samples, constants, samples[0].device)
    error = np.abs(predicted / np.array([s.seconds for s in samples]) - 1)
    values = asdict(constants)
    values.pop("generation")
    return {
        "constants": values,
        "rows": len(samples),
        "devices": sorted({s.device.name for s in samples}),
        "median_abs_error": round(float(np.median(error)), 4),
        "p90_abs_error": round(float(np.quantile(error, 0.9)), 4),
    }


def main() -> None:
    path = Path(str(resources.files("planner"))).parent / CALIBRATION
    calibration = json.loads(path.read_text(encoding="utf-8"))
    for name, samples in by_generation(read_samples()).items():
        if len(samples) >= MIN_SAMPLES:
            entry = entry_of(fit_generation(name, samples), samples)
            calibration["generations"][name] = entry
            print(name, entry["rows"], entry["median_abs_error"], entry["p90_abs_error"])
    path.write_text(json.dumps(calibration, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
