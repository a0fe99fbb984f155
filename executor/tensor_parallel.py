"""Tensor parallelism with DTensor's styles, with and without sequence parallelism.

Reference: Shoeybi et al., "Megatron-LM", 2019 (columns, then rows); Korthikanti et al.,
"Reducing activation recomputation in large transformer models", 2022, section 4.2 (the stream
between them cut along the sequence).
"""

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from executor.networks import Chain
from executor.networks.ends import Embedding, Head
from executor.networks.transformer import FeedForward, TransformerLayer

SEQUENCE_DIM = 1


def cut_matrices(chain: Chain, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Turn the chain's matrices into DTensors over ``mesh``; the stream stays a plain tensor."""
    stream: Placement = Shard(SEQUENCE_DIM) if sequence_parallel else Replicate()
    plan: dict[str, ParallelStyle | list[ParallelStyle]] = {}
    if isinstance(chain.embedding, Embedding):
        plan |= _prefixed("embedding", _embedding_plan(chain.embedding, stream))
    for name, layer in chain.layers.items():
        assert isinstance(layer, TransformerLayer)
        plan |= _prefixed(f"layers.{name}", _layer_plan(layer, stream))
    if isinstance(chain.head, Head):
        plan |= _prefixed("head", _head_plan(chain.head, stream))
        chain.head.register_forward_hook(_whole_loss)
    for path, style in plan.items():
        module = chain.get_submodule(path) if path else chain
        parallelize_module(module, mesh, style, src_data_rank=None)  # type: ignore[arg-type]
    chain.tie()


def shard_losses() -> None:
    """Let cross entropy run on logits cut along the vocabulary, from now on."""
    loss_parallel().__enter__()


def _prefixed(prefix: str, plan: dict[str, ParallelStyle]) -> dict[str, Any]:
    return {f"{prefix}.{name}" if name else prefix: style for name, style in plan.items()}


def _embedding_plan(embedding: Embedding, stream: Placement) -> dict[str, ParallelStyle]:
    """The vocabulary is cut; positions and a norm, if any, need the whole sum first."""
    plain = embedding.positions is None and embedding.types is None
    if plain and isinstance(embedding.norm, nn.Identity):
        return {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)}
    plan: dict[str, ParallelStyle] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    }
    if stream != Replicate():
        plan[""] = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=stream)
    return plan


def _layer_plan(layer: TransformerLayer, stream: Placement) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "attention": _gathered(stream),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(output_layouts=stream),
    }
    assert isinstance(layer.feed_forward, FeedForward)
    plan |= {
        "feed_forward": _gathered(stream),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=stream),
    }
    if layer.feed_forward.gate is not None:
        plan["feed_forward.gate"] = ColwiseParallel()
    names = ["attention_norm", *(["feed_forward_norm"] if layer.feed_forward_norm else [])]
    return plan | _on_the_shard(names, stream)


def _head_plan(head: Head, stream: Placement) -> dict[str, ParallelStyle]:
    names = [] if isinstance(head.norm, nn.Identity) else ["norm"]
    if head.transform is not None:
        names += ["transform", "transform_norm"]
    output = ColwiseParallel(
        input_layouts=stream, output_layouts=Shard(-1), use_local_output=False
    )
    return {"output": output} | _on_the_shard(names, stream)


def _gathered(stream: Placement) -> ParallelStyle:
    """Gather the input once for all matrices that read it, and sum its gradient once."""
    return PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),))


def _on_the_shard(names: list[str], stream: Placement) -> dict[str, ParallelStyle]:
    """Modules with replicated weights that see a slice of the sequence (or all of it)."""
    if stream == Replicate():
        return {}
    return {
        name: SequenceParallel(sequence_dim=SEQUENCE_DIM, use_local_output=True) for name in names
    }


def _whole_loss(module: nn.Module, inputs: Any, loss: Tensor) -> Tensor:
    return loss.to_local() if isinstance(loss, DTensor) else loss
