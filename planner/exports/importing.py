"""From what configuration files say to a setting and a layout that can be priced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from planner.appraisal import complete_layout
from planner.exports.core import Reading
from planner.exports.decoder import Decoder, model_of
from planner.exports.targets import TARGETS, TRAINER, detect, read_as
from planner.layout import Layout
from planner.model import Model
from planner.setting import Setting, resolve, resolve_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A run as its files describe it."""

    target: str
    """Whose option names advice is given in."""
    setting: Setting
    layout: Layout
    notes: tuple[str, ...] = ()
    """What was assumed, or seen and not priced."""


def read_files(paths: Sequence[Path], source: str | None) -> tuple[str, Reading]:
    """Read one configuration, or several that belong together, and say whose it is.

    Raises:
        ValueError: For a file that cannot be read or recognised, or two that contradict.
    """
    target, merged = "", Reading()
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', 'not text')}"
                             ) from None  # fmt: skip
        name = source if source and len(paths) == 1 else detect(path, text)
        try:
            reading = read_as(name, text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        merged = merge(merged, reading)
        target = name if target in ("", TRAINER) else target
    chosen = source or target
    return ("accelerate" if chosen == TRAINER else chosen), merged


def merge(first: Reading, second: Reading) -> Reading:
    """Two files of one run.

    Raises:
        ValueError: If both say something of the same thing, and not the same.
    """
    settings = dict(first.settings)
    for field, value in second.settings.items():
        if field in settings and settings[field] != value and field != "recompute":
            one, other = first.names.get(field, field), second.names.get(field, field)
            raise ValueError(f"{one} is {settings[field]} in one file, {other} is {value} in the "
                             "other")  # fmt: skip
        if field != "recompute" or settings.get(field, "none") == "none":
            settings[field] = value
    plain = {
        name: getattr(first, name) or getattr(second, name)
        for name in ("world_size", "global_batch", "sequence_length", "precision", "optimizer",
                     "decoder")
    }  # fmt: skip
    ignored = tuple(line for line in first.ignored + second.ignored if "give that file" not in line
                    or not first.settings)  # fmt: skip
    return Reading(settings=settings, names={**first.names, **second.names}, ignored=ignored,
                   **plain)  # fmt: skip


def import_run(
    paths: Sequence[Path],
    *,
    source: str | None = None,
    model: str | None = None,
    gpus: int = 0,
    cluster: str | None = None,
    global_batch: int | None = None,
    sequence_length: int | None = None,
    framework: str | None = None,
) -> Imported:
    """Read configuration files into a setting and a layout.

    Args:
        paths: One file, or several of one run (a DeepSpeed JSON and a Trainer's arguments).
        source: Name of the target; by default it is recognised.
        model: Where the files do not hold it.
        gpus: Ranks, where the files do not say.
        cluster: As for ``recommend``.
        global_batch: Where the files do not say.
        sequence_length: Where the files do not say.
        framework: Profile; by default the target's own.

    Raises:
        ValueError: For files that contradict themselves; the line shows both sides.
    """
    target, reading = read_files(paths, source)
    settings = dict(reading.settings)
    notes = list(reading.ignored)
    tidy(settings, notes)
    world = world_of(settings, reading, gpus)
    settings["dp"] = data_parallel(settings, reading, world)
    _groups(settings)
    batch = batch_of(settings, reading, global_batch, notes)
    setting = resolve(
        model=_model(reading.decoder, model), num_devices=world, cluster=cluster,
        global_batch=batch, sequence_length=sequence_length or reading.sequence_length or None,
        precision=reading.precision or None, optimizer=reading.optimizer or None,
        framework=framework or TARGETS[target].framework,
    )  # fmt: skip
    setting = _habits(setting, settings)
    known = {field.name for field in fields(Layout)}
    layout = complete_layout({k: v for k, v in settings.items() if k in known}, setting)
    return Imported(target=target, setting=setting, layout=layout, notes=tuple(notes))


def tidy(settings: dict[str, Any], notes: list[str]) -> None:
    """Drop switches that a framework itself drops where their axis has one rank."""
    if settings.get("sequence_parallel") and settings.get("tp", 1) == 1:
        settings["sequence_parallel"] = False
        notes.append("sequence parallelism without tensor parallelism does nothing")
    if settings.get("pp", 1) == 1:
        for field in ("vpp", "schedule", "stage_layers"):
            settings.pop(field, None)


def world_of(settings: Mapping[str, Any], reading: Reading, gpus: int) -> int:
    """Ranks of the run.

    Raises:
        ValueError: If nothing says, or two say different numbers.
    """
    name = reading.names.get("world_size", "the file's ranks")
    if gpus and reading.world_size and gpus != reading.world_size:
        raise ValueError(f"{name} is {reading.world_size}, but --gpus is {gpus}")
    world = gpus or reading.world_size
    if world:
        return world
    dp = settings.get("dp") or _dp_of_batch(settings, reading)
    if not dp:
        raise ValueError("the file does not say on how many ranks it runs; say it by --gpus N")
    return int(dp * _inner(settings))


def _inner(settings: Mapping[str, Any]) -> int:
    return int(settings.get("tp", 1) * settings.get("pp", 1) * settings.get("cp", 1))


def _dp_of_batch(settings: Mapping[str, Any], reading: Reading) -> int:
    """Replicas, from a global batch and what each takes of it; 0 if that is not known.

    Raises:
        ValueError: If it does not divide.
    """
    if not reading.global_batch or "microbatches" not in settings or "microbatch" not in settings:
        return 0
    each = settings["microbatch"] * settings["microbatches"]
    if reading.global_batch % each:
        raise ValueError(_batch_words(settings, reading, each, reading.global_batch))
    return int(reading.global_batch // each)


def data_parallel(settings: Mapping[str, Any], reading: Reading, world: int) -> int:
    """Replicas: what tensor, pipeline and context parallelism leave of the ranks.

    Raises:
        ValueError: If the degrees do not multiply to the ranks; both sides are shown.
    """
    inner = _inner(settings)
    words = " x ".join(f"{reading.names.get(axis, axis)} {settings.get(axis, 1)}"
                       for axis in ("tp", "pp", "cp") if settings.get(axis, 1) > 1)  # fmt: skip
    if world % inner:
        raise ValueError(f"{words} = {inner} does not divide the {world} ranks")
    dp = int(settings.get("dp", world // inner))
    if dp * inner != world:
        name = reading.names.get("dp", "dp")
        raise ValueError(f"{name} {dp}{' x ' if words else ''}{words} = {dp * inner} ranks, but "
                         f"the run has {world}")  # fmt: skip
    return dp


def _groups(settings: dict[str, Any]) -> None:
    """Groups of ZeRO that a file counts by their number, and ZeRO over nobody."""
    replicas = settings["dp"] * settings.get("cp", 1)
    instances = settings.pop("zero_instances", 1)
    if replicas % instances:
        raise ValueError(f"{instances} groups of sharding do not divide the {replicas} replicas")
    if instances > 1 and settings.get("zero_stage"):
        settings["zero_group"] = replicas // instances
    if replicas == 1 or settings.get("zero_group") == 1:
        settings["zero_stage"], settings["zero_group"] = 0, 0
    if settings.get("zero_group") == replicas:
        settings["zero_group"] = 0


def batch_of(
    settings: dict[str, Any], reading: Reading, wanted: int | None, notes: list[str]
) -> int:
    """Sequences per step.

    Raises:
        ValueError: If microbatch, accumulation and replicas do not multiply to it.
    """
    if "microbatch" not in settings:
        settings["microbatch"] = 1
        notes.append("the file does not say the microbatch: 1 sequence assumed")
    each = settings["dp"] * settings["microbatch"]
    batch = wanted or reading.global_batch
    if "microbatches" not in settings and not batch:
        settings["microbatches"] = 1
        notes.append("the file does not say the accumulation: 1 microbatch assumed")
    if "microbatches" in settings:
        product = each * settings["microbatches"]
        if batch and product != batch:
            raise ValueError(_batch_words(settings, reading, product, batch))
        return int(product)
    if batch % each:
        raise ValueError(_batch_words(settings, reading, each, batch, divides=True))
    settings["microbatches"] = batch // each
    return int(batch)


def _batch_words(
    settings: Mapping[str, Any], reading: Reading, product: int, batch: int, *,
    divides: bool = False,
) -> str:  # fmt: skip
    names = reading.names
    words = [f"dp {settings['dp']}"] if "dp" in settings else []
    words += [f"{names.get(field, field)} {settings[field]}" for field in
              ("microbatch", "microbatches") if field in settings]  # fmt: skip
    verb = "does not divide" if divides or "dp" not in settings else "is not"
    return (f"{' x '.join(words)} = {product} {verb} {names.get('global_batch', 'global batch')} "
            f"{batch}")  # fmt: skip


def _model(decoder: Decoder | None, wanted: str | None) -> Model | str:
    if decoder is None:
        if wanted is None:
            raise ValueError("the file does not hold the model; name it by --model")
        return wanted
    held = model_of(decoder)
    if wanted is None:
        return held
    named = resolve_model(wanted)
    if named.total_parameters != held.total_parameters:
        raise ValueError(
            f"--model {wanted} has {named.total_parameters} parameters, but the file describes a "
            f"model of {held.total_parameters} ({held.num_layers} layers of {held.hidden})"
        )
    return named


def _habits(setting: Setting, settings: dict[str, Any]) -> Setting:
    """The profile as this file bends it: an explicit split, a loss it cannot choose."""
    framework = setting.framework
    split = settings.get("stage_layers", ())
    if framework.stage_rule == "even" and len(set(split)) > 1:
        framework = replace(framework, stage_rule="balanced")
    if settings.get("fused_loss", framework.fused_loss) != framework.fused_loss:
        # The run has it, whatever the profile would choose: it is priced as it is.
        framework = replace(framework, chooses_fused_loss=True)
    return replace(setting, framework=framework)
