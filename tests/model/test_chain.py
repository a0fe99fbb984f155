"""Parameters, FLOPs and saved bytes read from the op list, against closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.model import ImageHead, Model, Run, Stem, resnet_layers
from planner.ops import Implementation, Shard, count_parameters
from tests.models import llama


def test_llama_7b_has_the_published_parameters():
    assert llama().total_parameters == 6_738_415_616


def test_resnet_50_has_torchvisions_parameters_and_flops():
    layers = resnet_layers((3, 4, 6, 3), image_size=224)
    model = Model(
        name="resnet-50",
        family="convolution",
        embedding=Stem(),
        layers=tuple(Run(block=block, count=1) for block in layers),
        head=ImageHead(),
        sequence_length=1,
    )
    assert model.total_parameters == 25_557_032
    # torchvision's model card: 4.09 giga multiply-adds.
    assert model.forward_flops_per_sequence() == pytest.approx(2 * 4.09e9, rel=0.005)


def test_layer_flops_are_those_of_narayanan():
    """Narayanan et al. 2021, section 5.1, without their 4 h ffn: 24 b s h^2 + 4 b s^2 h."""
    model = llama(hidden=1024, heads=16, ffn=4096, layers=1)
    layer = model.layers[0].block
    ungated = layer.ops(Shard(sequence_length=512), Implementation())
    flops = sum(op.forward_flops for op in ungated)
    attention = 4 * 512**2 * 1024 / 2  # causal: half of the pairs
    linear = 8 * 512 * 1024**2 + 3 * 2 * 512 * 1024 * 4096  # three matrices: gated
    assert flops == attention + linear


@given(tp=st.sampled_from([1, 2, 4, 8]), kv_heads=st.sampled_from([8, 16]))
def test_tensor_parallel_shards_sum_to_the_layer(tp, kv_heads):
    layer = llama(hidden=1024, heads=16, kv_heads=kv_heads, ffn=2816, layers=1).layers[0].block
    whole = count_parameters(layer.ops(Shard(sequence_length=64), Implementation()))
    part = count_parameters(layer.ops(Shard(sequence_length=64, tp=tp), Implementation()))
    cut = part.total - part.tp_replicated
    assert tp * cut + part.tp_replicated == pytest.approx(whole.total)


def test_op_lists_broadcast_over_shards():
    layer = llama().layers[0].block
    degrees = np.array([1, 2, 4, 8])
    together = layer.ops(Shard(sequence_length=2048, tp=degrees), Implementation())
    for index, tp in enumerate(degrees):
        alone = layer.ops(Shard(sequence_length=2048, tp=int(tp)), Implementation())
        for one, many in zip(alone, together, strict=True):
            assert np.broadcast_to(many.forward_flops, degrees.shape)[index] == pytest.approx(
                float(one.forward_flops)
            )
            for a, b in zip(one.saved, many.saved, strict=True):
                assert np.broadcast_to(b.bytes, degrees.shape)[index] == pytest.approx(
                    float(a.bytes)
                )
