"""Live tensor bytes by category, and their peak: every storage counted once.

Works on real CPU tensors and on fake ones alike, so a dry run and a measured step are counted
by the same code.
"""

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TEMPORARY = "temporaries"
ACTIVATION = "activations"
GATHERED = "gathered"
"""Whole parameters under FSDP2."""


class MemoryTracker(TorchDispatchMode):
    """While entered, follows every storage that an operation makes.

    New storages are temporaries until somebody ``settle``s or ``label``s them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self._sizes: dict[int, tuple[str, int]] = {}
        self._finalizers: dict[int, weakref.finalize] = {}
        self._resize = torch.UntypedStorage.resize_
        self._paused = False

    @property
    def peak_bytes(self) -> int:
        """All categories, at the worst moment since the last ``reset_peak``."""
        return sum(self.peak.values())

    def reset_peak(self) -> None:
        """Start looking for the worst moment anew."""
        self.peak = Counter(self.live)

    def label(self, tensors: Iterable[Tensor], category: str) -> None:
        """Put the storages of these tensors into a category."""
        for tensor in tensors:
            self._follow(_plain(tensor).untyped_storage(), category, relabel=True)

    def settle(self, category: str, *, source: str = TEMPORARY) -> None:
        """Put every temporary (or other ``source``) that is still alive into a category."""
        for key, (old, size) in list(self._sizes.items()):
            if old == source:
                self._sizes[key] = (category, size)
                self._move(old, category, size)

    def __enter__(self) -> "MemoryTracker":
        """Also watch FSDP2, which empties and refills storages without an operation."""
        original = self._resize

        def resize_(storage: torch.UntypedStorage, size: int) -> None:
            original(storage, size)
            self._follow(storage, GATHERED, relabel=True)

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        self._pause_while_propagating()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        """Forget nothing; only stop watching."""
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        ShardingPropagator._propagate_tensor_meta_non_cached = self._propagate  # type: ignore[method-assign]
        super().__exit__(*exception)

    def _pause_while_propagating(self) -> None:
        """DTensor learns global shapes from tensors that never exist: they do not count."""
        self._propagate = ShardingPropagator._propagate_tensor_meta_non_cached

        def propagate(propagator: ShardingPropagator, *args: Any) -> Any:
            self._paused = True
            try:
                return self._propagate(propagator, *args)
            finally:
                self._paused = False

        ShardingPropagator._propagate_tensor_meta_non_cached = propagate  # type: ignore[method-assign, assignment]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and follow what it returns."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor first turns it into operations on local tensors
        result = func(*args, **(kwargs or {}))
        if self._paused:
            return result
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                self._follow(_plain(leaf).untyped_storage(), TEMPORARY)
        return result

    def _follow(
        self, storage: torch.UntypedStorage, category: str, *, relabel: bool = False
    ) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._sizes.get(key)
        if known is None:
            self._finalizers[key] = weakref.finalize(storage, self._forget, key)
            known = (category, 0)
        old, before = known
        new = category if relabel else old
        self._sizes[key] = (new, size)
        self.live[old] -= before
        self.live[new] += size
        if sum(self.live.values()) > self.peak_bytes:
            self.peak = Counter(self.live)

    def _forget(self, key: int) -> None:
        category, size = self._sizes.pop(key)
        self._finalizers.pop(key, None)
        self.live[category] -= size

    def _move(self, old: str, new: str, size: int) -> None:
        self.live[old] -= size
        self.live[new] += size


def _plain(tensor: Tensor) -> Tensor:
    """The tensor whose storage holds the numbers."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    if isinstance(tensor, DTensor):
        return _plain(tensor._local_tensor)
    if isinstance(tensor, AsyncCollectiveTensor):
        return _plain(tensor.elem)
    return tensor
