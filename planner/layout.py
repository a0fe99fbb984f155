"""What may be chosen: how one training step is spread over the ranks of a cluster."""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

Recompute = Literal["none", "selective", "full"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipe"]
Axis = Literal["tp", "cp", "ep", "dp", "pp"]
DEFAULT_AXIS_ORDER: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one training step is spread over the ranks of a cluster.

    ``world_size = dp * tp * pp * cp``. Experts are spread over ``ep`` ranks taken from the
    ``dp * cp`` replicas (and each expert over ``etp`` ranks), so ``ep`` is not a factor of
    the world size.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    vpp: int = 1
    """Chunks of layers (virtual stages) per pipeline rank."""
    sequence_parallel: bool = False
    cp_kind: Literal["ring", "ulysses"] = "ring"
    zero_stage: Literal[0, 1, 2, 3] = 0
    zero_group: int = 0
    """Ranks over which ZeRO shards; 0 for all ``dp * cp`` replicas; fewer is HSDP."""
    recompute: Recompute = "none"
    recompute_layers: int = 0
    """Layers per pipeline rank that full recompute covers; 0 for all of them."""
    microbatch: int = 1
    """Sequences in one microbatch of one replica."""
    microbatches: int = 1
    """Microbatches per replica and optimizer step (gradient accumulation)."""
    schedule: ScheduleName = "1f1b"
    stage_layers: tuple[int, ...] = ()
    """Layers of each (virtual) stage in pipeline order; empty for the framework's own rule."""
    axis_order: tuple[Axis, ...] = DEFAULT_AXIS_ORDER
    """Innermost first: the first axis has neighbouring ranks."""
    fused_loss: bool | None = None
    """Cross entropy without whole logits in memory; None for the framework's habit."""
    offload_optimizer: bool = False

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "microbatch", "microbatches"):
            degree = getattr(self, name)
            if degree < 1:
                raise ValueError(f"{name} must be at least 1, got {degree}")
        if sorted(self.axis_order) != sorted(DEFAULT_AXIS_ORDER):
            raise ValueError(
                f"axis_order must order {', '.join(DEFAULT_AXIS_ORDER)}, got {self.axis_order}"
            )
        if self.zero_group < 0 or self.recompute_layers < 0:
            raise ValueError("zero_group and recompute_layers must not be negative")

    @property
    def world_size(self) -> int:
        """Ranks that the layout needs."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def num_stages(self) -> int:
        """Pipeline stages, virtual ones included."""
        return self.pp * self.vpp

    @property
    def shard_group(self) -> int:
        """Ranks that share one copy of whatever ZeRO shards."""
        return 1 if self.zero_stage == 0 else self.zero_group or self.dp * self.cp

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step."""
        return self.dp * self.microbatch * self.microbatches

    def stride(self, axis: Axis) -> int:
        """Distance in ranks between neighbours of one axis.

        >>> Layout(tp=2, dp=4, pp=2).stride("pp")
        8
        """
        degrees: dict[str, int] = {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp}
        inner = 1
        for name in self.axis_order:
            if name == axis:
                return inner
            inner *= degrees[name]
        raise ValueError(f"axis {axis} is not one of {self.axis_order}")


_SHORT_NAMES = {
    "zero": "zero_stage",
    "sp": "sequence_parallel",
    "mbs": "microbatch",
    "micro_batch": "microbatch",
    "order": "axis_order",
    "split": "stage_layers",
    "zero_shard": "zero_group",
    "offload": "offload_optimizer",
}
_CHOICES = {
    "recompute": ("none", "selective", "full"),
    "schedule": ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipe"),
    "cp_kind": ("ring", "ulysses"),
}


def parse_layout_settings(text: str) -> dict[str, object]:
    """Read ``"tp=4,pp=2,zero=1,sp,recompute=full"`` into keyword arguments of ``Layout``.

    Orders and splits use ``-`` between their parts: ``order=tp-dp-pp-cp``, ``split=9-10-9``.

    Raises:
        ValueError: For an unknown name, or a value that the name cannot take.

    >>> parse_layout_settings("tp=4,zero=1,sp")
    {'tp': 4, 'zero_stage': 1, 'sequence_parallel': True}
    """
    known = {f.name for f in fields(Layout)}
    settings: dict[str, object] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, _, value = part.partition("=")
        name = _SHORT_NAMES.get(key.strip(), key.strip())
        if name not in known:
            raise ValueError(f"layout has no {key.strip()!r}; it knows {', '.join(sorted(known))}")
        settings[name] = _parse_value(name, value.strip())
    return settings


def _parse_value(name: str, value: str) -> object:
    if name in ("sequence_parallel", "offload_optimizer", "fused_loss"):
        return _parse_flag(name, value)
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise ValueError(f"{name} is one of {', '.join(_CHOICES[name])}, got {value!r}")
        return value
    try:
        if name == "stage_layers":
            return tuple(int(v) for v in value.split("-"))
        if name == "axis_order":
            return tuple(value.split("-"))
        number = int(value)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if name == "zero_stage" and number not in (0, 1, 2, 3):
        raise ValueError(f"zero_stage is 0, 1, 2 or 3, got {number}")
    return number


def _parse_flag(name: str, value: str) -> bool:
    truths = {"": True, "1": True, "true": True, "on": True, "yes": True}
    lies = {"0": False, "false": False, "off": False, "no": False}
    if value.lower() not in truths | lies:
        raise ValueError(f"{name} is on or off, got {value!r}")
    return (truths | lies)[value.lower()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A layout that cannot run, and why, with the numbers."""

    layout: Layout
    rule: str
    """Short name of the rule, for counting: ``heads``, ``memory``, ``batch`` ..."""
    reason: str


def format_layout(layout: Layout) -> str:
    """The layout in the letters of ``parse_layout_settings``; defaults are left out.

    >>> format_layout(Layout(dp=4, tp=2, zero_stage=1, sequence_parallel=True))
    'dp=4,tp=2,sp,zero=1'
    """
    short = {"zero_stage": "zero", "sequence_parallel": "sp", "stage_layers": "split",
             "axis_order": "order", "offload_optimizer": "offload"}  # fmt: skip
    parts = []
    for f in fields(Layout):
        value = getattr(layout, f.name)
        if value == f.default and f.name != "dp":
            continue
        name = short.get(f.name, f.name)
        if value is True:
            parts.append(name)
        elif isinstance(value, tuple):
            parts.append(f"{name}={'-'.join(str(v) for v in value)}")
        else:
            parts.append(f"{name}={'off' if value is False else value}")
    return ",".join(parts)
