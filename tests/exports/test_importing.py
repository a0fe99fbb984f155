"""Configurations that people have: what is read, and what contradicts itself."""

import json

import pytest

from planner.exports.importing import import_run
from planner.exports.megatron_reading import read_megatron, stage_layers_of

SCRIPT = r"""#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=4
TP=2
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES
"
GPT_ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size ${PP:-4}   # four stages
    --sequence-parallel
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32
    --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000
    --micro-batch-size 1 --global-batch-size 128
    --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
    --untie-embeddings-and-output-weights
    --bf16 --use-distributed-optimizer --recompute-activations
)
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py "${GPT_ARGS[@]}" --data-path $DATA
"""


@pytest.fixture
def write(tmp_path):
    def put(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return put


def test_a_launch_script_is_read_whole(write):
    run = import_run([write("pretrain.sh", SCRIPT)])
    layout = run.layout
    assert run.target == "megatron-lm"
    assert (layout.dp, layout.tp, layout.pp, layout.microbatches) == (4, 2, 4, 32)
    assert layout.sequence_parallel
    assert (layout.zero_stage, layout.recompute) == (1, "selective")
    assert run.setting.model.total_parameters == 6_738_415_616  # LLaMA-7B
    assert run.setting.job.precision == "bf16"


@pytest.mark.parametrize("old, new, message", [
    ("--global-batch-size 128", "--global-batch-size 126",
     r"dp 4 x --micro-batch-size 1 = 4 does not divide --global-batch-size 126"),
    ("TP=2", "TP=3", r"--tensor-model-parallel-size 3 x --pipeline-model-parallel-size 4 = 12 "
                     r"does not divide the 32 ranks"),
    ("--sequence-parallel", "--num-layers-per-virtual-pipeline-stage 3",
     r"--num-layers 32 is not a multiple of --pipeline-model-parallel-size 4 x"),
    ("--micro-batch-size 1", "--micro-batch-size one", "must be a whole number, got 'one'"),
])  # fmt: skip
def test_contradictions_show_both_sides(write, old, new, message):
    with pytest.raises(ValueError, match=message):
        import_run([write("pretrain.sh", SCRIPT.replace(old, new))])


def test_ranks_of_file_and_flag_must_agree(write):
    with pytest.raises(ValueError, match=r"is 32, but --gpus is 64"):
        import_run([write("pretrain.sh", SCRIPT)], gpus=64)


def test_model_of_file_and_flag_must_agree(write):
    with pytest.raises(ValueError, match=r"llama-13b has 13\d+ parameters, but the file"):
        import_run([write("pretrain.sh", SCRIPT)], model="llama-13b")


def test_explicit_and_virtual_stages():
    assert stage_layers_of("Et*3|(tt|)*2tL") == (3, 2, 2, 1)
    words = """--num-layers 46 --pipeline-model-parallel-size 4 --hidden-size 64
        --decoder-first-pipeline-num-layers 11 --decoder-last-pipeline-num-layers 11
        --num-attention-heads 4 --vocab-size 100"""
    assert read_megatron(words).settings["stage_layers"] == (11, 12, 12, 11)


DEEPSPEED = {
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
}  # fmt: skip


def test_deepspeed_says_its_ranks_by_its_batch(write):
    run = import_run([write("ds.json", DEEPSPEED)], model="llama-7b")
    assert run.layout.dp == 8
    assert run.layout.zero_stage == 3
    assert run.layout.offload_optimizer


def test_deepspeed_batch_must_multiply(write):
    path = write("ds.json", DEEPSPEED)
    both = "dp 16 x train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 4 = 128 is not"
    with pytest.raises(ValueError, match=f"{both} train_batch_size 64"):
        import_run([path], model="llama-7b", gpus=16)


def test_two_files_of_one_run_are_merged(write):
    automatic = {**DEEPSPEED, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
                 "gradient_accumulation_steps": "auto"}  # fmt: skip
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": True,
                 "gradient_checkpointing": True, "deepspeed": "ds.json"}  # fmt: skip
    paths = [write("ds.json", automatic), write("args.json", arguments)]
    run = import_run(paths, model="llama-7b", gpus=8)
    assert run.target == "deepspeed"
    assert run.layout.recompute == "full"
    assert (run.layout.microbatch, run.layout.microbatches) == (2, 4)
    assert run.setting.job.global_batch == 64


def test_two_files_that_differ_show_both_sides(write):
    arguments = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    with pytest.raises(ValueError, match=r"train_micro_batch_size_per_gpu is 2 in one file, "
                       r"per_device_train_batch_size is 4 in the other"):  # fmt: skip
        import_run([write("ds.json", DEEPSPEED), write("args.json", arguments)], model="llama-7b")


def test_flags_of_a_trainer(write):
    script = ("torchrun --nproc_per_node 8 run_clm.py --per_device_train_batch_size 2 "
              "--gradient_accumulation_steps 8 --bf16 True --fsdp 'full_shard auto_wrap' "
              "--block_size 1024 --gradient_checkpointing")  # fmt: skip
    run = import_run([write("run.sh", script)], source="hf-trainer", model="llama-7b", gpus=8)
    assert run.layout.zero_stage == 3
    assert run.setting.job.global_batch == 128
    assert run.setting.job.sequence_length == 1024


def test_what_is_missing_is_said(write):
    document = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}
    path = write("args.json", document)
    with pytest.raises(ValueError, match="say it by --gpus"):
        import_run([path], model="llama-7b")
    with pytest.raises(ValueError, match="name it by --model"):
        import_run([path], gpus=8)


@pytest.mark.parametrize("name, content, message", [
    ("a.json", "{", "looks like no configuration|not valid JSON"),
    ("a.yaml", "a: [", "not valid YAML|looks like no"),
    ("a.toml", "= 1", "not valid TOML"),
    ("a.py", "def", "not valid Python"),
    ("a.yaml", "parallelism: {dp: many, tp: 1, pp: 1}", "dp must be a whole number, got 'many'"),
    ("a.toml", "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'X'",
     "pipeline_parallel_schedule X is not one"),
    ("a.sh", "echo hello", "looks like no configuration"),
])  # fmt: skip
def test_broken_files_are_one_line(write, name, content, message):
    with pytest.raises(ValueError, match=message) as caught:
        import_run([write(name, content)], model="llama-7b", gpus=2)
    assert "\n" not in str(caught.value).strip()
