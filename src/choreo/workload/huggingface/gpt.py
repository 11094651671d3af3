"""GPT-2, its successors, and other architectures with field names of their own."""

from __future__ import annotations

from dataclasses import replace

from choreo.errors import ModelError
from choreo.workload.huggingface.fields import Config
from choreo.workload.huggingface.llama import ACTIVATIONS, llama
from choreo.workload.model import Model

__all__ = ["bloom", "dbrx", "falcon", "gpt2", "gpt_neox", "gptj", "mpt", "opt", "phi"]


def gpt2(config: Config, name: str) -> Model:
    """GPT-2, and GPT-BigCode, which has one key-value head."""
    heads = config.number("n_head", "num_attention_heads")
    return Model(
        name,
        layers=config.number("n_layer", "num_hidden_layers"),
        hidden=config.number("n_embd", "hidden_size"),
        heads=heads,
        kv_heads=1 if config.flag("multi_query", default=False) else heads,
        ffn=config.number("n_inner", "intermediate_size", default=0),
        vocab=config.number("vocab_size"),
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        learned_positions=config.number("n_positions", "n_ctx", "max_position_embeddings"),
        bias=True,
        norm="layer",
        dropout=config.share("resid_pdrop") > 0,
        max_seq=config.number("n_positions", "n_ctx", default=0),
        activation=ACTIVATIONS.get(config.text("activation_function", "gelu_new"), ""),
        norm_eps=config.real("layer_norm_epsilon", default=1e-5),
    )


def gpt_neox(config: Config, name: str) -> Model:
    """GPT-NeoX: biases, and parallel attention and MLP with a norm each."""
    model = llama(config, name, norm="layer", rotary_share=0.25)
    parallel = config.flag("use_parallel_residual", default=True)
    bias = config.flag("attention_bias", default=True)
    activation = model.activation if model.activation != "silu" else "gelu"
    return replace(model, gated=False, activation=activation, bias=bias, qkv_bias=False, parallel_block=parallel)


def gptj(config: Config, name: str) -> Model:
    """GPT-J: parallel attention and MLP with one norm; the biases of its MLP are not counted."""
    model = replace(gpt2(config, name), learned_positions=0, bias=False, head_bias=True, parallel_block=True)
    share = config.number("rotary_dim", default=model.head_dim) / model.head_dim
    tied = config.flag("tie_word_embeddings", default=False)
    return replace(model, norms_per_layer=1, tied_embeddings=tied, rotary_share=share)


def phi(config: Config, name: str) -> Model:
    """Phi-1 to 2: parallel attention and MLP with one norm, biases everywhere."""
    model = llama(config, name, norm="layer", rotary_share=0.5)
    return replace(
        model,
        gated=False,
        activation="gelu-tanh",
        bias=True,
        qkv_bias=False,
        head_bias=True,
        parallel_block=True,
        norms_per_layer=1,
    )


def opt(config: Config, name: str) -> Model:
    """OPT: GPT-3's shape."""
    hidden = config.number("hidden_size")
    if (narrow := config.number("word_embed_proj_dim", default=hidden)) != hidden:
        raise ModelError(
            f"word_embed_proj_dim {narrow} is not hidden_size {hidden}, and only equal ones are known here"
        )
    return Model(
        name,
        layers=config.number("num_hidden_layers"),
        hidden=hidden,
        heads=config.number("num_attention_heads"),
        ffn=config.number("ffn_dim"),
        vocab=config.number("vocab_size"),
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        learned_positions=config.number("max_position_embeddings") + 2,  # its table starts two rows in
        activation="relu" if config.text("activation_function", "relu") == "relu" else "gelu",
        bias=config.flag("enable_bias", default=True),
        norm="layer",
        dropout=config.share("dropout") > 0,
        max_seq=config.number("max_position_embeddings"),
    )


def bloom(config: Config, name: str) -> Model:
    """BLOOM: ALiBi, and a norm after the embedding."""
    return Model(
        name,
        layers=config.number("n_layer", "num_hidden_layers"),
        hidden=config.number("hidden_size", "n_embed"),
        heads=config.number("n_head", "num_attention_heads"),
        vocab=config.number("vocab_size"),
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        rotary=False,
        bias=True,
        norm="layer",
        embedding_norm=True,
        activation="gelu-tanh",
        dropout=config.share("hidden_dropout") > 0,
        max_seq=config.number("seq_length", default=0),
        norm_eps=config.real("layer_norm_epsilon", default=1e-5),
    )


def falcon(config: Config, name: str) -> Model:
    """Falcon, in its three shapes: 1B, 7B, and 40B with 180B."""
    heads = config.number("num_attention_heads", "n_head")
    new = config.flag("new_decoder_architecture", default=False)
    parallel = new or config.flag("parallel_attn", default=True)
    shared = 1 if config.flag("multi_query", default=True) else heads
    two = not parallel or (new and config.number("num_ln_in_parallel_attn", default=2) == 2)
    return Model(
        name,
        layers=config.number("num_hidden_layers", "n_layer"),
        hidden=config.number("hidden_size"),
        heads=heads,
        kv_heads=config.number("num_kv_heads", "n_head_kv", default=heads) if new else shared,
        ffn=config.number("ffn_hidden_size", default=0),
        vocab=config.number("vocab_size"),
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        rotary=not config.flag("alibi", default=False),
        bias=config.flag("bias", default=False),
        norm="layer",
        norms_per_layer=2 if two else 1,
        parallel_block=parallel,
        max_seq=config.number("max_position_embeddings", default=0),
        norm_eps=config.real("layer_norm_epsilon", default=1e-5),
    )


def mpt(config: Config, name: str) -> Model:
    """MPT, with llm-foundry's field names."""
    heads = config.number("n_heads", "num_attention_heads")
    hidden = config.number("d_model", "hidden_size")
    attention = config.inside("attn_config")
    positions = config.number("max_seq_len", default=2048)
    other = attention.flag("alibi", default=False) or attention.flag("rope", default=False)
    learned = config.flag("learned_pos_emb", default=True) and not other
    bias = not config.flag("no_bias", default=False)
    return Model(
        name,
        layers=config.number("n_layers", "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=attention.number("kv_n_heads", default=heads),
        ffn=config.number("expansion_ratio", default=4) * hidden,
        vocab=config.number("vocab_size"),
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        learned_positions=positions if learned else 0,
        rotary=attention.flag("rope", default=False),
        bias=bias,
        norm="layer" if bias else "layer-no-bias",
        max_seq=positions,
    )


def dbrx(config: Config, name: str) -> Model:
    """DBRX: experts, with llm-foundry's field names."""
    attention, ffn = config.inside("attn_config"), config.inside("ffn_config")
    heads = config.number("n_heads", "num_attention_heads")
    return Model(
        name,
        layers=config.number("n_layers", "num_hidden_layers"),
        hidden=config.number("d_model", "hidden_size"),
        heads=heads,
        kv_heads=attention.number("kv_n_heads", default=heads),
        ffn=ffn.number("ffn_hidden_size"),
        gated=True,
        vocab=config.number("vocab_size"),
        tied_embeddings=config.flag("tie_word_embeddings", default=False),
        norm="layer-no-bias",
        experts=ffn.number("moe_num_experts"),
        experts_per_token=ffn.number("moe_top_k"),
        max_seq=config.number("max_seq_len", default=0),
    )
