"""Run tables: what is read, and that nothing in a row can raise."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.runs import read_runs
from planner.runs.machines import network_tier
from planner.runs.reader import parse_runs

GOOD = {
    "id": "a", "prefix": "mine", "outcome": "ran", "arch": "gpt", "layers": "24",
    "hidden": "2048", "heads": "16", "seq_len": "2048", "vocab": "50257",
    "gpu": "A100-SXM4-80GB", "gpus": "16", "gpus_per_node": "8", "framework": "Megatron-LM",
    "precision": "fp16", "tp": "2", "pp": "2", "micro_batch": "2", "global_batch": "64",
    "step_time_s": "1.5",
}  # fmt: skip


def test_a_good_row_becomes_a_run():
    table = parse_runs([GOOD])
    assert not table.unscored
    (run,) = table.runs
    assert (run.layout.dp, run.layout.microbatches) == (4, 8)
    assert run.layout.stage_layers == (12, 12)
    assert run.model.num_layers == 24
    assert run.cluster.device.name == "A100-SXM4-80GB"
    assert run.step_seconds == 1.5
    assert run.framework.name == "megatron-lm"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden": "big"}, "hidden is not a number"),
        ({"layers": "-4"}, "layers must be a whole number of 1 or more"),
        ({"layers": "2.5"}, "layers must be a whole number of 1 or more"),
        ({"gpus": "0"}, "gpus must be a whole number of 1 or more"),
        ({"gpus": "nan"}, "gpus is not a number"),
        ({"step_time_s": "-1"}, "step_time_s must be positive"),
        ({"step_time_s": "fast"}, "step_time_s is not a number"),
        ({"dp": "3"}, "tp x pp x cp x dp is not gpus"),
        ({"tp": "5"}, "tp x pp x cp x dp is not gpus"),
        ({"global_batch": "63"}, "global_batch is not a multiple of dp x micro_batch"),
        ({"micro_batch": ""}, "missing micro_batch"),
        ({"gpu": ""}, "missing gpu"),
        ({"gpu": "H9000"}, "unknown gpu"),
        ({"arch": ""}, "missing arch"),
        ({"arch": "other"}, "arch other has no generic form"),
        ({"arch": "rnn"}, "arch must be one of gpt, llama, moe, bert, resnet, other"),
        ({"heads": "15"}, "dimensions make no model"),
        ({"precision": "int3"}, "precision int3 is not modelled"),
        ({"zero_stage": "7"}, "zero_stage must be 0, 1, 2 or 3"),
        ({"recompute": "some"}, "recompute must be one of none, selective, full"),
        ({"sequence_parallel": "maybe"}, "sequence_parallel must be 1 or 0"),
        ({"framework": "x + CPU offload"}, "offloading is not modelled"),
    ],
)
def test_a_bad_row_has_a_reason(change, reason):
    table = parse_runs([{**GOOD, **change}])
    assert not table.runs
    assert [row.reason for row in table.unscored] == [reason]


def test_more_stages_than_layers_has_a_reason():
    row = {**GOOD, "layers": "2", "pp": "8", "gpus": "64"}
    (problem,) = parse_runs([row]).unscored
    assert "layers" in problem.detail


def test_a_duplicate_id_is_named_once():
    table = parse_runs([GOOD, GOOD])
    assert len(table.runs) == 1
    assert table.unscored[0].reason == "duplicate id"


def test_rows_without_id_or_with_surplus_cells_are_read():
    row = {key: value for key, value in GOOD.items() if key != "id"}
    table = parse_runs([{**row, "": ["surplus"], "strange column": "x"}])
    assert table.runs[0].id == "row-1"


def test_time_from_tokens_per_second():
    row = {**GOOD, "step_time_s": "", "tokens_per_s_per_gpu": "8192"}
    (run,) = parse_runs([row]).runs
    assert run.step_seconds == 64 * 2048 / (8192 * 16)


def test_experts_come_from_the_notes():
    row = {
        **GOOD, "arch": "moe", "experts": "8", "topk": "2", "ffn_hidden": "8192",
        "notes": "moe_ffn 1024, 1 shared expert; 2 dense layers", "tp": "1", "ep": "4",
    }  # fmt: skip
    (run,) = parse_runs([row]).runs
    dense, routed = run.model.layers
    assert (dense.count, routed.count) == (2, 22)
    assert routed.block.feed_forward.ffn_hidden == 1024
    assert routed.block.feed_forward.shared_ffn_hidden == 1024


@pytest.mark.parametrize(
    ("text", "link", "card", "node"),
    [
        ("8x200Gb HDR IB per node", "infiniband", 25, 200),
        ("4x Omni-Path 100 per node", "infiniband", 12.5, 50),
        ("400Gb RoCE per GPU", "roce", 50, 400),
        ("AWS EFA (3200 Gbps/node nominal)", "efa", 400, 400),
        ("InfiniBand 8x50 GB/s", "infiniband", 50, 400),
        ("4x ConnectX-7 IB NDR 400Gb/s", "infiniband", 50, 200),
        ("8x ConnectX-7 IB NDR 400Gb/s + 200Gb/s Ethernet NIC", "infiniband", 50, 400),
        ("25 Gb/s Ethernet", "ethernet", 3.125, 3.125),
    ],
)
def test_words_for_networks(text, link, card, node):
    tier = network_tier(text, 8)
    assert tier.link == link
    assert tier.bytes_per_second == pytest.approx(card * 1e9)
    assert tier.uplink_bytes_per_second == pytest.approx(node * 1e9)


def test_no_rate_no_network():
    assert network_tier("", 8) is None
    assert network_tier("n/a (single node)", 8) is None


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), st.text(max_size=12), max_size=6))
@settings(max_examples=150, deadline=None)
def test_no_cell_can_raise(change):
    table = parse_runs([{**GOOD, **change}])
    assert len(table.runs) + len(table.unscored) == 1


def test_files(tmp_path: Path):
    header, cells = ",".join(GOOD), ",".join(GOOD.values())
    plain = tmp_path / "runs.csv"
    plain.write_text(f"{header}\n{cells}\n", encoding="utf-8")
    packed = tmp_path / "runs.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert len(read_runs(plain).runs) == len(read_runs(packed).runs) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00"])
def test_files_that_are_no_table(tmp_path: Path, content: bytes):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)):
        read_runs(path)


def test_a_missing_file():
    with pytest.raises(ValueError, match="cannot read"):
        read_runs(Path("no/such/file.csv"))
