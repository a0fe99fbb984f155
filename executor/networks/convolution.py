"""ResNet-50 as a chain of blocks (He et al., "Deep residual learning", 2016; stride on 3x3)."""

import torch.nn.functional as F
from torch import Tensor, nn

from planner.model import Bottleneck as BottleneckBlock
from planner.model import ImageHead as ImageHeadBlock
from planner.model import Stem as StemBlock


class ConvolutionNorm(nn.Module):
    """A convolution and its batch norm, over the statistics of the microbatch alone."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(
            in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=False
        )
        self.norm = nn.BatchNorm2d(out_channels, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        """Without the activation."""
        return self.norm(self.convolution(x))


class Stem(nn.Module):
    """7x7 convolution and 3x3 max pool."""

    def __init__(self, block: StemBlock) -> None:
        super().__init__()
        self.first = ConvolutionNorm(3, block.hidden, 7, 2)

    def forward(self, images: Tensor) -> Tensor:
        """From (batch, 3, side, side) to a quarter of the side."""
        return F.max_pool2d(F.relu(self.first(images), inplace=True), 3, stride=2, padding=1)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a residual."""

    def __init__(self, block: BottleneckBlock) -> None:
        super().__init__()
        self.reduce = ConvolutionNorm(block.in_channels, block.width, 1)
        self.middle = ConvolutionNorm(block.width, block.width, 3, block.stride)
        self.expand = ConvolutionNorm(block.width, block.hidden, 1)
        if block.stride != 1 or block.in_channels != block.hidden:
            self.project: nn.Module | None = ConvolutionNorm(
                block.in_channels, block.hidden, 1, block.stride
            )
        else:
            self.project = None

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        kept = x if self.project is None else self.project(x)
        x = F.relu(self.reduce(x), inplace=True)
        x = F.relu(self.middle(x), inplace=True)
        return F.relu(self.expand(x).add_(kept), inplace=True)


class ImageHead(nn.Module):
    """Global average pool, linear classifier, cross entropy averaged over images."""

    def __init__(self, block: ImageHeadBlock) -> None:
        super().__init__()
        self.output = nn.Linear(block.hidden, block.num_classes)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of the images that this rank sees."""
        return F.cross_entropy(self.output(x.mean(dim=(2, 3))).float(), targets)
