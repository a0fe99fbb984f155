"""Start scripts: torchrun lines, an sbatch script, a Kubeflow TrainJob.

Ranks are numbered node by node, in the order of the plan's placement, so nodes take *fixed*
node ranks (a static rendezvous): c10d would number them in the order in which they arrive.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner import __version__
from planner.exports.core import Said, Target, commented, rank_order
from planner.exports.megatron import flag_words
from planner.exports.yaml_text import write_yaml
from planner.plan import Plan

LAUNCHERS = ("torchrun", "slurm", "kubernetes")
FILE_NAMES = {"torchrun": "launch.sh", "slurm": "job.sbatch", "kubernetes": "trainjob.yaml"}
PORT = 29500
EXECUTOR = "executor"
RESOURCES = {
    "NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Intel": "habana.ai/gaudi",
    "Google": "google.com/tpu", "AWS": "aws.amazon.com/neuron", "Huawei": "huawei.com/Ascend910",
}  # fmt: skip
"""What the vendors' Kubernetes device plugins call their devices."""
HEREDOC = "END_OF_PLANNED_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is started on every node."""

    name: str
    nodes: int
    per_node: int
    program: tuple[str, ...]
    """Words after torchrun's own."""
    arguments: tuple[str, ...] = ()
    """Lines of a shell array that follow the program."""
    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """Configuration files, which must lie where the program starts."""
    resource: str = RESOURCES["NVIDIA"]
    """A device as Kubernetes counts it; empty where ranks are CPU processes."""
    accelerate: str = ""
    """Name of the file where ``accelerate launch`` starts the ranks instead of torchrun."""
    comments: tuple[str, ...] = ()


def nodes_of(plan: Plan) -> tuple[int, int]:
    """Nodes and ranks on each.

    Raises:
        ValueError: If the ranks do not fill whole nodes.
    """
    world, each = plan.layout.world_size, plan.devices_per_node
    if world <= each:
        return 1, world
    if world % each:
        raise ValueError(
            f"{world} ranks do not fill whole nodes of {each} devices; a launcher needs as many "
            f"ranks on every node: plan for {world // each * each} or {-(-world // each) * each}"
        )
    return world // each, each


def resource_of(plan: Plan) -> str:
    """What Kubernetes calls the plan's devices; NVIDIA's where the cluster is not a preset."""
    from planner.catalogue import load_cluster

    if plan.cluster == "here":
        return ""
    try:
        device = load_cluster(plan.cluster).device
    except ValueError:
        return RESOURCES["NVIDIA"]
    return "" if device.kind == "cpu" else RESOURCES.get(device.vendor, RESOURCES["NVIDIA"])


def launch_of(plan: Plan, target: Target | None, said: Said | None,
              files: Mapping[str, str]) -> Launch:  # fmt: skip
    """What a plan starts: a target's program, or this project's own executor."""
    nodes, each = nodes_of(plan)
    name = target.name if target else EXECUTOR
    comments = (
        f"{name}: {plan.model.name} on {nodes} x {each} devices, written by parallel-planner "
        f"{__version__}.",
        f"Ranks are numbered node by node; {rank_order(plan.layout)}.",
    )
    if target is None or said is None:
        program: tuple[str, ...] = ("-m", "executor.worker", "plan.json", "--output",
                                    "measurement.json")  # fmt: skip
        return Launch(
            name=_label(plan, name), nodes=nodes, per_node=each, program=program,
            resource=resource_of(plan), files=tuple(files.items()), comments=comments,
        )  # fmt: skip
    main = next(iter(files))
    module = main.removesuffix(".py")
    in_shell = target.name == "megatron-lm"
    return Launch(
        name=_label(plan, name), nodes=nodes, per_node=each, resource=resource_of(plan),
        program=tuple(
            word.replace("{file}", main).replace("{module}", module) for word in target.program
        ),
        arguments=tuple(flag_words(dict(said.options))) if in_shell else (),
        environment=tuple(said.environment.items()),
        files=() if in_shell else tuple(files.items()),
        accelerate=main if target.name == "accelerate" else "",
        comments=comments + tuple(f"NOT SAID: {line}" for line in said.unsaid),
    )  # fmt: skip


def _label(plan: Plan, name: str) -> str:
    """A name that Slurm and Kubernetes both take (RFC 1035: letters, digits, hyphens)."""
    plain = re.sub(r"[^a-z0-9]+", "-", f"{plan.model.name}-{name}".lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"train-{plain}")[:63].rstrip("-")


def command_lines(launch: Launch, *, node_rank: str, head: str) -> list[str]:
    """The command that starts one node's ranks, a line for each part.

    Args:
        launch: What is started.
        node_rank: Shell word for this node's number.
        head: Shell word for the address of node 0.
    """
    if launch.accelerate:
        words = ["accelerate launch", f"--config_file {launch.accelerate}",
                 f"--num_machines {launch.nodes}",
                 f"--num_processes {launch.nodes * launch.per_node}",
                 f"--machine_rank {node_rank}", f"--main_process_ip {head}",
                 f"--main_process_port {PORT}"]  # fmt: skip
    else:
        words = ["torchrun", f"--nnodes {launch.nodes}", f"--nproc-per-node {launch.per_node}",
                 f"--node-rank {node_rank}", f"--master-addr {head}",
                 f"--master-port {PORT}"]  # fmt: skip
    words.append(shlex.join(launch.program))
    if launch.arguments:
        words.append('"${ARGUMENTS[@]}"')
    return [f"{word} \\" for word in words[:-1]] + words[-1:]


