"""Presets load, hold the published facts, and refuse wrong files in one line."""

import pytest

from planner import catalogue
from planner.catalogue import list_presets, load_cluster, load_device, load_preset

CLUSTER = """
name = "mine"
device = "a100"
[[tiers]]
name = "node"
size = 4
link = "nvlink"
gigabytes_per_second = 300
latency_microseconds = 3
[[tiers]]
name = "network"
size = 0
link = "roce"
gigabytes_per_second = 12.5
uplink_gigabytes_per_second = 25
latency_microseconds = 14
"""


@pytest.mark.parametrize("name", list_presets("devices"))
def test_every_device_loads_with_a_source(name):
    device = load_device(name)
    assert device.name.lower() == name
    assert device.source and device.architecture
    assert 8 * 2**30 < device.memory_bytes < 400 * 2**30
    rates = device.flops_per_second
    if "tf32" in rates and "bf16" in rates:
        assert rates["tf32"] <= rates["bf16"]


@pytest.mark.parametrize("name", list_presets("clusters"))
def test_every_cluster_loads_with_a_source(name):
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.source
    assert cluster.tiers[-1].size == 0, "the outermost tier takes any number of nodes"
    network = cluster.tiers[-1]
    assert network.bytes_per_second <= network.uplink_bytes_per_second
    assert (cluster.usd_per_device_hour > 0) == bool(cluster.price_source)


def test_names_and_aliases_are_unique():
    for kind in ("devices", "clusters"):
        names = list_presets(kind)
        for entry in catalogue._entries(kind):
            names += catalogue.tomllib.loads(entry.read_text()).get("aliases", [])
        assert len(names) == len(set(names))
        assert all(name == catalogue._normal(name) for name in names)


@pytest.mark.parametrize(
    ("name", "dtype", "teraflops", "memory_gigabytes_per_second", "memory_bytes"),
    [
        ("a100-sxm4-80gb", "bf16", 312, 2039, 84986665370),
        ("H100", "bf16", 989, 3350, 85048950784),
        ("V100-SXM2-32GB", "fp16", 125, 900, 34080565494),
        ("b200", "fp8", 4500, 8000, 191514017792),
        ("NVIDIA H100 80GB HBM3", "fp8", 1979, 3350, 85048950784),
        ("mi250x", "bf16", 191.5, 1638.5, 68698001899),  # one GCD of the two
    ],
)
def test_device_facts(name, dtype, teraflops, memory_gigabytes_per_second, memory_bytes):
    device = load_device(name)
    assert device.peak_flops_per_second(dtype) == pytest.approx(teraflops * 1e12)
    assert device.memory_bytes_per_second == pytest.approx(memory_gigabytes_per_second * 1e9)
    assert device.memory_bytes == memory_bytes


@pytest.mark.parametrize(
    ("name", "sizes", "inner_gigabytes", "card_gigabytes", "uplink_gigabytes"),
    [
        ("a100-80g-8x200g", [8, 0], 300, 25, 200),
        ("DGX-H100", [8, 0], 450, 50, 400),
        ("gb200-nvl72", [72, 0], 900, 50, 3600),
        ("p5", [8, 0], 450, 50, 400),  # four of the 32 cards per GPU
        ("nd40rs_v2", [8, 0], 150, 12.5, 12.5),
        ("h100-pcie", [2, 8, 0], 300, 12.5, 12.5),
        ("v100-16g-1gpu-10g-ethernet", [1, 0], 1.25, 1.25, 1.25),
        ("mi300x", [8, 0], 448, 50, 400),
        ("gaudi2", [8, 0], 262.5, 37.5, 300),
        ("tpu-v5e", [256, 0], 180, 12.5, 800),
    ],
)
def test_cluster_facts(name, sizes, inner_gigabytes, card_gigabytes, uplink_gigabytes):
    cluster = load_cluster(name)
    assert [tier.size for tier in cluster.tiers] == sizes
    assert cluster.tiers[0].bytes_per_second == pytest.approx(inner_gigabytes * 1e9)
    assert cluster.tiers[-1].bytes_per_second == pytest.approx(card_gigabytes * 1e9)
    assert cluster.tiers[-1].uplink_bytes_per_second == pytest.approx(uplink_gigabytes * 1e9)


def test_full_mesh_gives_one_peer_its_share_only():
    assert load_cluster("mi300x").tiers[0].peer_bytes_per_second == pytest.approx(64e9)
    assert load_cluster("dgx-a100").tiers[0].peer_bytes_per_second == 0


def test_nvlink_domain_spans_hosts():
    cluster = load_cluster("gb200-nvl72")
    assert (cluster.devices_per_node, cluster.devices_per_host) == (72, 4)


