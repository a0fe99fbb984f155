"""A pipeline stage that holds receive buffers only while a microbatch needs them.

PyTorch makes one buffer per microbatch and direction when a schedule starts and keeps them
for good: with a batch of millions of tokens that is tens of gigabytes, whatever the schedule.
Here a buffer is made when its receive is posted and dropped after its backward.
"""

from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.pipelining.stage import _make_tensor_from_meta, _RecvInfo

Received = tuple[_RecvInfo, ...]


class Stage(PipelineStage):
    """``PipelineStage`` with buffers on demand; shapes are said beforehand (static)."""

    def use_static_shapes(self) -> None:
        """What enters and leaves was given: the ranks need not vote to find out by running."""
        self._inference_mode = InferenceMode.STATIC

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        super()._setup_forward_recv_info(1, has_backward)
        first = self.args_recv_info[0]
        self.args_recv_info = {chunk: _without_buffers(first) for chunk in range(num_microbatches)}

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        super()._setup_backward_recv_info(1)
        self.chunks = num_microbatches
        first = self.grad_recv_info[0]
        self.grad_recv_info = {chunk: _without_buffers(first) for chunk in range(num_microbatches)}

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of one microbatch's input, into buffers made now."""
        self._make_buffers(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of one microbatch's gradient, into buffers made now."""
        if self.has_backward and not self.is_last:
            self._make_buffers(self.grad_recv_info[bwd_chunk_id])
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def backward_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **named: Any) -> Any:
        """Backward of one microbatch; nothing of it is received again."""
        result = super().backward_one_chunk(bwd_chunk_id, *arguments, **named)
        for received in (self.args_recv_info, self.grad_recv_info):
            for info in received.get(bwd_chunk_id, ()):
                info.buffer = None
        return result

    def _make_buffers(self, received: Received) -> None:
        for info in received:
            if info.buffer is None and info.tensor_meta is not None and not info.is_root_arg:
                info.buffer = _make_tensor_from_meta(info.tensor_meta, self.device)


def _without_buffers(received: Received) -> Received:
    return tuple(
        _RecvInfo(
            input_name=info.input_name, source=info.source, buffer=None,
            tensor_meta=info.tensor_meta, is_root_arg=info.is_root_arg,
        )
        for info in received
    )  # fmt: skip
