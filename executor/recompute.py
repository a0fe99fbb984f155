"""Activation recomputation by ``torch.utils.checkpoint``.

Reference: Chen et al., "Training deep nets with sublinear memory cost", 2016; selective:
Korthikanti et al. 2022, section 5 (attention's core alone).
"""

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)

from executor.context_parallel import ExchangedAttention
from executor.networks import Chain
from executor.networks.transformer import TransformerLayer
from planner.layout import Layout


def recompute(chain: Chain, layout: Layout) -> None:
    """Wrap what the layout recomputes in backward: whole layers, or attention's core."""
    if layout.recompute == "full":
        names = list(chain.layers)
        per_stage = -(-layout.recompute_layers // layout.vpp)
        for name in names[:per_stage] if layout.recompute_layers else names:
            chain.layers[name] = _wrapped(chain.layers[name])
    elif layout.recompute == "selective":
        for layer in chain.layers.values():
            if isinstance(layer, TransformerLayer):
                core = layer.attention.core
                if isinstance(core, ExchangedAttention):
                    core.core = _wrapped(core.core)  # without exchanging heads once more
                else:
                    layer.attention.core = _wrapped(core)


def _wrapped(module):
    return checkpoint_wrapper(
        module, checkpoint_impl=CheckpointImpl.NO_REENTRANT, preserve_rng_state=False
    )
