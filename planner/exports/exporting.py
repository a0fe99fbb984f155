"""Export a plan: the target's files, what they leave out, and how to start them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.exports.core import Said, Target, header
from planner.exports.launch import EXECUTOR, launch_file, launch_of
from planner.exports.targets import TARGETS, target_named
from planner.files import document_text
from planner.plan import SCHEMA_VERSION, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Files by name, the main one first, and what is to be said beside."""

    files: Mapping[str, str]
    unsaid: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """The header, for a target whose file has no comments."""


def export_plan(
    plan: Plan,
    to: str,
    *,
    launcher: str | None = None,
    image: str = "pytorch/pytorch:latest",
    lossy: bool = False,
    main_name: str = "",
) -> Exported:
    """Write a plan for a target.

    Args:
        plan: What to write.
        to: A name of ``TARGETS``, or ``executor`` for this project's own.
        launcher: One of ``LAUNCHERS``, or None for the configuration alone.
        image: Container image of a Kubernetes job.
        lossy: Leave out what the target cannot say, instead of refusing.
        main_name: What the main file will be called; empty for the target's own name.

    Raises:
        ValueError: For a target that is not known, or a plan that it cannot say in full.
    """
    if to == EXECUTOR:
        if launcher is None:
            raise ValueError("--to executor needs --launcher torchrun, slurm or kubernetes: the "
                             "plan itself is its configuration")  # fmt: skip
        plan_file = {"plan.json": document_text("plan", SCHEMA_VERSION, plan)}
        launch = launch_of(plan, None, None, plan_file)
        return Exported(files=dict([launch_file(launcher, launch, image=image)]))
    if to not in TARGETS:
        raise ValueError(f"no target {to!r}; known are {', '.join((*TARGETS, EXECUTOR))}")
    target = target_named(to)
    said = target.say(plan)
    if said.unsaid and not lossy:
        raise ValueError(refusal(target, said.unsaid))
    files = dict(target.write(said, plan))
    if main_name and main_name != target.file_name:
        files = renamed(files, target.file_name, main_name)
    if launcher is not None:
        name, script = launch_file(launcher, launch_of(plan, target, said, files), image=image)
        files[name] = script
    return Exported(files=files, unsaid=said.unsaid, remarks=_remarks(plan, target, said))


def _remarks(plan: Plan, target: Target, said: Said) -> tuple[str, ...]:
    """The header, where the file cannot hold it."""
    if target.comment:
        return ()
    lines = header(target.name, target.version, plan, said)
    return tuple(line for line in lines if not line.startswith("NOT SAID"))


def refusal(target: Target, unsaid: tuple[str, ...]) -> str:
    """Why a plan is not written, and the two ways on."""
    return (
        f"{target.name} {target.version} cannot say: {'; '.join(unsaid)}\n"
        f"hint: plan again with --framework {target.framework}"
        f"{''.join(f' --forbid {word}' for word in target.forbid)}, or drop them by --lossy"
    )


def renamed(files: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """The files with one renamed, and what they say of its name (or of the module it makes).

    >>> renamed({"a.py": "run a.py", "b": "--module a"}, "a.py", "plan.py")
    {'plan.py': 'run plan.py', 'b': '--module plan'}
    """
    module = f"--module {Path(old).stem}", f"--module {Path(new).stem}"
    return {
        new if name == old else name: text.replace(old, new).replace(*module)
        for name, text in files.items()
    }
