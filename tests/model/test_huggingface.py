"""Parameter counts of published configs, against published totals and transformers."""

import copy
import json
from pathlib import Path

import pytest

from planner.catalogue import list_presets, load_model
from planner.model import Experts
from planner.model.huggingface import model_from_config, read_model

CONFIGS = Path(__file__).parent / "configs"
PUBLISHED = json.loads((CONFIGS / "published_totals.json").read_text())
RECOUNTED = json.loads((CONFIGS / "recounted.json").read_text())

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def by_model(row):
    return row["model"]


@pytest.mark.parametrize("row", PUBLISHED, ids=by_model)
def test_published_totals(row):
    model = model_from_config(row["config"])
    assert model.total_parameters == row["total_parameters"], model.assumptions
    if "active_parameters" in row:
        assert model.active_parameters == row["active_parameters"]


@pytest.mark.parametrize("row", RECOUNTED, ids=by_model)
def test_totals_recounted_with_transformers_5(row):
    assert model_from_config(row["config"]).total_parameters == row["total_parameters"]


@pytest.mark.parametrize("row", RECOUNTED, ids=by_model)
def test_totals_and_active_against_the_installed_transformers(row):
    total, experts = _count_on_meta_device(row)
    model = model_from_config(row["config"])
    assert model.total_parameters == total
    layers = [(run.block.feed_forward, run.count) for run in model.layers]
    kinds = [feed for feed, _ in layers if isinstance(feed, Experts)]
    if kinds:
        share = kinds[0].experts_per_token / kinds[0].num_experts
        assert model.active_parameters == total - round(experts * (1 - share))
    else:
        assert model.active_parameters == total


def _count_on_meta_device(row):
    """All parameters and those of routed experts, of the class the row names."""
    transformers = pytest.importorskip("transformers", minversion="5.20")
    torch = pytest.importorskip("torch")
    transformers.logging.set_verbosity_error()
    classes = {
        "causal": transformers.AutoModelForCausalLM,
        "seq2seq": transformers.AutoModelForSeq2SeqLM,
        "base": transformers.AutoModel,
        "image": transformers.AutoModelForImageClassification,
        "masked": transformers.AutoModelForMaskedLM,
        "pretraining": transformers.AutoModelForPreTraining,
        "vlm": transformers.AutoModelForImageTextToText,
        "speech": transformers.AutoModelForSpeechSeq2Seq,
    }
    values = copy.deepcopy(row["config"])
    config = transformers.CONFIG_MAPPING[values.pop("model_type")].from_dict(values)
    with torch.device("meta"):
        network = classes[row["auto_class"]].from_config(config)
    network.tie_weights()
    counts = {name: p.numel() for name, p in network.named_parameters()}
    routed = [n for n in counts if _is_routed(n)]
    return sum(counts.values()), sum(counts[n] for n in routed)


def _is_routed(name):
    """Weights of routed experts as transformers names them; Granite calls them input_linear."""
    return (
        ".experts." in name
        or ".block_sparse_moe.input_linear" in name
        or (".block_sparse_moe.output_linear" in name)
    )


@pytest.mark.parametrize(
    ("total", "config"),
    [
        # Families whose code is in their own repositories: totals on their model cards.
        (
            7_505_973_248,  # Baichuan2-7B
            {**LLAMA, "model_type": "baichuan", "vocab_size": 125696, "auto_map": {"x": "y"}},
        ),
        (
            7_737_708_544,  # internlm2-7b
            {**LLAMA, "model_type": "internlm2", "intermediate_size": 14336,
             "num_key_value_heads": 8, "vocab_size": 92544, "bias": False},
        ),
        (
            7_721_324_544,  # Qwen-7B: intermediate_size counts gate and up together
            {**LLAMA, "model_type": "qwen", "intermediate_size": 22016, "vocab_size": 151936},
        ),
        (
            6_243_584_000,  # chatglm3-6b
            {"model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696,
             "num_layers": 28, "num_attention_heads": 32, "kv_channels": 128,
             "multi_query_attention": True, "multi_query_group_num": 2,
             "padded_vocab_size": 65024, "seq_length": 8192, "add_qkv_bias": True},
        ),
        (
            300_176_768,  # google/mt5-small; T5 v1.1 does not share the head
            {"model_type": "mt5", "d_model": 512, "d_ff": 1024, "d_kv": 64, "num_layers": 8,
             "num_decoder_layers": 8, "num_heads": 6, "vocab_size": 250112,
             "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        ),
    ],
    ids=["baichuan2-7b", "internlm2-7b", "qwen-7b", "chatglm3-6b", "mt5-small"],
)  # fmt: skip
def test_families_without_a_class_in_transformers(total, config):
    assert model_from_config(config).total_parameters == total


@pytest.mark.parametrize("name", list_presets("models"))
def test_every_preset_loads_with_a_source_and_nothing_assumed(name):
    model = load_model(name)
    assert model.name == name
    assert model.source
    assert model.assumptions == ()
    assert 0 < model.active_parameters <= model.total_parameters


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("llama-7b", 6_738_415_616),
        ("llama-65b", 65_285_660_672),
        ("llama-3-405b", 405_853_388_800),
        ("gpt3-175b", 174.6e9),
        ("mt-nlg-530b", 530e9),
        ("gpt-1t", 1008e9),
        ("bloom", 176_247_271_424),
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("resnet-50", 25_557_032),
        ("resnet-152", 60_192_808),
        ("t5-11b", 11_307_321_344),
        ("meta-llama/Llama-2-70b-hf", 68_976_648_192),
    ],
)
def test_preset_totals(name, total):
    exact = isinstance(total, int)
    assert load_model(name).total_parameters == (
        total if exact else pytest.approx(total, rel=2e-3)
    )


def test_reads_a_file_and_its_folder(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    for given in (path, tmp_path):
        model = read_model(given)
        assert model.total_parameters == 6_738_415_616
        assert model.name == tmp_path.name
        assert load_model(str(given)) == model


def test_resnet_config():
    """microsoft/resnet-50: as torchvision's, 25,557,032."""
    config = {
        "model_type": "resnet", "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048],
        "depths": [3, 4, 6, 3], "layer_type": "bottleneck", "downsample_in_first_stage": False,
        "id2label": {str(label): "x" for label in range(1000)},
    }  # fmt: skip
    assert model_from_config(config).total_parameters == 25_557_032


def test_long_contexts_are_cut_and_said():
    config = {**LLAMA, "max_position_embeddings": 131072}
    model = model_from_config(config)
    assert model.sequence_length == 8192
    assert any("131072" in said for said in model.assumptions)
    config["rope_scaling"] = {"original_max_position_embeddings": 4096, "rope_type": "llama3"}
    assert model_from_config(config).sequence_length == 4096


def test_padding_of_the_vocabulary_is_its_own_figure():
    model = load_model("gpt2")
    assert model.padding_parameters(multiple=128, tp=1) == (50304 - 50257) * 768
    assert model.padding_parameters(multiple=128, tp=8) == (51200 - 50257) * 768
    assert load_model("llama-7b").padding_parameters(multiple=128, tp=8) == 2 * 768 * 4096
