"""Wrong configs: one line that names the key, and no code of theirs ever run."""

import json

import pytest

from planner.catalogue import load_model
from planner.model.huggingface import model_from_config, read_model
from tests.model.test_huggingface import LLAMA


def without(*keys):
    return {k: v for k, v in LLAMA.items() if k not in keys}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (without("hidden_size"), "hidden_size is missing"),
        (without("num_hidden_layers"), "num_hidden_layers is missing"),
        (without("num_attention_heads"), "num_attention_heads is missing"),
        (without("vocab_size"), "vocab_size is missing"),
        (without("intermediate_size"), "intermediate_size is missing"),
        ({**LLAMA, "num_attention_heads": 0}, "num_attention_heads must be 1 to"),
        ({**LLAMA, "num_attention_heads": -32}, "num_attention_heads must be 1 to"),
        ({**LLAMA, "num_key_value_heads": 0}, "num_key_value_heads must be 1 to"),
        ({**LLAMA, "num_key_value_heads": 5}, "num_attention_heads 32 must be a multiple of"),
        ({**LLAMA, "hidden_size": 4097}, "hidden_size 4097 must be a multiple of"),
        ({**LLAMA, "hidden_size": "4096"}, "hidden_size must be a whole number, got '4096'"),
        ({**LLAMA, "hidden_size": 4096.5}, "hidden_size must be a whole number, got 4096.5"),
        ({**LLAMA, "hidden_size": [4096]}, r"hidden_size must be a whole number, got \[4096\]"),
        ({**LLAMA, "hidden_size": True}, "hidden_size must be a whole number, got True"),
        ({**LLAMA, "vocab_size": 10**30}, "vocab_size must be 1 to"),
        ({**LLAMA, "num_hidden_layers": float("nan")}, "num_hidden_layers must be a whole"),
        ({**LLAMA, "tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        ({**LLAMA, "attention_bias": 1}, "attention_bias must be true or false"),
        ({**LLAMA, "model_type": 7}, "model_type must be text, got 7"),
        ({**LLAMA, "text_config": "x"}, "text_config must be an object"),
        ({**LLAMA, "num_local_experts": 8}, "num_experts_per_tok is missing"),
        (
            {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 9},
            "num_experts_per_tok 9 is more than the 8 experts",
        ),
        ({**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2,
          "mlp_only_layers": "all"}, "mlp_only_layers must be a list"),
        ({}, "model_type '' is not known and hidden_size is missing"),
        ({"model_type": "bart", "d_model": 64, "vocab_size": 9}, "attention_heads is missing"),
        ({"model_type": "resnet", "depths": [3, 4, 6]}, "depths must be four whole numbers"),
        ({"model_type": "resnet", "depths": [2, 2, 2, 2], "layer_type": "basic"}, "layer_type"),
        ({"model_type": "convnext", "depths": [3, 3, 9, 3]}, "'convnext' is not known"),
        ({"model_type": "lama"}, "'lama' is not known and hidden_size is missing; nearest"),
        ({**LLAMA, "model_type": "custom", "auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
        ({**LLAMA, "model_type": "../../etc/passwd", "is_encoder_decoder": True}, "not known"),
        ({**LLAMA, "model_type": "mamba-like", "state_size": 16}, "state_size tells of layers"),
        ({**LLAMA, "model_type": "hybrid", "linear_num_value_heads": 32}, "linear_num_value"),
        ({**LLAMA, "model_type": "qwen3_next"}, "linear_num_key_heads is missing"),
        ({**LLAMA, "model_type": "qwen3_next", "linear_num_key_heads": 16,
          "linear_num_value_heads": 32, "linear_key_head_dim": 128,
          "linear_value_head_dim": 128, "layer_types": ["full_attention"]},
         "layer_types has 1 entries for 32 layers"),
        ({"model_type": "vit", "hidden_size": 64, "intermediate_size": 64, "patch_size": 32,
          "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16}, "patch_size 32"),
    ],
)  # fmt: skip
def test_one_line_names_the_key(config, message):
    with pytest.raises(ValueError, match=message) as raised:
        model_from_config(config)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[1, 2]", "must hold one JSON object, got a list"),
        (b"3", "must hold one JSON object, got a int"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_files_that_are_no_config(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        read_model(path)
    assert "\n" not in str(raised.value)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2 * 2**30)  # sparse: takes no space
    with pytest.raises(ValueError, match="has 2048 MiB, a config at most 16"):
        read_model(path)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*config.json: No such file"):
        read_model(tmp_path)
    for wrong in (str(tmp_path / "absent.json"), "./absent", "a/b/c"):
        with pytest.raises(ValueError, match="cannot read"):
            load_model(wrong)
    with pytest.raises(ValueError, match="no model is called 'llama-8b'; nearest"):
        load_model("llama-8b")


def test_known_families_with_code_of_their_own_are_read_without_it():
    model = model_from_config({**LLAMA, "auto_map": {"AutoModel": "modeling_x.Model"}})
    assert any("auto_map" in said and "never run" in said for said in model.assumptions)


def test_what_is_left_out_is_said():
    config = {
        **LLAMA, "model_type": "deepseek_v3", "num_nextn_predict_layers": 1,
        "quantization_config": {"quant_method": "fp8"}, "n_routed_experts": 1,
        "kv_lora_rank": None,
    }  # fmt: skip
    said = " ".join(model_from_config(config).assumptions)
    assert "1 multi-token prediction layer(s) are left out" in said
    assert "quantization_config" in said


def test_an_unknown_decoder_is_read_with_the_assumption_recorded():
    config = {**LLAMA, "model_type": "newcomer", "rms_norm_eps": 1e-5}
    model = model_from_config(config)
    assert model.total_parameters == 6_738_415_616
    assert any("'newcomer' is not known" in said for said in model.assumptions)
    old = {**without("intermediate_size"), "model_type": "newcomer", "layer_norm_eps": 1e-5}
    assert any("GPT-2" in said for said in model_from_config(old).assumptions)


def test_class_name_stands_in_for_a_missing_type():
    config = {**without("model_type"), "architectures": ["LlamaForCausalLM"]}
    assert model_from_config(config).total_parameters == 6_738_415_616


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "x"\n', r"needs a table \[config\]"),
        ('name = "x"\nsize = 3\n', "unknown key 'size'"),
        ('name = "x"\n[resnet]\ndepths = [3, 4]\nimage_size = 64\nnum_classes = 2\n',
         "depths must be four"),
        ('name = "x"\n[resnet]\ndepths = [1,1,1,1]\nimage_size = 225\n'
         "num_classes = 2\n", "multiple of 32"),
        ('name = "x"\nsequence_length = "long"\n[resnet]\ndepths = [1,1,1,1]\nimage_size = 64\n'
         "num_classes = 3\n", "sequence_length must be a whole number"),
    ],
)  # fmt: skip
def test_wrong_presets(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_model(str(path))


def test_a_preset_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    lines = "\n".join(f"{k} = {json.dumps(v)}" for k, v in LLAMA.items())
    path.write_text(f'name = "mine"\nsequence_length = 1024\n[config]\n{lines}\n')
    model = load_model(str(path))
    assert (model.name, model.sequence_length) == ("mine", 1024)
