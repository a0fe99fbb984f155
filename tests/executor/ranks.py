"""Start gloo ranks once, run several layouts on them, compare with one plain process."""

import os
import socket
import traceback
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import executor.optimizer
from executor.data import Batches
from executor.mesh import make_grid
from executor.networks import canonical_names, initial_values, whole_chain
from executor.optimizer import make_optimizer
from executor.trainer import Trainer
from planner.job import Job
from planner.layout import Layout
from planner.model import Model
from planner.plan import Plan

STEPS = 3
LEARNING_RATES = {"adamw": 1e-3, "sgd-momentum": 0.3, "sgd": 0.3}
"""Plain steps so large that a gradient of the wrong scale is seen at once."""
# Adam divides by gradients that may be rounding noise (a key's bias has none of its own).
TOLERANCES = {"adamw": 2e-4, "sgd-momentum": 1e-5, "sgd": 1e-5}


def plan_of(model: Model, layout: Layout, **job) -> Plan:
    settings = {"precision": "fp32", "optimizer": "sgd-momentum"} | job
    wanted = Job(
        global_batch=layout.global_batch, sequence_length=model.sequence_length, **settings
    )
    return Plan(model=model, layout=layout, job=wanted, cluster="here", devices_per_node=8)


def set_learning_rate(plan: Plan) -> None:
    """Batch norm after few images does not bear large steps."""
    rate = LEARNING_RATES[plan.job.optimizer]
    executor.optimizer.LEARNING_RATE = 0.01 if plan.model.family == "convolution" else rate


def single_process(plan: Plan) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and final parameters of a plain PyTorch loop with the same microbatches."""
    set_learning_rate(plan)
    network = whole_chain(plan.model)
    for name, parameter in canonical_names(network):
        parameter.data.copy_(initial_values(name, parameter.shape, seed=0))
    optimizer = make_optimizer(plan.job, list(network.parameters()))
    batches = Batches(model=plan.model, job=plan.job)
    losses = []
    for step in range(STEPS):
        inputs, targets = batches.whole(step)
        count = plan.job.global_batch // plan.layout.microbatch
        total = 0.0
        for some, wanted in zip(inputs.chunk(count), targets.chunk(count), strict=True):
            loss = network(some, wanted) / count
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, {n: p.detach() for n, p in canonical_names(network)}


def train(plan: Plan) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same by the executor, on the ranks that are up."""
    set_learning_rate(plan)
    grid = make_grid(plan.layout, torch.device("cpu"))
    trainer = Trainer(plan, grid)
    trainer.start()
    batches = Batches(model=plan.model, job=plan.job)
    losses = []
    for step in range(STEPS):
        share = batches.share(
            step, replica=grid.replica, replicas=plan.layout.dp,
            cp_rank=grid.place("cp"), cp=plan.layout.cp,
        )  # fmt: skip
        loss = trainer.step(*share)
        part = torch.zeros(())
        if loss is not None and grid.place("tp") == 0:
            part = loss.float()
        dist.all_reduce(part)
        losses.append(part.item())
    return losses, trainer.gathered_parameters()


def _difference(plan: Plan, expected, tolerance: float) -> str:
    losses, parameters = train(plan)
    wanted_losses, wanted = expected
    if not torch.allclose(torch.tensor(losses), torch.tensor(wanted_losses), rtol=tolerance):
        return f"losses {losses}, expected {wanted_losses}"
    for name, values in parameters.items():
        known = "embedding.tokens.weight" if name not in wanted else name
        error = (values - wanted[known]).abs().max().item()
        if not error <= tolerance:
            return f"{name} differs by {error}"
    return ""


def _rank(rank, world_size, port, cases, folder):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    lines = []
    for name, plan, expected, tolerance in cases:
        try:
            message = _difference(plan, expected, tolerance)
        except Exception:
            message = traceback.format_exc()
            lines.append(f"rank {rank}, {name}: {message}")
            break
        if message:
            lines.append(f"rank {rank}, {name}: {message}")
        dist.barrier()
    Path(folder, f"{rank}.txt").write_text("\n".join(lines))
    os._exit(0)  # a rank that failed alone must not wait for the others


def differences(cases: dict[str, Plan], folder: Path, *, tolerance: float = 0.0) -> str:
    """What goes wrong, by rank and case, when all cases run on one start of the ranks."""
    (world_size,) = {plan.layout.world_size for plan in cases.values()}
    known: dict[str, tuple] = {}
    jobs = []
    for name, plan in cases.items():
        plain = replace(plan.job, precision="fp32")
        key = repr((plan.model, plain, plan.layout.microbatch))
        if key not in known:
            known[key] = single_process(plan)
        jobs.append((name, plan, known[key], tolerance or TOLERANCES[plan.job.optimizer]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_rank, (world_size, port, jobs, str(folder)), nprocs=world_size)
    texts = [Path(folder, f"{rank}.txt").read_text() for rank in range(world_size)]
    return "\n".join(filter(None, texts))
