"""Every schedule that torch.distributed.pipelining has must be ours, action by action."""

from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from planner.schedules import schedule_actions, stage_ranks, to_texts


def recorded_single(cls, *, rank, pp, microbatches):
    """What torch's single-stage schedule really runs, recorded by a stage that only listens."""
    texts = []
    stage = SimpleNamespace(
        is_first=rank == 0,
        is_last=rank == pp - 1,
        stage_index=rank,
        stage_index_to_group_rank={s: s for s in range(pp)},
        num_stages=pp,
        group_size=pp,
        has_backward=True,
        get_fwd_recv_ops=lambda i: [],
        get_fwd_send_ops=lambda i: [],
        get_bwd_recv_ops=lambda i: [],
        get_bwd_send_ops=lambda i: [],
        perform_reduce_grad=lambda scale: None,
        forward_one_chunk=lambda i, *a, **k: texts.append(f"{rank}F{i}"),
        backward_one_chunk=lambda i, **k: texts.append(f"{rank}B{i}"),
    )
    schedule = cls(stage, microbatches)
    schedule._initialize_stage = lambda *a, **k: None
    schedule._step_microbatches()
    return texts


def multi_stages(name, *, rank, pp, vpp):
    ranks = stage_ranks(name, pp=pp, vpp=vpp)
    return [
        SimpleNamespace(
            is_first=s == 0,
            is_last=s == pp * vpp - 1,
            stage_index=s,
            stage_index_to_group_rank=dict(enumerate(ranks)),
            num_stages=pp * vpp,
            group_size=pp,
            group_rank=rank,
            has_backward=True,
            submod=SimpleNamespace(),
        )
        for s in range(pp * vpp)
        if ranks[s] == rank
    ]


@pytest.mark.parametrize("microbatches", [4, 5, 8, 11])
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("name", "cls"),
    [("gpipe", torch_schedules.ScheduleGPipe), ("1f1b", torch_schedules.Schedule1F1B)],
)
def test_single_stage_order_is_what_torch_runs(name, cls, pp, microbatches):
    ours = schedule_actions(name, pp=pp, microbatches=microbatches)
    for rank in range(pp):
        assert to_texts(ours[rank]) == recorded_single(
            cls, rank=rank, pp=pp, microbatches=microbatches
        )


MULTI = [
    *[
        ("interleaved", "ScheduleInterleaved1F1B", pp, vpp, m)
        for pp, vpp, m in [(2, 2, 2), (2, 3, 8), (3, 2, 6), (4, 2, 3), (4, 2, 10), (4, 4, 16)]
    ],
    *[
        ("zb-h1", "ScheduleInterleavedZeroBubble", pp, vpp, m)
        for pp, vpp, m in [(2, 1, 2), (4, 1, 3), (4, 1, 8), (8, 1, 16), (2, 2, 4), (4, 3, 12)]
    ],
    *[
        ("zbv", "ScheduleZBVZeroBubble", pp, 2, m)
        for pp, m in [(2, 1), (2, 4), (3, 5), (4, 2), (4, 7), (4, 8), (8, 32)]
    ],
    *[
        ("dualpipe", "ScheduleDualPipeV", pp, 2, m)
        for pp, m in [(1, 2), (2, 4), (2, 7), (3, 6), (4, 8), (4, 13), (8, 16)]
    ],
]


@pytest.mark.parametrize(("name", "cls", "pp", "vpp", "microbatches"), MULTI)
def test_multi_stage_order_is_torch_s(name, cls, pp, vpp, microbatches):
    ours = schedule_actions(name, pp=pp, vpp=vpp, microbatches=microbatches)
    stages = multi_stages(name, rank=0, pp=pp, vpp=vpp)
    theirs = getattr(torch_schedules, cls)(stages, microbatches).pipeline_order
    for rank in range(pp):
        assert to_texts(ours[rank]) == [str(a) for a in theirs[rank] if a is not None]


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "microbatches"),
    [("gpipe", 4, 1, 6), ("1f1b", 4, 1, 6), *[(n, p, v, m) for n, _, p, v, m in MULTI[::3]]],
)
def test_torch_reads_and_accepts_our_texts(name, pp, vpp, microbatches):
    ours = schedule_actions(name, pp=pp, vpp=vpp, microbatches=microbatches)
    read = {
        rank: [torch_schedules._Action.from_str(text) for text in to_texts(ours[rank])]
        for rank in range(pp)
    }
    placed = torch_schedules._validate_schedule(read, pp, pp * vpp, microbatches)
    assert tuple(placed[s] for s in range(pp * vpp)) == stage_ranks(name, pp=pp, vpp=vpp)
