"""Linear attention: counts, shards, and a cost that grows with the tokens alone."""

import pytest

from planner.model import LinearAttention, SelfAttention
from planner.ops import Implementation, Shard, count_parameters

BLOCK = LinearAttention(key_heads=16, value_heads=32, key_head_dim=128, value_head_dim=128)


def flops(block, length):
    ops = block.ops(2048, Shard(sequence_length=length), Implementation())
    return sum(float(op.forward_flops) for op in ops)


def test_parameters_of_qwen3_next():
    """Projections of 12,352 columns, an 8,192 x 4 convolution, two rates per head, a norm."""
    count = count_parameters(BLOCK.ops(2048, Shard(sequence_length=64), Implementation()))
    assert count.total == 2048 * 12352 + 8192 * 4 + 64 + 128 + 4096 * 2048


@pytest.mark.parametrize("tp", [2, 4, 16])
def test_shards_sum_to_the_block(tp):
    whole = count_parameters(BLOCK.ops(2048, Shard(sequence_length=64), Implementation()))
    part = count_parameters(BLOCK.ops(2048, Shard(sequence_length=64, tp=tp), Implementation()))
    assert tp * (part.total - part.tp_replicated) + part.tp_replicated == whole.total


def test_cost_is_linear_in_the_sequence():
    assert flops(BLOCK, 65536) == pytest.approx(16 * flops(BLOCK, 4096))
    softmax = SelfAttention(heads=16, kv_heads=2, head_dim=256)
    assert flops(softmax, 65536) > 20 * flops(softmax, 4096)


def test_output_gate_doubles_the_query_projection():
    plain = SelfAttention(heads=16, kv_heads=2, head_dim=256)
    gated = SelfAttention(heads=16, kv_heads=2, head_dim=256, output_gate=True)
    shard = Shard(sequence_length=64)
    counts = [count_parameters(b.ops(2048, shard, Implementation())).total for b in (plain, gated)]
    assert counts[1] - counts[0] == 2048 * 16 * 256


def test_wrong_heads_are_refused():
    with pytest.raises(ValueError, match="value_heads 30 must be a multiple of key_heads 16"):
        LinearAttention(key_heads=16, value_heads=30, key_head_dim=8, value_head_dim=8)
    with pytest.raises(ValueError, match="kernel must be at least 1"):
        LinearAttention(key_heads=1, value_heads=1, key_head_dim=8, value_head_dim=8, kernel=0)
