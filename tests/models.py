"""Small and known models for tests."""

from planner.model import Embedding, FeedForward, Head, Model, Run, SelfAttention, TransformerLayer


def llama(
    *, hidden=4096, heads=32, kv_heads=None, ffn=11008, layers=32, vocabulary=32000, length=2048
) -> Model:
    """Llama-7B (Touvron et al. 2023, table 2), or one of other dimensions."""
    layer = TransformerLayer(
        hidden=hidden,
        attention=SelfAttention(heads=heads, kv_heads=kv_heads or heads, head_dim=hidden // heads),
        feed_forward=FeedForward(ffn_hidden=ffn),
    )
    return Model(
        name=f"llama-{layers}x{hidden}",
        family="decoder",
        embedding=Embedding(vocabulary=vocabulary, hidden=hidden),
        layers=(Run(block=layer, count=layers),),
        head=Head(vocabulary=vocabulary, hidden=hidden),
        sequence_length=length,
    )
