"""Norms of the residual stream."""

from typing import Any

import torch
from torch import Tensor, nn


class _RootMeanSquare(torch.autograd.Function):
    """Keeps its input and one float32 number per token, as CUDA's fused kernel does.

    PyTorch's CPU path composes the norm of elementwise operations and keeps three float32
    copies of the input instead.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients
        x, weight, scale = ctx.saved_tensors
        normed = x.float() * scale
        wide = gradient.float()
        weight_gradient = (wide * normed).flatten(0, -2).sum(dim=0).to(weight.dtype)
        inner = wide * weight
        inner = inner - normed * (inner * normed).mean(dim=-1, keepdim=True)
        return (inner * scale).to(x.dtype), weight_gradient, None


class RMSNorm(nn.RMSNorm):
    """Zhang and Sennrich, "Root mean square layer normalization", 2019."""

    def forward(self, x: Tensor) -> Tensor:
        """Over the last dimension."""
        if x.is_cuda:
            return super().forward(x)
        return _RootMeanSquare.apply(x, self.weight, self.eps)


def make_norm(kind: str, width: int) -> nn.Module:
    """The norm that a block names."""
    if kind == "rmsnorm":
        return RMSNorm(width, eps=1e-5)
    if kind == "layernorm":
        return nn.LayerNorm(width)
    if kind == "layernorm-no-bias":
        return nn.LayerNorm(width, bias=False)
    return nn.Identity()
