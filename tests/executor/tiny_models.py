"""Tiny models of each family, small enough for eight ranks on two cores."""

from planner.model import (
    Embedding,
    Experts,
    FeedForward,
    Head,
    ImageHead,
    Model,
    Run,
    SelfAttention,
    Stem,
    TransformerLayer,
    resnet_layers,
)


def llama(*, layers=4, tied=False, kv_heads=4, hidden=32, vocabulary=96, **changes):
    layer = TransformerLayer(
        hidden=hidden,
        attention=SelfAttention(heads=8, kv_heads=kv_heads, head_dim=hidden // 8),
        feed_forward=FeedForward(ffn_hidden=64),
    )
    return Model(
        name="tiny-llama", family="decoder", sequence_length=16, tied=tied,
        embedding=Embedding(vocabulary=vocabulary, hidden=hidden),
        layers=(Run(block=layer, count=layers),),
        head=Head(
            vocabulary=vocabulary, hidden=hidden,
            shared_with_embedding=vocabulary * hidden if tied else 0,
        ),
        **changes,
    )  # fmt: skip


def gpt2(*, layers=2):
    attention = SelfAttention(
        heads=4, kv_heads=4, head_dim=8, rotary=False, qkv_bias=True, output_bias=True
    )
    layer = TransformerLayer(
        hidden=32, norm="layernorm", attention=attention,
        feed_forward=FeedForward(ffn_hidden=128, gated=False, bias=True, activation="gelu-tanh"),
    )  # fmt: skip
    return Model(
        name="tiny-gpt2", family="decoder", sequence_length=16, tied=True,
        embedding=Embedding(vocabulary=96, hidden=32, positions=16),
        layers=(Run(block=layer, count=layers),),
        head=Head(vocabulary=96, hidden=32, norm="layernorm", shared_with_embedding=96 * 32),
    )  # fmt: skip


def bert(*, layers=2):
    attention = SelfAttention(
        heads=4, kv_heads=4, head_dim=8, rotary=False, causal=False,
        qkv_bias=True, output_bias=True,
    )  # fmt: skip
    layer = TransformerLayer(
        hidden=32, norm="layernorm", attention=attention,
        feed_forward=FeedForward(ffn_hidden=128, gated=False, bias=True, activation="gelu"),
    )  # fmt: skip
    return Model(
        name="tiny-bert", family="encoder", sequence_length=16, tied=True,
        embedding=Embedding(
            vocabulary=96, hidden=32, positions=16, token_types=2, norm="layernorm"
        ),
        layers=(Run(block=layer, count=layers),),
        head=Head(
            vocabulary=96, hidden=32, norm="none", bias=True, transform=True,
            shared_with_embedding=96 * 32,
        ),
    )  # fmt: skip


def mixtral(*, layers=2, num_experts=4):
    layer = TransformerLayer(
        hidden=32,
        attention=SelfAttention(heads=4, kv_heads=2, head_dim=8),
        feed_forward=Experts(num_experts=num_experts, experts_per_token=2, ffn_hidden=48),
    )
    return Model(
        name="tiny-mixtral", family="decoder", sequence_length=16,
        embedding=Embedding(vocabulary=96, hidden=32),
        layers=(Run(block=layer, count=layers),),
        head=Head(vocabulary=96, hidden=32),
    )  # fmt: skip


def resnet(*, depths=(1, 1, 1, 1), image_size=64, num_classes=10):
    layers = resnet_layers(depths, image_size=image_size)
    return Model(
        name="tiny-resnet", family="convolution", sequence_length=1,
        embedding=Stem(image_size=image_size),
        layers=tuple(Run(block=block, count=1) for block in layers),
        head=ImageHead(size=image_size // 32, num_classes=num_classes),
    )  # fmt: skip


ALL = {"llama": llama, "gpt2": gpt2, "bert": bert, "mixtral": mixtral, "resnet": resnet}
