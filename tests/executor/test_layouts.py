"""Three optimizer steps of a layout give the losses and parameters of one plain process."""

import pytest
import tiny_models as models
from ranks import differences, plan_of

from planner.layout import Layout, parse_layout_settings

TWO_RANKS = {
    "dp": ("llama", "dp=2,mbs=2,microbatches=2"),
    "zero 1": ("llama", "dp=2,zero=1,mbs=2,microbatches=2"),
    "zero 2": ("llama", "dp=2,zero=2,mbs=2,microbatches=2"),
    "zero 3": ("llama", "dp=2,zero=3,mbs=2,microbatches=2"),
    "tp": ("llama", "tp=2,mbs=2,microbatches=2"),
    "sp": ("llama", "tp=2,sp,mbs=2,microbatches=2"),
    "1f1b": ("llama", "pp=2,mbs=2,microbatches=4"),
    "gpipe": ("llama", "pp=2,mbs=2,microbatches=4,schedule=gpipe"),
    "interleaved": ("llama", "pp=2,vpp=2,mbs=2,microbatches=4,schedule=interleaved"),
    "uneven": ("llama", "pp=2,mbs=2,microbatches=4,split=1-3"),
    "zb-h1": ("llama", "pp=2,mbs=2,microbatches=4,schedule=zb-h1"),
    "zbv": ("llama", "pp=2,vpp=2,mbs=2,microbatches=4,schedule=zbv"),
    "ulysses": ("llama", "cp=2,cp_kind=ulysses,mbs=2,microbatches=2"),
    "full recompute": ("llama", "dp=2,recompute=full,mbs=2,microbatches=2"),
    "recompute of two": ("llama", "pp=2,recompute=full,recompute_layers=1,microbatches=4"),
    "selective": ("llama", "dp=2,recompute=selective,mbs=2,microbatches=2"),
    "experts": ("mixtral", "dp=2,ep=2,mbs=2,microbatches=2"),
    "bert sp": ("bert", "tp=2,sp,mbs=2,microbatches=2"),
    "bert tied over stages": ("bert", "pp=2,mbs=2,microbatches=2"),
    "gpt2 tp": ("gpt2", "tp=2,mbs=2,microbatches=2"),
    "resnet dp": ("resnet", "dp=2,mbs=2,microbatches=2"),
    "resnet pp": ("resnet", "pp=2,mbs=2,microbatches=2"),
    "adamw zero 1": ("gpt2", "dp=2,zero=1,mbs=2,microbatches=2", "adamw"),
    "adamw zero 3": ("llama", "dp=2,zero=3,mbs=2,microbatches=2", "adamw"),
}
FOUR_RANKS = {
    "dp tp": ("llama", "dp=2,tp=2,sp,zero=1,recompute=selective,microbatches=2"),
    "tp pp": ("llama", "tp=2,pp=2,sp,microbatches=4"),
    "zero 3 tp": ("llama", "dp=2,tp=2,sp,zero=3,recompute=full,microbatches=2"),
    "zero 3 pp": ("llama", "dp=2,pp=2,zero=3,microbatches=2"),
    "hsdp": ("llama", "dp=4,zero=3,zero_shard=2,microbatches=2"),
    "zero 1 tied pp": ("gpt2", "dp=2,pp=2,zero=1,microbatches=2"),
    "experts pp": ("mixtral", "dp=2,pp=2,ep=2,microbatches=2"),
    "cp zero 3": ("llama", "dp=2,cp=2,cp_kind=ulysses,zero=3,microbatches=2"),
}
MORE_FOUR_RANKS = {
    "dp outermost last": ("llama", "dp=2,tp=2,zero=3,order=dp-cp-tp-pp,microbatches=2"),
    "zero 2 pp": ("llama", "dp=2,pp=2,zero=2,split=1-3,microbatches=2"),
    "tp zero bubble": ("llama", "tp=2,pp=2,sp,schedule=zb-h1,microbatches=4"),
    "cp tp": ("llama", "tp=2,cp=2,cp_kind=ulysses,sp,microbatches=2"),
    "tied zero 3 pp": ("gpt2", "dp=2,pp=2,zero=3,microbatches=2"),
    "tied zero 3 tp": ("gpt2", "dp=2,tp=2,zero=3,microbatches=2"),
    "bert tp pp": ("bert", "tp=2,pp=2,sp,microbatches=2"),
    "expert replicas": ("mixtral", "dp=4,ep=2,zero=1,microbatches=2"),
    "resnet dp pp": ("resnet", "dp=2,pp=2,mbs=2,microbatches=2"),
    "resnet zero 3": ("resnet", "dp=4,zero=3,mbs=32,microbatches=2"),
}
EIGHT_RANKS = {
    "2x2x2": ("llama", "dp=2,tp=2,pp=2,sp,microbatches=2"),
    "2x2x2 zero 1": ("llama", "dp=2,tp=2,pp=2,sp,zero=1,recompute=full,microbatches=2"),
    "2x2x2 zero 3": ("llama", "dp=2,tp=2,pp=2,zero=3,microbatches=2"),
    "cp tp dp": ("llama", "dp=2,tp=2,cp=2,cp_kind=ulysses,sp,zero=1,microbatches=2"),
    "cp tp pp": ("llama", "pp=2,tp=2,cp=2,cp_kind=ulysses,microbatches=2"),
    "zero bubble": ("llama", "dp=2,tp=2,pp=2,sp,schedule=zb-h1,zero=1,microbatches=2"),
    "interleaved": ("llama", "dp=2,tp=2,pp=2,vpp=2,schedule=interleaved,microbatches=2"),
    "hsdp tp": ("llama", "dp=4,tp=2,zero=3,zero_shard=2,microbatches=1"),
    "experts": ("mixtral", "dp=4,pp=2,ep=4,zero=1,microbatches=2"),
}


