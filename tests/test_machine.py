"""From a probe of a made-up machine to its calibration: what went in comes out."""

import numpy as np
import pytest

from planner.api import calibration_of, estimate
from planner.calibration import load_calibration
from planner.local import calibration_name, has_calibration, local_cluster
from planner.machine import calibrate_machine
from planner.probe import Probe, Sample, read_probe, write_probe
from planner.setting import resolve

FLOPS_PER_SECOND = 5e10
BYTES_PER_SECOND = 8e9
LINK_BYTES_PER_SECOND = 1e9
START_SECONDS = 1e-4


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANNER_HOME", str(tmp_path))


def made_up(world_size: int) -> list[Sample]:
    """A machine of round numbers: no overheads in kernels, alpha-beta messages."""
    shapes = [(m, n, k) for m in (256, 1024) for n in (256, 1024) for k in (256, 1024)]
    samples = [
        Sample(
            kind="gemm",
            sizes={"m": m, "n": n, "k": k},
            seconds=2 * m * n * k / FLOPS_PER_SECOND * world_size,
            world_size=world_size,
        )
        for m, n, k in shapes
    ]
    samples += [
        Sample(
            kind="streaming",
            sizes={"bytes": size},
            seconds=size / BYTES_PER_SECOND * world_size,
            world_size=world_size,
        )
        for size in (2**20, 2**23, 2**26)
    ]
    if world_size > 1:
        factor = {"all_reduce": 2 * (world_size - 1) / world_size, "send_recv": 1.0}
        samples += [
            Sample(
                kind=kind,
                sizes={"bytes": size, "degree": world_size, "stride": 1},
                seconds=START_SECONDS + factor[kind] * size / LINK_BYTES_PER_SECOND,
                world_size=world_size,
            )
            for kind in factor
            for size in (2**12, 2**16, 2**20, 2**24)
        ]
        samples.append(
            Sample(
                kind="overlap",
                sizes={"compute_seconds": 0.2, "communication_seconds": 0.1},
                seconds=0.25,
                world_size=world_size,
            )
        )
    return samples


@pytest.fixture
def probe() -> Probe:
    return Probe(
        machine="made up",
        backend="gloo",
        torch_version="2",
        date="2026-01-01",
        samples=tuple(made_up(1) + made_up(2)),
    )


def test_each_number_of_ranks_has_rates_of_its_own(probe):
    assert not has_calibration(2)
    calibrate_machine(probe)
    assert has_calibration(2)
    for ranks in (1, 2):
        device = local_cluster(ranks).device
        assert device.flops_per_second["fp32"] == pytest.approx(FLOPS_PER_SECOND / ranks)
        assert device.memory_bytes_per_second == pytest.approx(BYTES_PER_SECOND / ranks)


def test_matrix_products_and_overlap_come_back(probe):
    found = {c.name: c for c in calibrate_machine(probe)}
    kernels = found["here-2"].kernels
    assert kernels is not None
    assert kernels.sustained_fraction["fp32"] == pytest.approx(1.0, abs=0.15)
    # 0.2 + 0.1 alone, 0.25 together: half of the collective was hidden.
    assert found["here-2"].step.overlap_share == pytest.approx(0.5)
    assert found["here-1"].step.overlap_share == 0.0


def test_twice_the_ranks_on_the_same_cores_do_not_double_the_speed(probe):
    calibrate_machine(probe)
    seconds = {
        ranks: estimate(
            "tiny-llama", gpus=ranks, cluster="here", global_batch=8, sequence_length=128
        ).time.step_seconds
        for ranks in (1, 2)
    }
    assert seconds[2] > 0.9 * seconds[1]


def test_default_means_the_probe_of_so_many_ranks(probe):
    setting = resolve(model="tiny-llama", num_devices=2, cluster="here")
    assert calibration_of(setting, "default") == "default"
    calibrate_machine(probe)
    assert calibration_of(setting, "default") == calibration_name(2)
    assert calibration_of(setting, "mine") == "mine"
    assert load_calibration(calibration_name(2)).rows == len(made_up(2))


def test_a_probe_reads_back_the_same(probe, tmp_path):
    path = tmp_path / "probe.json"
    write_probe(path, probe)
    assert read_probe(path) == probe
    assert probe.world_sizes == (1, 2)


@pytest.mark.parametrize("seconds", [0.0, -1.0, np.nan])
def test_a_timing_must_be_positive(seconds):
    with pytest.raises(ValueError, match="a timing is positive"):
        Sample(kind="gemm", seconds=seconds, world_size=1)


def test_a_probe_without_matrix_products_is_refused():
    only = [s for s in made_up(1) if s.kind == "streaming"]
    probe = Probe(machine="m", backend="gloo", torch_version="2", date="d", samples=tuple(only))
    with pytest.raises(ValueError, match="needs matrix products and streaming"):
        calibrate_machine(probe)
