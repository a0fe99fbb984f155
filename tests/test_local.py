"""``--cluster here``: described without torch, measured rates replace placeholders."""

import json

import pytest

from planner import local
from planner.calibration import data_folder
from planner.local import local_cluster


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANNER_HOME", str(tmp_path))
    monkeypatch.setattr(local, "_list_gpus", list)
    return tmp_path


def test_cpu_ranks_share_cores_and_memory(monkeypatch):
    monkeypatch.setattr(local, "_num_cores", lambda: 8)
    one, two, sixteen = (local_cluster(n) for n in (1, 2, 16))
    assert one.device.kind == "cpu" and one.tiers[0].link == "gloo"
    assert one.device.memory_bytes // 2 == two.device.memory_bytes
    rates = [c.device.flops_per_second["fp32"] * c.num_devices for c in (one, two, sixteen)]
    assert rates == pytest.approx([rates[0]] * 3), "ranks share the cores, whatever their number"
    assert local_cluster().num_devices == 8


def test_measured_rates_replace_placeholders(home):
    measured = {
        "flops_per_second": {"fp32": 1e11},
        "memory_bytes_per_second": 3e10,
        "link_bytes_per_second": 2e9,
        "latency_seconds": 5e-5,
    }
    (home / "machine.json").write_text(json.dumps(measured))
    cluster = local_cluster(2)
    assert cluster.device.peak_flops_per_second("fp32") == 1e11
    assert cluster.device.memory_bytes_per_second == 3e10
    assert cluster.tiers[0].bytes_per_second == 2e9
    assert cluster.tiers[0].latency_seconds == 5e-5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold an object"),
        ('{"latency_seconds": "fast"}', "latency_seconds must be a positive number"),
        ('{"flops_per_second": {"fp32": -1}}', "fp32 must be a positive number"),
        ('{"flops_per_second": 3}', "must be an object by dtype"),
    ],
)
def test_wrong_measured_file(home, text, message):
    (home / "machine.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        local_cluster(2)


def test_gpus_are_named_by_the_driver(monkeypatch):
    monkeypatch.setattr(
        local, "_list_gpus", lambda: [("NVIDIA H100 80GB HBM3", 81559 * 2**20)] * 4
    )
    cluster = local_cluster()
    assert cluster.device.name == "H100-SXM5-80GB"
    assert cluster.device.memory_bytes == 81559 * 2**20
    assert (cluster.num_devices, cluster.tiers[0].link) == (4, "nvlink")
    with pytest.raises(ValueError, match="has 4 GPUs, 5 were asked for"):
        local_cluster(5)


def test_data_folder_honours_xdg(monkeypatch, tmp_path):
    monkeypatch.delenv("PLANNER_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "parallel-planner"