def test_device_and_count_make_one_box():
    assert [t.size for t in load_cluster("h100:8").tiers] == [8]
    bridged = load_cluster("a100-pcie:8")  # a bridge joins two cards, the rest is PCIe
    assert [(t.size, t.link) for t in bridged.tiers] == [(2, "nvlink"), (8, "pcie")]
    assert [(t.size, t.link) for t in load_cluster("rtx3090:3").tiers] == [(3, "pcie")]
    assert load_cluster("rtx4090:2").tiers[0].link == "pcie"
    for wrong in ("h100:0", "h100:x", "h100:"):
        with pytest.raises(ValueError, match="count of 1 or more"):
            load_cluster(wrong)


def test_unknown_names_offer_the_nearest():
    with pytest.raises(ValueError, match=r"nearest: .*h100-8x400g"):
        load_cluster("h100-8x40g")
    with pytest.raises(ValueError, match="no device is called"):
        load_device("h1000000")
    with pytest.raises(ValueError, match="presets of models, devices"):
        load_preset("planets", "mars")


def test_cluster_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(CLUSTER)
    cluster = load_cluster(str(path))
    assert cluster.tiers[1].uplink_bytes_per_second == 25e9
    assert cluster.device.name == "A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mine"\n', "", "cluster lacks .*name"),
        ("size = 4\n", "", "tier lacks .*size"),
        ("size = 4", 'size = "four"', "size must be a number, got 'four'"),
        ("size = 4", "size = 4.5", "size must be a whole number"),
        ("size = 4", "size = -4", "size must be a finite number of 0 or more"),
        ("size = 4", "size = true", "size must be a number, got True"),
        ("size = 4", "size = 0", "tier sizes must grow outwards"),
        ("size = 0", "size = 6", "whole domains of the one inside it"),
        ("gigabytes_per_second = 300", "gigabytes_per_second = nan", "finite"),
        ("gigabytes_per_second = 300", "gigabytes_per_second = 0", "positive rate"),
        ("size = 4", "sizes = 4", "unknown key 'sizes'; did you mean size"),
        ('link = "nvlink"', 'link = "rope"', "link must be one of"),
        ('link = "nvlink"', "link = 3", "link must be text"),
        ('device = "a100"', 'device = "a1000"', "no device is called 'a1000'; nearest"),
        ('device = "a100"', "", "device must name a device preset or be a table"),
        ("[[tiers]]", "[[tier]]", "needs at least one"),
        ('name = "mine"', "name = mine", "is not TOML"),
    ],
)
def test_wrong_cluster_files_give_one_line(tmp_path, old, new, message):
    path = tmp_path / "wrong.toml"
    path.write_text(CLUSTER.replace(old, new))
    with pytest.raises(ValueError, match=message) as raised:
        load_cluster(str(path))
    assert "\n" not in str(raised.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(ValueError, match="cannot read"):
        load_cluster(str(tmp_path / "absent.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not TOML"):
        load_cluster(str(tmp_path / "binary.toml"))
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(ValueError, match="larger than 4 MiB"):
        load_cluster(str(huge))
    with pytest.raises(ValueError, match="cannot read"):
        load_cluster(str(tmp_path) + "/")


def test_wrong_device_files(tmp_path):
    path = tmp_path / "device.toml"
    start = 'name = "x"\nmemory_gib = 16\nmemory_gigabytes_per_second = 900\n'
    for rates, message in (
        ("", "needs a table dense_teraflops_per_second"),
        ("[dense_teraflops_per_second]\nfp17 = 3\n", "unknown key 'fp17'"),
        ("[dense_teraflops_per_second]\n", "at least one positive peak rate"),
        ('[dense_teraflops_per_second]\nbf16 = "fast"\n', "bf16 must be a number"),
    ):
        path.write_text(start + rates)
        with pytest.raises(ValueError, match=message):
            load_device(str(path))
    path.write_text(start + "[dense_teraflops_per_second]\nbf16 = 125\n")
    assert load_device(str(path)).memory_bytes == 16 * 2**30


def test_frameworks_load(tmp_path):
    for name in list_presets("frameworks"):
        framework = catalogue.load_framework(name)
        assert framework.name == name
        assert framework.source
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nfused_loss = true\ngradient_bytes = 2\n')
    assert catalogue.load_framework(str(path)).fused_loss
    path.write_text('name = "mine"\nfused_loss = 1\n')
    with pytest.raises(ValueError, match="fused_loss must be true or false, got 1"):
        catalogue.load_framework(str(path))
    path.write_text('name = "mine"\nstage_rule = "odd"\n')
    with pytest.raises(ValueError, match="stage_rule must be one of balanced, even"):
        catalogue.load_framework(str(path))
