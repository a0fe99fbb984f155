"""Oddities of published config.json files that other tools have tripped over.

Each case names the public report; the figures are those of the report or of the file.
"""

import pytest

from planner.catalogue import load_model
from planner.model import Experts
from planner.model.huggingface import model_from_config

QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
FALCON_7B = {
    "model_type": "falcon",
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "vocab_size": 65024,
    "multi_query": True,
    "new_decoder_architecture": False,
    "parallel_attn": True,
    "bias": False,
}


def attention_of(model):
    return model.layers[0].block.attention


def test_f01_gemma_3_keeps_its_sizes_in_text_config():
    """huggingface/transformers#36683, vllm-project/vllm#14687: the 4B file is nested and bare."""
    nested = {
        "model_type": "gemma3",
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
        "vision_config": {
            "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
            "image_size": 896, "patch_size": 14,
        },
    }  # fmt: skip
    model = model_from_config(nested)
    assert model.total_parameters == 4_300_079_472
    assert model.total_parameters - model.extra_parameters == 3_880_263_168, "the text part"
    assert (attention_of(model).heads, attention_of(model).head_dim) == (8, 256)
    assert any("vision tower" in said for said in model.assumptions)
    assert any("num_attention_heads" in said for said in model.assumptions)


def test_f01_gemma_3_1b_is_flat():
    flat = {
        "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "vocab_size": 262144,
    }  # fmt: skip
    assert model_from_config(flat).total_parameters == 999_885_952


def test_f02_heads_of_a_multimodal_mistral_are_found():
    """llm-d/llm-d-benchmark#367: a planner crashed for lack of num_attention_heads."""
    config = {
        "model_type": "mistral3",
        "text_config": {
            "model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768,
            "num_hidden_layers": 40, "head_dim": 128, "vocab_size": 131072,
        },
        "vision_config": {"model_type": "pixtral", "hidden_size": 1024},
    }  # fmt: skip
    attention = attention_of(model_from_config(config))
    assert (attention.heads, attention.kv_heads) == (32, 8)


@pytest.mark.parametrize(
    ("change", "kv_heads"),
    [
        ({}, 1),
        ({"multi_query": False}, 71),
        ({"new_decoder_architecture": True, "num_attention_heads": 128, "hidden_size": 8192,
          "num_kv_heads": 8}, 8),
        ({"num_kv_heads": 71}, 1),  # the class writes it, the old architecture ignores it
    ],
)  # fmt: skip
def test_f05_falcon_kv_heads(change, kv_heads):
    """vllm-project/vllm PR#1164, huggingface/transformers PR#24523: the family's rule."""
    assert attention_of(model_from_config({**FALCON_7B, **change})).kv_heads == kv_heads


def test_f05_falcon_40b_in_its_old_file():
    """The first file says RefinedWeb with n_head_kv and has no new_decoder_architecture."""
    old = {
        "model_type": "RefinedWeb", "hidden_size": 8192, "n_layer": 60, "n_head": 128,
        "n_head_kv": 8, "vocab_size": 65024, "bias": False, "multi_query": True,
        "parallel_attn": True,
    }  # fmt: skip
    assert model_from_config(old).total_parameters == 41_303_293_952
    old_7b = {
        "model_type": "RefinedWebModel", "hidden_size": 4544, "n_layer": 32, "n_head": 71,
        "vocab_size": 65024, "bias": False, "multi_query": True, "parallel_attn": True,
    }  # fmt: skip
    assert model_from_config(old_7b).total_parameters == 6_921_720_704


@pytest.mark.parametrize("value", ["absent", None])
def test_f07_absent_or_null_kv_heads_mean_all(value):
    """TransformerLensOrg/TransformerLens#522; phi writes null."""
    config = {
        "model_type": "phi", "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 24, "num_attention_heads": 32, "vocab_size": 51200,
        "tie_word_embeddings": False, "num_key_value_heads": value,
    }  # fmt: skip
    if value == "absent":
        del config["num_key_value_heads"]
    model = model_from_config(config)
    assert attention_of(model).kv_heads == 32
    assert model.total_parameters == 1_418_270_720


def test_f08_gemma_2_without_the_key_is_tied():
    """EricLBuehler/mistral.rs PR#1823: read untied, Gemma-2-9B has 10.16B."""
    config = {
        "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
        "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256, "vocab_size": 256000,
    }  # fmt: skip
    assert model_from_config(config).total_parameters == 9_241_705_984
    untied = model_from_config({**config, "tie_word_embeddings": False})
    assert untied.total_parameters == pytest.approx(10.16e9, rel=1e-3)


def test_f08_llama_without_the_key_is_untied():
    config = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000,
    }  # fmt: skip
    assert model_from_config(config).total_parameters == 6_738_415_616


@pytest.mark.parametrize(
    ("name", "unique", "stored"),
    [
        ("qwen3-0.6b", 596_049_920, 751_632_384),
        ("qwen3-1.7b", 1_720_574_976, 2_031_739_904),
        ("falcon-7b", 6_921_720_704, 7_217_189_760),
        ("qwen3-8b", 8_190_735_360, 8_190_735_360),  # untied: nothing twice
    ],
)
def test_f09_unique_and_stored_elements(name, unique, stored):
    """Checkpoints that store a tied head hold more elements than the model trains."""
    model = load_model(name)
    assert (model.total_parameters, model.stored_parameters) == (unique, stored)


def test_f11_qwen3_moe_does_not_use_its_dense_width():
    """NVIDIA-NeMo/Megatron-Bridge#3817: intermediate_size 6144 stands in the file, unused."""
    assert model_from_config(QWEN3_MOE).total_parameters == 30_532_122_624
    wider = {**QWEN3_MOE, "intermediate_size": 12288}
    assert model_from_config(wider).total_parameters == 30_532_122_624
    mixed = {**QWEN3_MOE, "mlp_only_layers": [0]}
    assert model_from_config(mixed).total_parameters != 30_532_122_624


def test_f13_deepseek_v3_first_layers_are_dense():
    """671,026,404,352 trained; 14,848 correction biases of the routers are buffers."""
    model = load_model("deepseek-v3")
    assert 671_026_419_200 - model.total_parameters == 58 * 256
    assert [run.count for run in model.layers] == [3, 58]
    assert isinstance(model.layers[1].block.feed_forward, Experts)
    assert model.active_parameters == pytest.approx(37.55e9, rel=1e-3)


def test_f17_llama_405b_with_8_or_16_kv_heads():
    """The first release said 16, the current file says 8: the file decides."""
    config = {
        "model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248,
        "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8,
        "vocab_size": 128256, "tie_word_embeddings": False,
    }  # fmt: skip
    assert model_from_config(config).total_parameters == 405_853_388_800
    config["num_key_value_heads"] = 16
    assert model_from_config(config).total_parameters == 410_081_247_232


def test_d24_experts_count_in_full_for_memory():
    """jranaraki/vllm-fit#27: Mixtral read as 13B; Qwen1.5-MoE-A2.7B holds 14.3B."""
    mixtral = load_model("mixtral-8x7b")
    assert mixtral.total_parameters == 46_702_792_704
    assert mixtral.active_parameters == 12_879_925_248
    qwen = {
        "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936,
        "tie_word_embeddings": False,
    }  # fmt: skip
    model = model_from_config(qwen)
    assert model.total_parameters == pytest.approx(14.3e9, rel=2e-3)
    assert model.active_parameters == pytest.approx(2.7e9, rel=5e-3)
