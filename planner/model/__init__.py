"""Models as chains of blocks, each block a list of operations."""

from planner.model.attention import CrossAttention, LatentAttention, SelfAttention
from planner.model.convolution import Bottleneck, ImageHead, Stem, resnet_layers
from planner.model.core import Block, Layer, Model, Run
from planner.model.ends import Embedding, Head
from planner.model.feed_forward import Experts, FeedForward
from planner.model.linear_attention import LinearAttention
from planner.model.transformer import TransformerLayer

__all__ = [
    "Block",
    "Bottleneck",
    "CrossAttention",
    "Embedding",
    "Experts",
    "FeedForward",
    "Head",
    "ImageHead",
    "LatentAttention",
    "Layer",
    "LinearAttention",
    "Model",
    "Run",
    "SelfAttention",
    "Stem",
    "TransformerLayer",
    "resnet_layers",
]
