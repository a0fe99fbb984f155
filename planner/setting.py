"""The question, with every default filled in and said: model, machine, job, habits."""

from dataclasses import dataclass

from planner.catalogue import load_cluster, load_framework
from planner.cluster import Cluster
from planner.framework import Framework
from planner.job import OPTIMIZER_STATE_BYTES, PRECISIONS, Job
from planner.model import Model
from planner.plan import Plan
from planner.units import format_bytes, format_count

DEFAULT_CLUSTER = "a100-80g-8x200g"
DEFAULT_FRAMEWORK = "planner"
TOKENS_PER_STEP = 2**22  # about 4M, the scale of GPT-3 (Brown et al. 2020, table 2.1: 3.2M)
IMAGES_PER_DEVICE = 256  # Goyal et al. 2017 used 32 of 16 GB parts; 256 fills an 80 GB one
SEQUENCES_ON_CPU = 16  # a CPU cannot train on 4M tokens in a time that anyone waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A choice that the user did not make, and the flag that makes it."""

    name: str
    value: str
    flag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All that is given; what is left to choose is the layout."""

    model: Model
    cluster: Cluster
    job: Job
    framework: Framework
    num_devices: int
    assumptions: tuple[Assumption, ...] = ()


def resolve_model(name_or_path: str) -> Model:
    """A preset, or a path to a ``config.json`` or the folder that holds it.

    Raises:
        ValueError: If it is neither.
    """
    from planner.catalogue import load_model

    return load_model(name_or_path)


def resolve_cluster(name_or_path: str, num_devices: int) -> Cluster:
    """A preset, a path, or ``here`` for this machine."""
    if name_or_path == "here":
        from planner.local import local_cluster

        return local_cluster(num_devices)
    return load_cluster(name_or_path)


def resolve(
    *,
    model: str | Model,
    num_devices: int,
    cluster: str | None = None,
    global_batch: int | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    framework: str | None = None,
) -> Setting:
    """Fill in what was not said, and list it.

    Args:
        model: Preset name, or path to a Hugging Face ``config.json`` or its folder, or a model.
        num_devices: Devices to plan for; 0 for all of a cluster that states its number.
        cluster: Preset, TOML file or ``here``.
        global_batch: Sequences (images) per optimizer step.
        sequence_length: Tokens per sequence.
        precision: One of ``PRECISIONS``.
        optimizer: One of ``OPTIMIZER_STATE_BYTES``.
        framework: Name of a framework profile.

    Raises:
        ValueError: For a name that is not known, or a number that cannot be.
    """
    if num_devices < 0:
        raise ValueError(f"--gpus must be at least 1, got {num_devices}")
    read = resolve_model(model) if isinstance(model, str) else model
    machine = resolve_cluster(cluster or DEFAULT_CLUSTER, num_devices)
    devices = _count_devices(machine, num_devices)
    length = _sequence_length(read, sequence_length)
    cpu = machine.device.kind == "cpu"
    chosen = {
        "precision": precision or ("fp32" if cpu else _default_precision(machine)),
        "optimizer": optimizer or ("sgd-momentum" if read.family == "convolution" else "adamw"),
        "framework": framework or DEFAULT_FRAMEWORK,
    }
    _check_choice("--precision", chosen["precision"], PRECISIONS)
    _check_choice("--optimizer", chosen["optimizer"], OPTIMIZER_STATE_BYTES)
    habits = load_framework(chosen["framework"])
    job = Job(
        global_batch=global_batch or _default_batch(read, machine, length, devices),
        sequence_length=length,
        precision=chosen["precision"],  # type: ignore[arg-type]
        optimizer=chosen["optimizer"],  # type: ignore[arg-type]
        framework=habits.name,
    )
    said = {
        "--cluster": cluster, "--global-batch": global_batch,
        "--sequence-length": sequence_length, "--precision": precision,
        "--optimizer": optimizer, "--framework": framework,
    }  # fmt: skip
    return Setting(
        model=read,
        cluster=machine,
        job=job,
        framework=habits,
        num_devices=devices,
        assumptions=tuple(a for a in _describe(read, machine, job) if said.get(a.flag) is None),
    )


def setting_of(plan: Plan, *, cluster: str | None = None) -> Setting:
    """The question that a plan answers.

    Args:
        plan: As read from its file.
        cluster: Where the plan's own cluster is not known by its name.

    Raises:
        ValueError: If the cluster is not known.
    """
    job = plan.job
    return resolve(
        model=plan.model, num_devices=plan.layout.world_size, cluster=cluster or plan.cluster,
        global_batch=job.global_batch, sequence_length=job.sequence_length,
        precision=job.precision, optimizer=job.optimizer, framework=job.framework,
    )  # fmt: skip


def _count_devices(cluster: Cluster, num_devices: int) -> int:
    devices = num_devices or cluster.num_devices or cluster.devices_per_node
    if cluster.num_devices and devices > cluster.num_devices:
        raise ValueError(
            f"--gpus {devices} is more than the {cluster.num_devices} devices of {cluster.name}"
        )
    return devices


def _sequence_length(model: Model, wanted: int | None) -> int:
    if wanted is not None and wanted < 1:
        raise ValueError(f"--sequence-length must be at least 1, got {wanted}")
    return wanted or model.sequence_length


def _default_precision(cluster: Cluster) -> str:
    """bf16 where the device has it; older tensor cores train in fp16."""
    rates = cluster.device.flops_per_second
    return next((dtype for dtype in ("bf16", "fp16") if dtype in rates), "fp32")


def _default_batch(model: Model, cluster: Cluster, length: int, devices: int) -> int:
    if cluster.device.kind == "cpu":
        return -(-SEQUENCES_ON_CPU // devices) * devices
    if model.family in ("convolution", "vision"):
        return IMAGES_PER_DEVICE * devices
    return splittable_batch(max(TOKENS_PER_STEP // length, 1), devices)


def splittable_batch(about: int, devices: int) -> int:
    """The batch near ``about`` that most layouts of so many devices can share out.

    A multiple of the devices times the largest power of two up to 16 (microbatches) that
    leaves at least one such multiple; ``about`` itself if the devices are more than that.

    >>> splittable_batch(2048, 32), splittable_batch(2048, 7), splittable_batch(2048, 4096)
    (2048, 2016, 2048)
    """
    for microbatches in (16, 8, 4, 2, 1):
        unit = devices * microbatches
        if unit <= about:
            return round(about / unit) * unit
    return about


def _check_choice(flag: str, value: str, known: object) -> None:
    names = sorted(known)  # type: ignore[call-overload]
    if value not in names:
        raise ValueError(f"{flag} is one of {', '.join(names)}; got {value!r}")


def _describe(model: Model, cluster: Cluster, job: Job) -> list[Assumption]:
    device = cluster.device
    memory = format_bytes(device.memory_bytes)
    tiers = ", then ".join(
        f"{tier.generation or tier.link} {tier.bytes_per_second / 1e9:.3g} GB/s"
        for tier in cluster.tiers
    )
    per_node = f"{cluster.devices_per_node} x {device.name} ({memory}) per node, {tiers}"
    unit = "images" if model.family in ("convolution", "vision") else "sequences"
    tokens = f" = {format_count(job.tokens_per_step)} tokens" if unit == "sequences" else ""
    numbers = job.numbers
    master = ", float32 master weights" if numbers.keeps_master else ""
    return [
        Assumption(name="cluster", value=f"{cluster.name}: {per_node}", flag="--cluster"),
        Assumption(
            name="global batch", value=f"{job.global_batch} {unit}{tokens}", flag="--global-batch"
        ),
        Assumption(
            name="sequence length", value=str(job.sequence_length), flag="--sequence-length"
        ),
        Assumption(name="precision", value=f"{job.precision}{master}", flag="--precision"),
        Assumption(name="optimizer", value=job.optimizer, flag="--optimizer"),
        Assumption(name="framework profile", value=job.framework, flag="--framework"),
        *(Assumption(name="model", value=text, flag="--model") for text in model.assumptions),
    ]
