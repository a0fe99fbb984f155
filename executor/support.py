"""Which plans this executor can run, and why not the others. No torch is imported here."""

from collections.abc import Iterator

from planner.layout import Layout
from planner.model import (
    Bottleneck,
    Embedding,
    Experts,
    Head,
    Model,
    SelfAttention,
    TransformerLayer,
)
from planner.plan import Plan
from planner.schedules import SPLIT_BACKWARD, V_SHAPED, why_not

PRECISIONS = ("fp32", "bf16")
OPTIMIZERS = ("adamw", "sgd-momentum", "sgd")


def unsupported(plan: Plan, device: str = "cpu") -> str | None:
    """Why the executor cannot run this plan on such devices, or None when it can.

    Args:
        plan: What should run.
        device: ``cpu`` or ``cuda``; ``any`` asks only what holds for both (a dry run).
    """
    return next(_reasons(plan, device), None)


def _reasons(plan: Plan, device: str) -> Iterator[str]:
    job = plan.job
    if job.precision not in PRECISIONS:
        yield f"precision {job.precision}: the executor runs {' and '.join(PRECISIONS)}"
    if job.optimizer not in OPTIMIZERS:
        yield f"optimizer {job.optimizer}: the executor runs {', '.join(OPTIMIZERS)}"
    if job.lora_rank:
        yield "lora_rank: the executor trains all parameters"
    yield from _model_reasons(plan.model)
    yield from _layout_reasons(plan.model, plan.layout, plan.job.sequence_length)
    if plan.layout.cp > 1 and plan.layout.cp_kind == "ring":
        yield "cp_kind=ring: PyTorch's ring attention takes no plan yet; use cp_kind=ulysses"


def _model_reasons(model: Model) -> Iterator[str]:
    if model.family not in ("decoder", "encoder", "convolution"):
        yield f"family {model.family}: the executor runs decoders, encoders and ResNets"
    for end in (model.embedding, model.head):
        if isinstance(end, Embedding | Head) and (end.projection or end.extra_parameters):
            yield f"{end.kind}: the executor has no projection or extra parameters there"
    for layer in model.layer_kinds:
        if isinstance(layer, TransformerLayer):
            yield from _layer_reasons(layer)


def _layer_reasons(layer: TransformerLayer) -> Iterator[str]:
    attention = layer.attention
    if not isinstance(attention, SelfAttention):
        yield f"{attention.kind} attention: the executor has self-attention only"
        return
    if attention.qk_norm != "none" or attention.sinks or attention.extra_parameters:
        yield "attention: the executor has no norm of queries, sinks or relative positions"
    if layer.cross_attention is not None or layer.extra_parameters:
        yield "the executor has no cross-attention or extra parameters in a layer"
    if layer.attention_norms != 1 or layer.feed_forward_norms not in (1, int(not layer.parallel)):
        yield "the executor has one norm before (or after) attention and one at feed-forward"
    experts = layer.feed_forward
    if isinstance(experts, Experts) and (
        experts.bias or experts.router_bias or experts.shared_ffn_hidden or not experts.gated
    ):
        yield "experts: the executor has gated experts without bias or shared experts"


def _layout_reasons(model: Model, layout: Layout, sequence_length: int) -> Iterator[str]:
    if layout.num_stages > 1:
        reason = why_not(
            layout.schedule, pp=layout.pp, vpp=layout.vpp, microbatches=layout.microbatches
        )
        if reason:
            yield reason
    if layout.pp == 1 and layout.vpp > 1:
        yield f"vpp={layout.vpp}: pp=1 has no pipeline"
    if layout.num_stages > model.num_layers:
        yield f"{layout.num_stages} stages: the model has {model.num_layers} layers"
    counts = layout.stage_layers
    if counts and (len(counts) != layout.num_stages or sum(counts) != model.num_layers):
        yield (
            f"stage_layers {counts}: {layout.num_stages} stages share {model.num_layers} layers"
        )
    if layout.schedule == "dualpipe":
        yield "schedule=dualpipe: the executor runs gpipe, 1f1b, interleaved, zb-h1 and zbv"
    if layout.schedule in SPLIT_BACKWARD and layout.num_stages > 1:
        yield from _split_backward_reasons(model, layout)
    if layout.offload_optimizer:
        yield "offload_optimizer: the executor keeps the optimizer on the device"
    if layout.fused_loss:
        yield "fused_loss: the executor's loss holds whole logits"
    yield from _cut_reasons(model, layout, sequence_length)
    yield from _sharding_reasons(model, layout)


def _split_backward_reasons(model: Model, layout: Layout) -> Iterator[str]:
    name = layout.schedule
    if layout.recompute != "none":
        yield f"recompute={layout.recompute}: {name} splits backward, which cannot recompute"
    if layout.zero_stage >= 2:
        yield f"zero_stage={layout.zero_stage}: FSDP2 cannot follow {name}'s split backward"
    if name in V_SHAPED and model.tied:
        yield f"schedule={name}: the tied matrix would be twice on one rank"


def _cut_reasons(model: Model, layout: Layout, sequence_length: int) -> Iterator[str]:
    """Tensor and context parallelism."""
    if any(isinstance(layer, Bottleneck) for layer in model.layer_kinds):
        for axis in ("tp", "cp", "ep"):
            if getattr(layout, axis) > 1:
                yield f"{axis}={getattr(layout, axis)}: a ResNet is cut by dp and pp only"
        return
    tp, cp = layout.tp, layout.cp
    if sequence_length % (cp * (tp if layout.sequence_parallel else 1)):
        yield f"sequence_length {sequence_length} is not a multiple of the ranks that share it"
    if model.vocabulary % tp:
        yield f"tp={tp}: the vocabulary {model.vocabulary} is not a multiple (no padding)"
    for layer in model.layer_kinds:
        if not isinstance(layer, TransformerLayer):
            continue
        attention = layer.attention
        kv_heads = attention.kv_heads
        if attention.heads % (tp * cp) or kv_heads % (tp * cp):
            yield f"tp={tp}, cp={cp}: {attention.heads} heads, {kv_heads} kv heads do not divide"
        if isinstance(layer.feed_forward, Experts):
            if tp > 1:
                yield f"tp={tp}: the executor cuts experts by ep, not tp"
        elif layer.feed_forward.ffn_hidden % tp:
            yield f"tp={tp}: ffn_hidden {layer.feed_forward.ffn_hidden} is not a multiple"


def _sharding_reasons(model: Model, layout: Layout) -> Iterator[str]:
    """ZeRO and experts."""
    replicas = layout.dp * layout.cp
    if layout.zero_group and layout.zero_stage == 1 and layout.zero_group != replicas:
        yield f"zero_group={layout.zero_group}: ZeRO-1 shards over all {replicas} replicas"
    shard = layout.shard_group
    if layout.zero_stage >= 2 and (shard % layout.cp or replicas % shard):
        yield f"zero_group={shard}: must be a multiple of cp={layout.cp} and divide {replicas}"
    if layout.etp > 1:
        yield f"etp={layout.etp}: the executor does not cut single experts"
    if layout.ep > 1:
        if layout.zero_stage >= 2:
            yield f"ep={layout.ep}: experts run with zero_stage 0 or 1"
        if replicas % layout.ep:
            yield f"ep={layout.ep}: must divide the {replicas} replicas"
        counts = {
            layer.feed_forward.num_experts
            for layer in model.layer_kinds
            if isinstance(layer, TransformerLayer) and isinstance(layer.feed_forward, Experts)
        }
        if not counts or any(count % layout.ep for count in counts):
            yield f"ep={layout.ep}: must divide the number of experts {sorted(counts)}"