def _preparation(launch: Launch) -> list[str]:
    """Variables and the array of arguments, in bash."""
    lines = [f"export {key}={shlex.quote(value)}" for key, value in launch.environment]
    if launch.arguments:
        lines += ["ARGUMENTS=(", *(f"  {line}" for line in launch.arguments), ")"]
    return lines


def _head(launch: Launch) -> str:
    return commented(list(launch.comments))


def torchrun_script(launch: Launch) -> str:
    """A script to start on every node, with the node's number and the head's address."""
    several = launch.nodes > 1
    lines = ["set -euo pipefail"]
    usage = "usage: launch.sh NODE_RANK HEAD_ADDRESS"
    if several:
        lines += [f'node_rank="${{1:?{usage}}}"', f'head="${{2:?{usage}}}"', "shift 2"]
    else:
        lines += ["node_rank=0", "head=127.0.0.1"]
    lines += _preparation(launch)
    command = command_lines(launch, node_rank='"$node_rank"', head='"$head"')
    lines += [*command[:-1], f'{command[-1]} "$@"']
    order = ("Start it on every node, node 0 first in the list: NODE_RANK counts nodes in the "
             "order of the network (neighbours next to each other)",)  # fmt: skip
    return "#!/bin/bash\n" + _head(launch) + commented(list(order if several else ())) \
        + "\n".join(lines) + "\n"  # fmt: skip


def slurm_script(launch: Launch) -> str:
    """An sbatch script: one task per node, which starts the node's ranks."""
    directives = [
        f"--job-name={launch.name}", f"--nodes={launch.nodes}", "--ntasks-per-node=1",
        *([f"--gpus-per-node={launch.per_node}"] if launch.resource else []),
        "--exclusive", "--output=%x-%j.out",
        # Task numbers follow the node list, which Slurm orders by its topology.
        "--distribution=block",
    ]  # fmt: skip
    lines = [
        "set -euo pipefail",
        # Not by a pipe into head: under pipefail it ends the job whenever head is the faster.
        'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        'export head="${hosts[0]}"',
        *_preparation(launch),
    ]
    node_rank = '"$SLURM_NODEID"'
    command = command_lines(launch, node_rank=node_rank, head='"$head"')
    if launch.arguments:
        # Arrays do not survive an export: the words are handed over as positional ones.
        command[-1] = '"$@"'
        body = "\n".join(["srun --kill-on-bad-exit=1 bash -c '", *command,
                          "' bash \"${ARGUMENTS[@]}\""])  # fmt: skip
    else:
        body = "\n".join(["srun --kill-on-bad-exit=1 bash -c '", *command, "'"])
    # The variables inside are for the tasks' own shells.
    body = "# shellcheck disable=SC2016\n" + body
    return "#!/bin/bash\n" + "".join(f"#SBATCH {d}\n" for d in directives) + _head(launch) \
        + "\n".join([*lines, body]) + "\n"  # fmt: skip


def kubernetes_manifest(launch: Launch, *, image: str) -> str:
    """A TrainJob of Kubeflow Trainer 2: its torch runtime gives nodes their fixed ranks.

    Reference: kubeflow/trainer, ``pkg/apis/trainer/v1alpha1/trainjob_types.go``; the torch
    plugin sets ``PET_NODE_RANK``, ``PET_MASTER_ADDR`` and their kin, which torchrun reads.
    """
    script = ["set -euo pipefail"]
    for name, text in launch.files:
        script += [f"cat > {name} <<'{HEREDOC}'", text.rstrip("\n"), HEREDOC]
    script += _preparation(launch)
    # The runtime's variables are torchrun's own defaults; they are named to be seen.
    script += command_lines(launch, node_rank='"$PET_NODE_RANK"', head='"$PET_MASTER_ADDR"')
    resources = {launch.resource or "cpu": launch.per_node}
    document: dict[str, Any] = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": launch.name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed", "kind": "ClusterTrainingRuntime",
                           "apiGroup": "trainer.kubeflow.org"},
            "trainer": {
                "image": image, "command": ["bash", "-c"], "args": ["\n".join(script) + "\n"],
                "numNodes": launch.nodes, "numProcPerNode": launch.per_node,
                "resourcesPerNode": {"requests": resources, "limits": resources},
            },
        },
    }  # fmt: skip
    return _head(launch) + write_yaml(json.loads(json.dumps(document)))


def launch_file(launcher: str, launch: Launch, *, image: str = "pytorch/pytorch:latest"
                ) -> tuple[str, str]:  # fmt: skip
    """Name and text of a launcher's file.

    Raises:
        ValueError: For a launcher that is not known.
    """
    if launcher not in LAUNCHERS:
        raise ValueError(f"--launcher is one of {', '.join(LAUNCHERS)}, got {launcher!r}")
    if launcher == "kubernetes":
        return FILE_NAMES[launcher], kubernetes_manifest(launch, image=image)
    script = torchrun_script(launch) if launcher == "torchrun" else slurm_script(launch)
    return FILE_NAMES[launcher], script
