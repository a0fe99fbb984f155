"""torchtitan's configuration function of 0.3.0, where job files are Python.

Names: ``torchtitan/config/configs.py``, ``torchtitan/models/llama3/__init__.py``.
"""

import ast
from typing import Any

from planner.exports.core import Reading, Said, Unrecognised, commented, flatten, header
from planner.exports.decoder import decoder_of
from planner.exports.torchtitan import (
    batch_options,
    family_of,
    mesh_options,
    pipeline_options,
    shared_unsaid,
)
from planner.exports.torchtitan_reading import reading_of
from planner.plan import Plan

VERSION = "0.3.0"
MODULE = "planned_config"
LAST = ("norm", "lm_head")
POLICIES = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
LOSSES = {True: "ChunkedLossWrapper.Config(loss_fn=cross_entropy)", False: "cross_entropy"}

_TEMPLATE = '''\
{comments}
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.trainer import Trainer

ACTIVATION_CHECKPOINTING = (SelectiveAC, FullAC)
MODEL = dict({model})
FFN_HIDDEN = {ffn_hidden}
MAX_LENGTH = {max_length}


def size(attn_backend="flex", tp_gemm_backend="default"):
    """The model's own size in the form of torchtitan's Llama 3."""
    dim, vocabulary = MODEL["dim"], MODEL["vocab_size"]
    return llama3.Llama3Model.Config(
        dim=dim,
        vocab_size=vocabulary,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocabulary,
            embedding_dim=dim,
            param_init=llama3._EMBEDDING_INIT,
        ),
        norm=RMSNorm.Config(normalized_shape=dim, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=dim,
            out_features=vocabulary,
            param_init=llama3._output_linear_init(dim),
        ),
        layers=llama3._build_llama3_layers(
            n_layers=MODEL["n_layers"],
            dim=dim,
            n_heads=MODEL["n_heads"],
            n_kv_heads=MODEL["n_kv_heads"],
            hidden_dim=FFN_HIDDEN,
            rope=ComplexRoPE.Config(
                dim=dim // MODEL["n_heads"], max_seq_len=MAX_LENGTH, theta=10000
            ),
            attn_backend=attn_backend,
            tp_gemm_backend=tp_gemm_backend,
        ),
    )


def planned():
    """What ``--config planned`` names."""
    llama3.llama3_configs[{name!r}] = size
    cross_entropy = CrossEntropyLoss.Config(global_vocab_size=MODEL["vocab_size"])
    return Trainer.Config(
        loss={loss},
        hf_assets_path="./assets/hf/tokenizer",
        model_spec=llama3.model_registry({name!r}),
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(
{training}        ),
        parallelism=ParallelismConfig(
{parallelism}        ),
        activation_checkpoint={activation_checkpoint},
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
    )
'''


def say_torchtitan_python(plan: Plan) -> Said:
    """The arguments of ``TrainingConfig``, ``ParallelismConfig`` and their neighbours."""
    layout = plan.layout
    decoder, missing = decoder_of(plan.model)
    family, lost = family_of(decoder)
    if family != "llama3":
        lost.append("model: tied embeddings, norms on Q and K, or heads of their own width")
    if plan.job.precision == "fp8":
        lost.append("precision fp8: a Float8LinearConverter of the model's own spec")
    options = {
        # Its CUDA graphs do not go with a pipeline.
        "training": batch_options(plan) | ({"disable_cuda_graphs": True} if layout.pp > 1 else {}),
        "parallelism": {
            **mesh_options(layout),
            "enable_sequence_parallel": layout.sequence_parallel or layout.tp == 1,
            **pipeline_options(layout, LAST),
        },
        "activation_checkpoint": POLICIES[layout.recompute],
        "loss": LOSSES[layout.fused_loss is True],
    }
    return Said(options=options, unsaid=(*missing, *lost, *shared_unsaid(plan)))


def write_torchtitan_python(said: Said, plan: Plan) -> dict[str, str]:
    """A module with the function that ``--module planned_config --config planned`` names."""
    decoder, _ = decoder_of(plan.model)
    lines = header("torchtitan", VERSION, plan, said)
    lines.append(f"use: PYTHONPATH=. torchrun ... -m torchtitan.train --module {MODULE} "
                 "--config planned")  # fmt: skip
    model = {"dim": decoder.hidden, "n_layers": decoder.num_layers, "n_heads": decoder.heads,
             "n_kv_heads": decoder.kv_heads, "vocab_size": decoder.vocabulary}  # fmt: skip
    text = _TEMPLATE.format(
        comments=commented(lines),
        model=", ".join(f"{key}={value}" for key, value in model.items()),
        ffn_hidden=decoder.ffn_hidden, max_length=plan.job.sequence_length,
        name=plan.model.name, loss=said.options["loss"],
        activation_checkpoint=said.options["activation_checkpoint"],
        training=_arguments(said.options["training"]),
        parallelism=_arguments(said.options["parallelism"]),
    )  # fmt: skip
    return {f"{MODULE}.py": text}


def _arguments(values: dict[str, Any]) -> str:
    return "".join(f"            {key}={value!r},\n" for key, value in flatten(values).items())


def read_torchtitan_python(text: str) -> Reading:
    """The layout and batch of a configuration function; the module is parsed, never run.

    Raises:
        ValueError: If it is not Python, or builds no ``ParallelismConfig``.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"not valid Python in line {error.lineno}") from None
    calls = {_name(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if "ParallelismConfig" not in calls and "TrainingConfig" not in calls:
        raise Unrecognised("found no ParallelismConfig(...): not torchtitan 0.3's configuration")
    parallel, training = (_literals(calls.get(name)) for name in
                          ("ParallelismConfig", "TrainingConfig"))  # fmt: skip
    if "num_tokens_per_train_step" in training:
        raise ValueError("this is written for torchtitan's main branch (num_tokens_per_...); only "
                         "0.3's names are read")  # fmt: skip
    trainer = {word.arg: word.value for word in calls["Trainer.Config"].keywords} \
        if "Trainer.Config" in calls else {}  # fmt: skip
    policy = ast.unparse(trainer["activation_checkpoint"]) \
        if "activation_checkpoint" in trainer else "None"  # fmt: skip
    mode = next((ours for ours, name in POLICIES.items() if name.split(".")[0] in policy), "none")
    reading = reading_of(
        parallel, training, mode=mode,
        sequence_parallel=bool(parallel.get("enable_sequence_parallel", True)),
    )  # fmt: skip
    if "loss" in trainer and "ChunkedLoss" in ast.unparse(trainer["loss"]):
        reading.settings["fused_loss"] = True
    return reading


def _name(node: ast.expr) -> str:
    return ast.unparse(node)


def _literals(call: ast.Call | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in call.keywords if call else ():
        try:
            found[str(word.arg)] = ast.literal_eval(word.value)
        except ValueError:
            continue
    return found
