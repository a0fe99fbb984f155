"""What a training framework does by habit: data, one TOML file each, with its source."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from planner.job import Job
from planner.layout import Layout
from planner.ops import Implementation


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Habits that decide bytes and overlap. Bytes are per parameter unless named otherwise."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: str
    source: str = ""

    # Model states
    gradient_bytes: int = 4
    """Of the buffer that accumulates gradients, under mixed precision."""
    fp16_gradient_bytes: int = -1
    """The same under fp16; -1 for as many as above."""
    step_gradient_bytes: int = 0
    """Of the float32 gradients that the optimizer makes under fp16 and drops after its step."""
    partition_gradient_bytes: int = 0
    """Of a copy of the gradients of a rank's own ZeRO share (DeepSpeed)."""
    master_bytes: int = 4
    """Of the float32 copy of the parameters, under mixed precision; 0 if there is none."""
    moment_bytes: int = 4
    """Of each of the optimizer's moments; 2 where they follow the parameters' 16-bit format."""
    fsdp_master_is_parameter: bool = False
    """The ZeRO-3 shard itself is float32 and is cast as it is gathered (FSDP2)."""
    zero2_shards_gradients: bool = True
    transient_gradient_bytes: int = 0
    """Of a second, short-lived gradient per parameter (autograd's own, before it is added)."""
    fuses_weight_gradients: bool = False
    """Weight gradients are added to the sums inside their own matrix product (Megatron)."""
    fsdp_reduce_bytes: int = 0
    """Of the gradients that FSDP reduces; 0 for the width of the sums."""
    receives_all_microbatches: bool = False
    """A pipeline rank has a receive buffer for every microbatch (torch.distributed.pipelining)."""
    keeps_sent_activations: bool = True
    """A stage's output stays until its backward; Megatron frees its data once it is sent."""
    vocabulary_multiple: int = 1
    """The vocabulary is padded to a multiple of this times ``tp``."""
    stage_rule: Literal["balanced", "even", "nanotron", "torchtitan"] = "balanced"
    takes_uneven_stages: bool = True
    """It can be told how many layers each stage gets, whatever its own rule is."""
    counts_both_embeddings: bool = False
    """Tied embeddings have a second copy on the last stage when ``pp > 1``."""

    # Kernels
    fused_attention: bool = True
    attention_library: Literal["native", "flash2", "flash1"] = "native"
    """Of fused attention: kernels made for the architecture (cuDNN, FlashAttention-3), the
    portable FlashAttention-2, or the first FlashAttention and its Triton version."""
    selective_recompute: Literal["core_attention", "half"] = "core_attention"
    """What selective recomputation runs again: the attention core (Megatron), or about half
    of a layer (torchtitan: every second matrix product, or every second layer)."""
    elementwise_traffic: float = 1.0
    """Bytes that norms, activations, dropout and loss really move over those of kernels that
    read each input and write each output once: eager programs cast, copy and split."""
    autocast_traffic: float = 1.0
    """The same again for transformers in 16 bits: automatic mixed precision runs norms,
    softmax, activations and loss in 32 bits, with casts before and after."""
    separate_accumulation: bool = False
    """Weight gradients are written and then added to a float32 buffer by a pass of their own."""
    fused_quantise: bool = False
    """Casts to 8 bits are part of the norm or activation before them (Transformer Engine)."""
    dropout: bool = False
    fused_activation: bool = False
    fused_norm: bool = True
    fused_loss: bool = False
    saves_gathered_input: bool = True
    gathers_expert_tokens: bool = False
    logit_bytes: float = 12.0
    """Live per logit at the worst operator of the loss: torch's cross entropy over a float32
    copy keeps log-probabilities and makes two float32 gradients in backward."""
    sharded_logit_bytes: float = 0.0
    """The same where tensor parallelism cuts the vocabulary; 0 for as many as whole."""
    lingering_logit_bytes: float = 0.0
    """Of the last microbatch's logits, which live until the next ones replace them."""
    saved_logit_bytes: float = 4.0
    """Kept from the loss's forward to its backward."""
    idle_logit_bytes: float = 0.0
    """Of the 16-bit logits' segment, which lies idle at that operator: too large to be filled
    with anything else, it counts as reserved but not as allocated."""
    fused_logit_bytes: float = 4.0
    """The same when the loss is fused: 16-bit logits and their gradient."""

    selective: Literal["core-attention", "save-matmuls", "every-second-layer"] = "core-attention"
    """What selective recompute does over: the scores of unfused attention (Megatron), all but
    attention and every second matrix product (torchtitan), or every second layer."""

    # Buffers, bytes in all
    gradient_bucket_bytes: int = 0
    """Of gradient buckets beside the gradients themselves."""
    gathered_layers: int = 2
    """ZeRO-3: layers whose whole parameters are held at once (current and prefetched)."""
    context_bytes: int = 590_558_003
    """Device context and libraries: 0.55 GiB (stas00/ml-engineering, training/performance)."""
    pair_communicator_bytes: int = 544_000_000
    """Of one NCCL communicator of two ranks (NVIDIA/nccl issue 964)."""
    communicator_bytes: int = 688_000_000
    """The same of three ranks and more."""
    extra_communicators: int = 0
    """Beside one per axis: whole-model, embedding and world groups of Megatron."""
    fragmentation: float = 0.07
    """Reserved over allocated, less one: 0.064 (SimuMax), 0.07 (ROCm/Megatron-LM issue 162),
    0.08 (Mist)."""

    workspace_bytes: int = 0
    """Of the framework's own kernel library (Transformer Engine), inside ``allocated``."""
    deterministic: bool = False
    """cuBLAS is told to use eight 4 MiB workspaces (``CUBLAS_WORKSPACE_CONFIG=:4096:8``)."""

    # Time
    overlaps_gradient_reduction: bool = True
    overlaps_parameter_gather: bool = True
    overlaps_tensor_parallel: float = 0.0
    """Share of tensor-parallel communication hidden behind its own GEMM."""
    overlaps_tensor_backward: float = 0.0
    """Share of what is left of it in backward, hidden behind the weight gradient's GEMM
    (Megatron's asynchronous all-reduce, Narayanan et al. 2021 and later)."""
    overlaps_expert_parallel: float = 0.0
    """Share of the expert exchange hidden behind other work, or saved by sending a token once
    to a node instead of once to each expert (DeepEP)."""
    overlaps_pipeline: bool = False
    """Sends between stages go on behind compute, where ranks hold several stages."""
    reduced_gradient_bytes: int = 0
    """Of one gradient as it travels between replicas; 0 for ``gradient_bytes``."""
    zero1_scatters_gradients: bool = True
    """ZeRO-1 reduces each gradient to its owner; False sums all of them everywhere."""
    gathers_per_layer: int = 1
    """Collectives in which ZeRO-3 gathers (or reduces) one layer."""
    reduces_every_microbatch: bool = False
    """Gradients are reduced after every microbatch (ZeRO-2/3), not once per step."""
    host_seconds_per_layer: float = 0.0
    """Python and launch time of one layer and pass, which hides small kernels."""
    host_seconds_per_step: float = 0.0
    captures_graphs: bool = False
    """Passes are replayed from captured graphs: the host issues nothing."""

    # What it can run
    backend: Literal["any", "torch", "megatron", "deepspeed", "nanotron"] = "torch"
    """Whose rules the pipeline schedules follow (``planner.schedules.why_not``)."""
    largest_zero_stage: int = 3
    largest_zero_stage_with_pipeline: int = 3
    """DeepSpeed and Megatron stop at 1: sharded gradients and a pipeline do not go together."""
    shards_in_groups: bool = True
    """ZeRO may shard over fewer ranks than all replicas (HSDP)."""
    replicates_kv_heads: bool = False
    """``tp`` may exceed the key and value heads: each is then held by several ranks."""
    runs_tensor_parallel: bool = True
    runs_pipeline: bool = True
    runs_ring_attention: bool = True
    runs_ulysses: bool = True
    runs_expert_parallel: bool = True
    offloads_optimizer: bool = True
    offloads_with_pipeline: bool = True
    chooses_fused_loss: bool = True
    """The fused loss is a switch; otherwise the habit above is the only way."""
    recomputes_some_layers: bool = True
    """Full recompute of only some of a stage's layers."""
    ties_across_stages: Literal["copies", "refuses"] = "copies"
    """Tied embeddings of a pipelined model: a second copy on the last stage, or an error."""

    def implementation(self, job: Job, *, fused_loss: bool | None = None) -> Implementation:
        """How this framework's kernels keep and move bytes in this job."""
        return Implementation(
            activation_bytes=job.numbers.activation_bytes,
            fused_attention=self.fused_attention,
            dropout=self.dropout,
            fused_activation=self.fused_activation,
            saves_gathered_input=self.saves_gathered_input,
            gathers_expert_tokens=self.gathers_expert_tokens,
            fused_loss=self.fused_loss if fused_loss is None else fused_loss,
            fused_norm=self.fused_norm,
        )

    def uses_fused_loss(self, layout: Layout) -> bool:
        """Whether this layout's loss is fused: its own wish, or the framework's habit."""
        return self.fused_loss if layout.fused_loss is None else layout.fused_loss