def plans(cases):
    return {
        name: plan_of(
            models.ALL[model](), Layout(**parse_layout_settings(text)),
            optimizer=more[0] if more else "sgd-momentum",
        )
        for name, (model, text, *more) in cases.items()
    }  # fmt: skip


def test_two_ranks_train_as_one(tmp_path):
    assert differences(plans(TWO_RANKS), tmp_path) == ""


def test_four_ranks_train_as_one(tmp_path):
    assert differences(plans(FOUR_RANKS), tmp_path) == ""


@pytest.mark.slow
def test_four_ranks_train_as_one_in_more_ways(tmp_path):
    assert differences(plans(MORE_FOUR_RANKS), tmp_path) == ""


@pytest.mark.slow
def test_eight_ranks_train_as_one(tmp_path):
    assert differences(plans(EIGHT_RANKS), tmp_path) == ""


def test_a_wrong_layout_would_be_noticed(tmp_path, monkeypatch):
    """The comparison itself: one microbatch less in the reference is seen."""
    import ranks

    def wrong(plan):
        losses, parameters = original(plan)
        return losses, {n: p + 3e-5 for n, p in parameters.items()}

    original = ranks.single_process
    monkeypatch.setattr(ranks, "single_process", wrong)
    message = ranks.differences(plans({"tp": TWO_RANKS["tp"]}), tmp_path)
    assert "differs by" in message


@pytest.mark.slow
def test_bf16_follows_the_float32_losses(tmp_path):
    cases = {k: v for k, v in TWO_RANKS.items() if k in ("dp", "zero 1", "zero 3", "sp", "1f1b")}
    wanted = {
        name: plan_of(models.llama(), Layout(**parse_layout_settings(text)), precision="bf16",
                      optimizer="adamw")
        for name, (_, text) in cases.items()
    }  # fmt: skip
    assert differences(wanted, tmp_path, tolerance=0.02) == ""
