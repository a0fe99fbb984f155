"""The presets: facts read from TOML files, converted to base units once, at this door.

A preset is found by its file name, by one of the ``aliases`` in the file, or by a path to a
TOML file of the same form. Names ignore case and take ``_`` for ``-``. The keys of the files
carry human units (GiB, GB/s, TFLOP/s, microseconds); a key that is not known is refused, so
that a misspelt one cannot be ignored in silence.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from planner.box import one_box
from planner.cluster import Cluster, Device, DeviceKind, FromMemory, LinkKind, Tier
from planner.framework import Framework
from planner.tables import Key, build, keys_of, read_table
from planner.units import GB, GIB, MIB, MICROSECOND, TERA

if TYPE_CHECKING:
    from planner.model.core import Model

KINDS = ("models", "devices", "clusters", "frameworks", "calibrations", "architectures")
LARGEST_PRESET_BYTES = 4 * MIB  # a preset is a page of text: more is a wrong file


_TEXTS = {
    "from_memory": Key("from_memory", str, choices=get_args(FromMemory)),
    **{name: Key(name, str) for name in ("name", "source", "notes")},
}
_LINK = Key("link", str, choices=get_args(LinkKind))
_DEVICE_KEYS = {
    **_TEXTS,
    "kind": Key("kind", str, choices=get_args(DeviceKind)),
    "vendor": Key("vendor", str),
    "architecture": Key("architecture", str),
    "link": _LINK,
    "compute_capability": Key("compute_capability", str),
    "memory_bytes": Key("memory_bytes", int),
    "memory_gib": Key("memory_bytes", int, GIB),
    "memory_gigabytes_per_second": Key("memory_bytes_per_second", float, GB),
    "multiprocessors": Key("multiprocessors", int),
    "l2_mib": Key("l2_bytes", int, MIB),
    "link_gigabytes_per_second": Key("link_bytes_per_second", float, GB),
    "link_domain": Key("link_domain", int),
    "pcie_gigabytes_per_second": Key("pcie_bytes_per_second", float, GB),
    "watts": Key("watts", float),
}
_TIER_KEYS = {
    "name": Key("name", str),
    "link": _LINK,
    "generation": Key("generation", str),
    "size": Key("size", int),
    "switched": Key("switched", bool),
    "gigabytes_per_second": Key("bytes_per_second", float, GB),
    "peer_gigabytes_per_second": Key("peer_bytes_per_second", float, GB),
    "uplink_gigabytes_per_second": Key("uplink_bytes_per_second", float, GB),
    "latency_microseconds": Key("latency_seconds", float, MICROSECOND),
}
_CLUSTER_KEYS = {
    **_TEXTS,
    "price_source": Key("price_source", str),
    "devices_per_host": Key("devices_per_host", int),
    "num_devices": Key("num_devices", int),
    "host_memory_gib": Key("host_memory_bytes", int, GIB),
    "usd_per_device_hour": Key("usd_per_device_hour", float),
    "compute_rate": Key("compute_rate", float),
    "pipeline_stall_microseconds": Key("pipeline_stall_seconds", float, MICROSECOND),
    "pipeline_stall_rank_microseconds": Key("pipeline_stall_rank_seconds", float, MICROSECOND),
    "pipeline_timeout_seconds": Key("pipeline_timeout_seconds", float),
    "pipeline_timeout_nodes": Key("pipeline_timeout_nodes", int),
    "fabric_degradation_exponent": Key("fabric_degradation_exponent", float),
}


def list_presets(kind: str) -> list[str]:
    """Names of all presets of one kind, in order.

    >>> "a100-80g-8x200g" in list_presets("clusters")
    True
    """
    return sorted(entry.name.removesuffix(".toml") for entry in _entries(kind))


def load_preset(kind: str, name_or_path: str) -> dict[str, object]:
    """The table of one preset as written in its file, less its ``aliases``.

    Args:
        kind: One of ``KINDS``, the folder under ``planner/presets``.
        name_or_path: A preset's name or alias, or a path to a TOML file.

    Raises:
        ValueError: If there is no such preset (the nearest names are offered) or the file
            cannot be read as TOML.
    """
    if _is_path(name_or_path):
        return _read_toml(Path(name_or_path).expanduser())
    wanted = _normal(name_or_path)
    for entry in _entries(kind):
        if entry.name == f"{wanted}.toml":
            return _read_toml(entry)
    for entry in _entries(kind):
        # Reading a hundred pages is quick, parsing them is not: look for the word first.
        if f'"{wanted}"' in entry.read_text(encoding="utf-8"):
            aliases = tomllib.loads(entry.read_text(encoding="utf-8")).get("aliases", [])
            if wanted in aliases:
                return _read_toml(entry)
    raise ValueError(_unknown(kind, name_or_path))


def load_device(name_or_path: str) -> Device:
    """A device by name, alias or path.

    Raises:
        ValueError: With one line naming the file, the key and the rule.

    >>> load_device("a100-80g").peak_flops_per_second("bf16") / 1e12
    312.0
    """
    return read_device(load_preset("devices", name_or_path), where=f"device {name_or_path}")


def load_cluster(name_or_path: str) -> Cluster:
    """A cluster by name, alias or path; ``DEVICE:COUNT`` is one box of that many devices.

    Raises:
        ValueError: With one line naming the file, the key and the rule.

    >>> cluster = load_cluster("a100-80g-8x200g")
    >>> cluster.devices_per_node, cluster.tiers[1].bytes_per_second / 1e9
    (8, 25.0)
    >>> [tier.size for tier in load_cluster("rtx4090:2").tiers]
    [2]
    """
    device_name, colon, count = name_or_path.rpartition(":")
    if colon and not _is_path(name_or_path):
        if not count.isdigit() or int(count) < 1:
            raise ValueError(f"DEVICE:COUNT needs a count of 1 or more, got {count!r}")
        return one_box(load_device(device_name), int(count), name=_normal(name_or_path))
    return read_cluster(load_preset("clusters", name_or_path), where=f"cluster {name_or_path}")


def load_framework(name_or_path: str) -> Framework:
    """A framework profile by name, alias or path; its keys are the fields of ``Framework``.

    Raises:
        ValueError: With one line naming the file, the key and the rule.
    """
    where = f"framework {name_or_path}"
    table = load_preset("frameworks", name_or_path)
    return build(Framework, read_table(table, keys_of(Framework), where=where), where=where)


def load_model(name_or_path: str) -> "Model":
    """A model by preset name or alias, or by path to a ``config.json``, its folder or a preset.

    Of an ``organisation/name`` that is no path the last part is looked up among the presets.

    Raises:
        ValueError: With one line naming the file, the key and the rule.

    >>> load_model("llama-7b").total_parameters
    6738415616
    """
    from planner.model.huggingface import read_model
    from planner.model.preset import read_model_preset

    path = Path(name_or_path).expanduser()
    if name_or_path.endswith(".toml"):
        return read_model_preset(load_preset("models", name_or_path), where=name_or_path)
    if path.exists() and (_is_path(name_or_path) or not _has_preset("models", name_or_path)):
        return read_model(path)
    name = name_or_path
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) and not name.endswith(".json"):
        name = name.partition("/")[2]
    if _is_path(name):
        raise ValueError(f"cannot read {name}: no such file or folder")
    return read_model_preset(load_preset("models", name), where=f"model {name}")


def read_device(table: Mapping[str, object], *, where: str) -> Device:
    """A device from the table of a preset file.

    Raises:
        ValueError: For a missing, unknown or ill-typed key.
    """
    table = dict(table)
    rates = table.pop("dense_teraflops_per_second", None)
    if not isinstance(rates, Mapping):
        raise ValueError(f"{where}: needs a table dense_teraflops_per_second with rates by dtype")
    known = {
        dtype: Key(dtype, float, TERA)
        for dtype in (["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"])
    }
    flops = read_table(rates, known, where=f"{where}: dense_teraflops_per_second")
    values = read_table(table, _DEVICE_KEYS, where=where)
    return build(Device, {**values, "flops_per_second": flops}, where=where)


def read_cluster(table: Mapping[str, object], *, where: str) -> Cluster:
    """A cluster from the table of a preset file; ``device`` is a preset's name or a table.

    Raises:
        ValueError: For a missing, unknown or ill-typed key.
    """
    table = dict(table)
    device, tiers = table.pop("device", None), table.pop("tiers", None)
    if not isinstance(tiers, list) or not all(isinstance(t, Mapping) for t in tiers):
        raise ValueError(f"{where}: needs at least one [[tiers]] table, innermost first")
    if isinstance(device, str):
        inner = load_device(device)
    elif isinstance(device, Mapping):
        inner = read_device(device, where=f"{where}: device")
    else:
        raise ValueError(f"{where}: device must name a device preset or be a table")
    values = read_table(table, _CLUSTER_KEYS, where=where)
    values["device"] = inner
    values["tiers"] = tuple(
        build(Tier, read_table(t, _TIER_KEYS, where=f"{where}: tier {i}"), where=where)
        for i, t in enumerate(tiers)
    )
    return build(Cluster, values, where=where)


def _has_preset(kind: str, name: str) -> bool:
    try:
        load_preset(kind, name)
    except ValueError:
        return False
    return True


def _entries(kind: str) -> list[Traversable]:
    if kind not in KINDS:
        raise ValueError(f"there are presets of {', '.join(KINDS)}, not of {kind!r}")
    folder = files("planner").joinpath("presets", kind)
    if not folder.is_dir():
        return []
    return [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]


def _is_path(text: str) -> bool:
    return text.endswith((".toml", ".json")) or "/" in text or "\\" in text


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _read_toml(entry: Traversable | Path) -> dict[str, object]:
    try:
        if isinstance(entry, Path) and entry.stat().st_size > LARGEST_PRESET_BYTES:
            raise ValueError(f"{entry} is larger than {LARGEST_PRESET_BYTES // MIB} MiB")
        table = tomllib.loads(entry.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {entry}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{entry} is not TOML: {error}") from None
    table.pop("aliases", None)
    return table


def _unknown(kind: str, name: str) -> str:
    names = list_presets(kind)
    for entry in _entries(kind):
        names += tomllib.loads(entry.read_text(encoding="utf-8")).get("aliases", [])
    near = difflib.get_close_matches(_normal(name), names, n=3, cutoff=0.4)
    hint = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(names[:8])} ..."
    return f"no {kind.removesuffix('s')} is called {name!r}; {hint}"
