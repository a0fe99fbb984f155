"""A ResNet as a chain: stem, bottleneck blocks, classifier (He et al. 2016)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from planner.ops import Array, Convolution, Gemm, Implementation, MemoryBound, Op, Saved, Shard


def _convolution_and_norm(
    name: str,
    *,
    batch: Array,
    in_channels: int,
    out_channels: int,
    size: int,
    kernel: int,
    stride: int,
    implementation: Implementation,
    activated: bool = True,
    keeps_input: bool = True,
) -> list[Op]:
    """A convolution, its batch norm, and a ReLU in place; ``size`` is the output's side.

    Of two convolutions that read the same tensor one keeps it.
    """
    width = implementation.activation_bytes
    output = batch * size * size * out_channels
    source = batch * (size * stride) ** 2 * in_channels
    kept = Saved(name=f"{name} input", elements=source, bytes_per_element=width)
    return [
        Convolution(
            name=name, group="convolution", batch=batch, in_channels=in_channels,
            out_channels=out_channels, height=size, width=size, kernel=kernel, stride=stride,
            parameters=kernel**2 * in_channels * out_channels,
            saved=(kept,) if keeps_input else (),
            output_elements=output,
        ),
        MemoryBound(
            name=f"{name} batch norm", group="norm", parameters=2 * out_channels,
            tp_replicated=True,
            forward_bytes=(3 + 2 * activated) * output * width,
            backward_bytes=(5 + 3 * activated) * output * width,
            forward_launches=2 + activated, backward_launches=2 + activated,
            saved=(Saved(name=f"{name} norm input", elements=output, bytes_per_element=width),),
            output_elements=output,
        ),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Stem:
    """7x7 convolution and 3x3 max pool: 224 -> 56."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["stem"] = "stem"
    image_size: int = 224
    hidden: int = 64
    """Output channels."""

    active_expert_share: ClassVar[float] = 1.0

    def ops(self, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """One image is one sample of the microbatch."""
        half = self.image_size // 2
        ops = _convolution_and_norm(
            "stem", batch=shard.microbatch, in_channels=3, out_channels=self.hidden,
            size=half, kernel=7, stride=2, implementation=implementation,
        )  # fmt: skip
        pooled = shard.microbatch * (half // 2) ** 2 * self.hidden
        whole = shard.microbatch * half**2 * self.hidden
        pool = MemoryBound(
            name="max pool", group="convolution", output_elements=pooled,
            forward_bytes=(whole + pooled) * implementation.activation_bytes + 8 * pooled,
            backward_bytes=(whole + pooled) * implementation.activation_bytes + 8 * pooled,
            saved=(
                Saved(name="max pool input", elements=whole,
                      bytes_per_element=implementation.activation_bytes),
                Saved(name="max pool indices", elements=pooled, bytes_per_element=8),
            ),
        )  # fmt: skip
        return (*ops, pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """1x1, 3x3 and 1x1 convolutions around a residual; stride on the 3x3 (v1.5)."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["bottleneck"] = "bottleneck"
    in_channels: int
    width: int
    size: int
    """Side of the output image."""
    stride: int = 1

    active_expert_share: ClassVar[float] = 1.0
    expansion: ClassVar[int] = 4

    @property
    def hidden(self) -> int:
        """Output channels."""
        return self.width * self.expansion

    def ops(self, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """Three convolutions, and a projection where the residual changes shape."""
        batch = shard.microbatch
        projected = self.stride != 1 or self.in_channels != self.hidden
        shapes = [
            ("reduce", self.in_channels, self.width, self.size * self.stride, 1, 1, True),
            ("middle", self.width, self.width, self.size, 3, self.stride, True),
            ("expand", self.width, self.hidden, self.size, 1, 1, False),
        ]
        if projected:
            shapes.append(
                ("project", self.in_channels, self.hidden, self.size, 1, self.stride, False)
            )
        ops: list[Op] = []
        for name, channels, out, size, kernel, stride, activated in shapes:
            ops += _convolution_and_norm(
                name, batch=batch, in_channels=channels, out_channels=out, size=size,
                kernel=kernel, stride=stride, implementation=implementation, activated=activated,
                keeps_input=name != "project",
            )  # fmt: skip
        output = batch * self.size**2 * self.hidden
        bytes_moved = 5 * output * implementation.activation_bytes
        ops.append(
            MemoryBound(
                name="residual and relu", group="residual", output_elements=output,
                forward_bytes=bytes_moved, backward_bytes=bytes_moved,
                forward_launches=2, backward_launches=2,
            )
        )  # fmt: skip
        return tuple(ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHead:
    """Global average pool, linear classifier, cross entropy."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["image-head"] = "image-head"
    hidden: int = 2048
    size: int = 7
    num_classes: int = 1000

    active_expert_share: ClassVar[float] = 1.0

    def ops(self, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """Small: a mean, a GEMM of batch rows, a softmax."""
        batch = shard.microbatch
        width = implementation.activation_bytes
        pooled = batch * self.hidden
        return (
            MemoryBound(
                name="average pool", group="head", output_elements=pooled,
                forward_bytes=pooled * self.size**2 * width,
                backward_bytes=pooled * self.size**2 * width,
            ),
            Gemm(
                name="classifier", group="head", m=batch, n=self.num_classes, k=self.hidden,
                parameters=(self.hidden + 1) * self.num_classes,
                saved=(Saved(name="classifier input", elements=pooled, bytes_per_element=width),),
                output_elements=batch * self.num_classes,
            ),
            MemoryBound(
                name="cross entropy", group="loss",
                forward_bytes=batch * self.num_classes * 12.0,
                backward_bytes=batch * self.num_classes * 12.0,
                saved=(Saved(name="log-probabilities", elements=batch * self.num_classes,
                             bytes_per_element=4),),
            ),
        )  # fmt: skip


def resnet_layers(depths: tuple[int, ...], *, image_size: int) -> tuple[Bottleneck, ...]:
    """The bottlenecks of a ResNet; ``(3, 4, 6, 3)`` is ResNet-50."""
    layers, channels = [], 64
    for group, depth in enumerate(depths):
        width, size = 64 * 2**group, image_size // 4 // 2**group
        for index in range(depth):
            stride = 2 if group > 0 and index == 0 else 1
            block = Bottleneck(in_channels=channels, width=width, size=size, stride=stride)
            layers.append(block)
            channels = block.hidden
    return tuple(layers)
