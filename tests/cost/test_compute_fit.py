"""Learning kernel constants: recovery of known ones, little data, published timings."""

import json
from importlib import resources

import numpy as np
import pytest

from benchmarks.fit_kernels import fit_generation
from benchmarks.kernel_samples import read_samples
from benchmarks.kernels import errors, fold_of, kind_of
from planner.catalogue import load_device
from planner.cluster import Device
from planner.cost.compute import default_constants, gemm_seconds, generation_of
from planner.cost.kernels.fit import FREE_CONSTANTS, fit_kernels, median_constants
from planner.cost.kernels.samples import KernelSample, predict_seconds

CPU = Device(
    name="two cores",
    kind="cpu",
    memory_bytes=2**34,
    memory_bytes_per_second=2e10,
    flops_per_second={"fp32": 1e11},
)


def cpu_samples(peak: float, rate: float, launch: float) -> list[KernelSample]:
    """30 timings of a machine with a known peak, memory rate and launch, with 5 % noise."""
    noise = np.random.default_rng(0).lognormal(0, 0.05, 30)
    shapes = [(m, n, k) for m in (16, 128, 1024) for n in (64, 512) for k in (64, 512, 2048)]
    rows = []
    for m, n, k in shapes:
        seconds = launch + max(2 * m * n * k / peak, 4 * (m * k + k * n + m * n) / rate)
        rows.append(("gemm", {"m": m, "n": n, "k": k, "dtype": "fp32"}, seconds))
    for num_bytes in np.logspace(3, 8, 12):
        rows.append(("streaming", {"num_bytes": num_bytes}, launch + num_bytes / rate))
    return [
        KernelSample(operation=name, shape=shape, seconds=seconds * wobble, device=CPU)
        for (name, shape, seconds), wobble in zip(rows, noise, strict=True)
    ]


def test_thirty_timings_of_a_cpu_give_its_rates_though_the_data_sheet_is_wrong():
    samples = cpu_samples(peak=4e11, rate=5e9, launch=2e-5)
    fitted = fit_kernels(samples, CPU)
    ratio = predict_seconds(samples, fitted) / np.array([s.seconds for s in samples])
    assert np.median(np.abs(ratio - 1)) < 0.08
    unseen = gemm_seconds(2048, 2048, 2048, dtype="fp32", device=CPU, constants=fitted)
    assert unseen == pytest.approx(2 * 2048**3 / 4e11, rel=0.25)
    assert fitted.launch_seconds == pytest.approx(2e-5, rel=0.2)


def test_what_no_timing_depends_on_keeps_its_default():
    fitted = fit_kernels(cpu_samples(1e11, 1e10, 1e-5), CPU)
    default = default_constants(CPU)
    assert fitted.attention_launch_seconds == default.attention_launch_seconds
    assert fitted.convolution_fraction == default.convolution_fraction


def test_constants_are_recovered_from_the_times_they_predict():
    device = load_device("a100-sxm4-80gb")
    true = default_constants(device)
    grid = [(m, n, k) for m in (64, 512, 4096) for n in (256, 2304) for k in (64, 512, 4096)]
    samples = [
        KernelSample(
            operation="gemm",
            shape={"m": m, "n": n, "k": k, "dtype": "bf16"},
            seconds=float(gemm_seconds(m, n, k, dtype="bf16", device=device, constants=true)),
            device=device,
        )
        for m, n, k in grid
    ]
    fitted = fit_kernels(samples, device, start=default_constants(load_device("tpu-v4")))
    ratio = predict_seconds(samples, fitted) / np.array([s.seconds for s in samples])
    assert np.max(np.abs(ratio - 1)) < 0.1


def test_bad_samples_are_refused():
    with pytest.raises(ValueError, match="unknown operation 'sort'"):
        KernelSample(operation="sort", shape={}, seconds=1.0, device=CPU)
    with pytest.raises(ValueError, match="positive time"):
        KernelSample(operation="gemm", shape={}, seconds=0.0, device=CPU)
    with pytest.raises(ValueError, match="at least 3"):
        fit_kernels(cpu_samples(1e11, 1e10, 1e-5)[:2], CPU)
    with pytest.raises(ValueError, match="median of no constants"):
        median_constants([])


def test_held_out_shapes_of_an_a100_are_within_the_target():
    """The whole report is benchmarks/reports/kernels.md; this is one fold of one generation."""
    samples = [s for s in read_samples() if generation_of(s.device) == "ampere"]
    train = [s for s in samples if fold_of(s) != 0]
    test = [s for s in samples if fold_of(s) == 0 and kind_of(s).startswith("gemm >=")]
    ratio = np.expm1(errors(test, fit_generation("ampere", train)))
    assert len(test) > 80
    assert np.median(np.abs(ratio)) < 0.08
    assert abs(np.median(ratio)) < 0.04


def test_the_calibration_names_its_sources_and_every_constant():
    path = resources.files("planner") / "presets" / "calibrations" / "kernels.json"
    generations = json.loads(path.read_text(encoding="utf-8"))["generations"]
    heads = {name.partition(".")[0] for name in FREE_CONSTANTS}
    for name, entry in generations.items():
        assert entry["source"], name
        if "rows" in entry:
            assert heads <= set(entry["constants"])
            assert entry["median_abs_error"] < 0.1
