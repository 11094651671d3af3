"""Models: counts of parameters against what was published, config.json as it is, and what a bad one is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from choreo.errors import ModelError, UnknownNameError, UsageError
from choreo.workload import (
    Model,
    Plan,
    Recommender,
    embedding_graph,
    get_model,
    get_workload,
    head_graph,
    layer_graph,
    list_models,
    list_workloads,
    model_file,
    read_config,
)
from choreo.workload.graph.transformer import further_token_graph

CONFIGS = Path(__file__).parents[1] / "data" / "models"

# As the checkpoints have them, to the last one.
EXACT = {
    "bloom": 176_247_271_424,
    "command-r-plus": 103_810_674_688,
    "command-r7b": 8_028_033_024,
    "dbrx": 131_596_523_520,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "ernie-4.5-300b-a47b": 299_484_163_264,
    "exaone-4.0-32b": 32_003_216_384,
    "falcon-7b": 6_921_720_704,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-27b": 27_009_346_304,
    "gemma-3-4b": 3_880_263_168,
    "gemma-7b": 8_537_680_896,
    "glm-4.7-flash": 29_943_393_920,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "granite-3.1-3b-a800m": 3_298_793_472,
    "hunyuan-a13b": 80_393_183_232,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mpt-7b": 6_649_286_656,
    "nemotron-4-340b": 341_029_195_776,
    "olmo-3-32b": 32_233_522_176,
    "olmoe-1b-7b": 6_919_161_856,
    "opt-1.3b": 1_315_758_080,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "qwen2-7b": 7_615_616_512,
    "qwen2-moe": 14_315_784_192,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-8b": 8_190_735_360,
    "qwen3-vl-235b": 235_093_634_560,
    "starcoder2-7b": 7_173_923_840,
}

# Billions, as papers round them.
PUBLISHED = {
    "gpt2-124m": 0.124,
    "gpt2-1.5b": 1.56,
    "gpt3-175b": 174.6,
    "megatron-1.7b": 1.7,
    "megatron-3.6b": 3.6,
    "megatron-7.5b": 7.5,
    "megatron-18.4b": 18.4,
    "megatron-39.1b": 39.1,
    "megatron-76.1b": 76.1,
    "megatron-145.6b": 145.6,
    "megatron-310.1b": 310.1,
    "megatron-529.6b": 529.6,
    "megatron-1008b": 1008.0,
    "megatron-22b": 22.1,
    "llama-65b": 65.3,
    "llama2-7b": 6.74,
    "llama2-13b": 13.02,
    "llama2-70b": 68.98,
    "llama3-8b": 8.03,
    "llama3-70b": 70.55,
    "llama3-405b": 405.9,
    "llama3.2-3b": 3.21,
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 140.6,
    "deepseek-v2": 235.7,
    "deepseek-v3": 671.0,
    "bloom-7.1b": 7.07,
    "bloom-176b": 176.2,
    "mpt-760m": 0.76,
    "mpt-1b": 1.316,
    "mpt-3b": 2.652,
    "mpt-7b": 6.659,
    "mpt-13b": 12.854,
    "mpt-30b": 29.975,
    "mpt-70b": 64.862,
    "nemotron4-15b": 15.6,
    "nemotron4-340b": 341.0,
    "palm-8b": 8.63,
    "palm-62b": 62.50,
    "palm-540b": 540.4,
    "qwen2.5-72b": 72.7,
    "qwen3-235b-a22b": 235.1,
    "gemma-2-9b": 9.24,
    "gemma-2-27b": 27.2,
    "gemma-3-27b": 27.0,
    "command-r": 35.0,
    "command-r-plus": 103.8,
    "mistral-large-123b": 122.6,
    "mistral-nemo-12b": 12.25,
    "mistral-small-24b": 23.57,
    "yi-34b": 34.39,
    "olmo-2-13b": 13.72,
    "hunyuan-a13b": 80.4,
    "gemma-2-2b": 2.61,
    "gemma-3-1b": 1.0,
    "gemma-3-4b": 3.88,
    "ernie-4.5-300b-a47b": 299.5,
    "resnet-50": 0.025557,
    "resnet-101": 0.04455,
    "resnet-152": 0.06019,
    "dlrm": 24.04,
}


# Billions of a checkpoint that holds more: a part that sees, layers that predict further tokens, a bias.
ROUNDED = {"glm-4.5-air": (106.9, 13.4), "llama-4-scout": (107.8, 17.2), "phi-3.5-moe": (41.9, 6.6)}


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
def test_config_json_as_it_is(name: str) -> None:
    model = read_config(CONFIGS / f"{name}.json")
    assert model.name == name
    if name in ROUNDED:
        assert (round(model.parameters / 1e9, 1), round(model.active_parameters / 1e9, 1)) == ROUNDED[name]
    else:
        assert model.parameters == EXACT[name]


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_catalogue_counts_what_was_published(name: str) -> None:
    published = PUBLISHED[name]
    half_a_digit = 0.5 * 10.0 ** -len(str(published).partition(".")[2])
    assert get_workload(name).parameters / 1e9 == pytest.approx(published, abs=half_a_digit * 1.1)


@pytest.mark.parametrize(
    ("name", "billions"), [("deepseek-v3", 37), ("deepseek-v2", 21), ("mixtral-8x7b", 12.9), ("qwen3-235b-a22b", 22)]
)
def test_active_parameters(name: str, billions: float) -> None:
    assert get_model(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.025)


@pytest.mark.parametrize("name", [model.name for model in list_models()])
def test_graph_and_formula_agree(name: str) -> None:
    """Two ways to the same numbers: the weights and products of the graph, and the closed forms."""
    model = get_model(name)
    seq = 512
    layers = [layer_graph(model, Plan(), seq, layer) for layer in range(model.layers)]
    whole = [embedding_graph(model, Plan(), seq), *layers, head_graph(model, Plan(), seq)]
    assert sum(graph.parameters for graph in whole) == model.parameters
    further = [further_token_graph(model, Plan(), seq), layers[-1], head_graph(model, Plan(), seq, shared=True)]
    flops = sum(graph.flops for graph in whole) + model.mtp_layers * sum(graph.flops for graph in further)
    assert flops == pytest.approx(seq * model.flops_per_token(seq), rel=1e-12)
    assert sum(model.parameters_per_layer(layer) for layer in range(model.layers)) == sum(
        graph.parameters for graph in layers
    )


def test_every_entry_has_a_source_and_a_name_of_its_own() -> None:
    names = [workload.name for workload in list_workloads()]
    assert len(set(names)) == len(names)
    assert all(len(model_file(name).source) > 20 for name in names)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama-2-70B", "llama2-70b"),
        ("llama3.1 405B", "llama3-405b"),
        ("GPT3", "gpt3-175b"),
        ("gpt-1t", "megatron-1008b"),
        ("BLOOM", "bloom-176b"),
        ("resnet50", "resnet-50"),
        ("Command R+", "command-r-plus"),
        ("google/gemma-3-27b-pt", "gemma-3-27b"),
        ("allenai/OLMo-2-0325-32B-Instruct", "olmo-2-32b"),
        ("mistralai/Mistral-Large-Instruct-2407", "mistral-large-123b"),
        ("Megatron-Turing NLG 530B", "megatron-529.6b"),
    ],
)
def test_names_as_people_type_them(text: str, name: str) -> None:
    assert get_workload(text).name == name


def test_names_that_are_not_there() -> None:
    with pytest.raises(UnknownNameError, match=r"there is no model 'llama3-7b'; did you mean .*'llama3-8b'"):
        get_model("llama3-7b")
    with pytest.raises(ModelError, match=r"^ai21labs/Jamba-v0.1 has layers with a state space \(Mamba\), which cannot"):
        get_model("ai21labs/Jamba-v0.1")
    with pytest.raises(ModelError, match=r"resnet-50 is not a transformer"):
        get_model("resnet-50")
    with pytest.raises(UsageError, match="a model is a name, a path or a Model, not int"):
        get_model(7)  # type: ignore[arg-type]
    model = get_model("llama3-8b")
    assert get_model(model) is model


def test_folder_with_a_config_json(tmp_path: Path) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text((CONFIGS / "llama-2-7b.json").read_text(encoding="utf-8"), encoding="utf-8")
    assert get_model(str(folder)).name == "My-Llama"
    assert read_config(folder).parameters == EXACT["llama-2-7b"]


def llama(**changes: object) -> dict[str, object]:
    data: dict[str, object] = json.loads((CONFIGS / "llama-2-7b.json").read_text(encoding="utf-8"))
    return {key: value for key, value in {**data, **changes}.items() if value != "left out"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"num_attention_heads": "left out", "num_attention_head": 32},
            "config.json: num_attention_heads is missing, which a llama model has; the nearest field there is "
            "'num_attention_head'",
        ),
        (
            {"hidden_size": "left out"},
            "config.json: hidden_size is missing, which a llama model has; add it",
        ),
        ({"hidden_size": "wide"}, 'config.json: hidden_size must be a whole number, not "wide"'),
        ({"tie_word_embeddings": 3}, "config.json: tie_word_embeddings must be true or false, not 3"),
        ({"attention_dropout": 7}, "config.json: attention_dropout must be a number from 0 to 1, not 7"),
        (
            {"model_type": "lama"},
            "config.json: model_type 'lama' is not an architecture known here; the nearest known are llama, "
            "llama4_text, glm",
        ),
        (
            {"model_type": "left out"},
            "config.json: model_type is missing, so its architecture is not known; add it, as in 'llama'",
        ),
        (
            {"model_type": "qwen3_next"},
            "config.json: a qwen3_next model has layers with linear attention, which cannot be described here",
        ),
        (
            {"model_type": "minimax"},
            "config.json: a minimax model has layers with linear attention, which cannot be described here",
        ),
        (
            {"model_type": "hunyuan", "use_cla": True},
            "config.json: use_cla is set: layers share their keys and values, which is not known here",
        ),
        (
            {"model_type": "hunyuan_v1_moe", "num_experts": 8, "moe_topk": [1, 2]},
            "config.json: moe_topk is not the same in all layers, which is not known here",
        ),
        (
            {"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 2, "moe_layer_end_index": 7},
            "config.json: moe_layer_end_index 7 is not the last of 32 layers, which is not known here",
        ),
        ({"model_type": 4}, "config.json: model_type must be text, not 4"),
        (
            {"num_key_value_heads": 5},
            "config.json: llama: heads 32 are not divisible by kv_heads 5; use 4 key-value heads",
        ),
        ({"num_hidden_layers": 0}, "config.json: llama: layers must be a whole number of at least 1, not 0"),
    ],
)
def test_bad_config_is_a_sentence(changes: dict[str, object], told: str) -> None:
    with pytest.raises(ModelError) as error:
        read_config(llama(**changes))
    assert str(error.value) == told


def test_bad_config_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"config\.json is not JSON"):
        read_config(path)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ModelError, match="must hold an object with the fields of a model"):
        read_config(path)
    path.write_text(json.dumps(llama(vocab_size="left out")), encoding="utf-8")
    with pytest.raises(ModelError) as error:
        read_config(path)
    assert str(error.value).startswith(f"{path}: vocab_size is missing")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_config(tmp_path / "none.json")


def test_nested_fields_are_named() -> None:
    data = json.loads((CONFIGS / "dbrx.json").read_text(encoding="utf-8"))
    del data["ffn_config"]["moe_top_k"]
    with pytest.raises(ModelError, match=r"ffn_config\.moe_top_k is missing, which a dbrx model has"):
        read_config(data)
    with pytest.raises(ModelError, match=r"attn_config must be an object, not 3"):
        read_config({**data, "attn_config": 3})


def test_from_numbers() -> None:
    model = Model("mine", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True, vocab=128256)
    assert model.parameters == EXACT["llama-3.1-8b"]
    usual = Model("gpt", layers=2, hidden=768, heads=12)
    assert (usual.kv_heads, usual.head_dim, usual.ffn) == (12, 64, 3072)
    assert Model("gated", layers=2, hidden=4096, heads=32, gated=True).ffn == 11008
    with pytest.raises(ModelError, match="hidden 4096 is not divisible by heads 24; give head_dim, or 16 heads"):
        Model("odd", layers=2, hidden=4096, heads=24)
    with pytest.raises(ModelError, match="experts_per_token 9 of 8 experts; it must be 1 to 8"):
        replace(get_model("mixtral-8x7b"), experts_per_token=9)
    with pytest.raises(ModelError, match="norm must be rms, layer"):
        Model("odd", layers=2, hidden=64, heads=2, norm="batch")
    with pytest.raises(ModelError, match="dense_layers 3 is more than the 2 layers there are"):
        Model("odd", layers=2, hidden=64, heads=2, dense_layers=3)


def test_fields_are_json() -> None:
    fields = get_model("deepseek-v3").fields()
    assert json.loads(json.dumps(fields))["latent"]["kv_rank"] == 512


def test_recommender_refuses_what_cannot_interact() -> None:
    with pytest.raises(ModelError, match="ends in 64 features and an embedding has 128"):
        Recommender("odd", (10,), 128, 13, (64,), (1,))
    with pytest.raises(ModelError, match="one of them is empty"):
        Recommender("odd", (), 128, 13, (128,), (1,))


def test_experts_by_layer() -> None:
    model = get_model("deepseek-v3")
    assert [model.has_experts(layer) for layer in range(5)] == [False] * 3 + [True] * 2
    assert replace(model, dense_layers=0, moe_every=2).moe_layers == 30
