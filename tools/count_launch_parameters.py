"""Build the models that `choreo plan` prints options for in Megatron-LM, and count their parameters.

    python tools/count_launch_parameters.py --megatron ../Megatron-LM

Options that parse may still describe another model. Here Megatron-LM makes the model from them, on PyTorch's device
`meta`, and it must have the parameters that the catalogue counts, without layers that predict further tokens. Modules
of Transformer Engine have the same parameters as Megatron-LM's own, which are built, so that no GPU is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from check_launch_options import prepare, prepare_megatron

from choreo.plan import get_cluster, get_software
from choreo.plan.job import TrainingJob
from choreo.plan.launch import Launch, launches
from choreo.workload import Model, Plan, list_models

# What only CUDA, APEX or Transformer Engine can run.
UNBUILT = (
    "moe_grouped_gemm", "moe_permute_fusion", "apply_rope_fusion", "persist_layer_norm", "bias_dropout_fusion",
    "gradient_accumulation_fusion", "perform_initialization",
)  # fmt: skip
TRIED = "--mock-data --tokenizer-type NullTokenizer --train-iters 10 --lr 1e-4 --transformer-impl local"


def prepare_local() -> None:
    """Make Megatron-LM's own modules stand for those of Transformer Engine, on one rank without a GPU."""
    import torch
    import torch.distributed
    from megatron.core import parallel_state
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.mla_qk_norm_config import QKNormConfigResolver

    torch.cuda.is_available = lambda: False
    torch.cuda.current_device = lambda: "meta"
    torch.cuda.Stream = lambda *_, **__: None
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)
    made = DotProductAttention.__init__

    def without_channels(self: Any, *args: Any, k_channels: int = 0, v_channels: int = 0, **more: Any) -> None:
        made(self, *args, **more)

    DotProductAttention.__init__ = without_channels
    # Norms that Transformer Engine fuses into products are modules of their own here.
    QKNormConfigResolver._raise_unused_q_norm = lambda _: None
    QKNormConfigResolver._mla_fused_linear_or_default = lambda self, given, _: given or self.linear_impl


def launch_of(model: Model) -> Launch:
    """Megatron-LM's options for a model on one GPU."""
    place, seq = get_cluster("hgx-h100"), min(4096, model.learned_positions or 4096)
    job = TrainingJob(model, 1, 4, seq, place, place.chip(None), get_software("megatron-core"), "bf16")
    return next(found for found in launches(job, Plan()) if found.program == "Megatron-LM")


def built_parameters(model: Model, launch: Launch) -> int:
    """The parameters of the model that Megatron-LM makes from the options."""
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.training import argument_utils, arguments

    sys.argv = ["pretrain_gpt.py", *shlex.split(f"{' '.join(launch.options)} {TRIED} --vocab-size {model.vocab - 1}")]
    args = arguments.parse_args()
    arguments.validate_args(args)
    config = argument_utils.core_transformer_config_from_args(args)
    config.use_cpu_initialization, config.mtp_num_layers = True, None
    for name in UNBUILT:
        setattr(config, name, False)
    if model.experts:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization)
    else:
        latent = config.multi_latent_attention
        spec = get_gpt_layer_local_spec(None, False, config.qk_layernorm, latent, normalization=args.normalization)
    with torch.device("meta"):
        built = GPTModel(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=args.padded_vocab_size or model.vocab,
            max_sequence_length=args.max_position_embeddings,
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            position_embedding_type=args.position_embedding_type,
            rotary_percent=args.rotary_percent,
            rotary_base=args.rotary_base,
            rope_scaling=args.use_rope_scaling,
        )
    return sum(parameter.numel() for parameter in built.parameters())


def expected_parameters(model: Model) -> int:
    """The catalogue's count, without the bias that balances experts, which is no parameter to Megatron-LM."""
    biases = model.experts * model.moe_layers * (model.router_bias and model.router_score == "sigmoid")
    return model.parameters - biases


def main() -> None:
    """Count all models, and end with 1 if any has other parameters."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--megatron", type=Path, required=True, help="a checkout of NVIDIA/Megatron-LM")
    parser.add_argument("--model", action="append", default=[], help="only this model; may be given again")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.megatron))
    prepare()
    prepare_megatron()
    prepare_local()
    equal, lacking, failed = 0, 0, []
    for model in list_models():
        launch = launch_of(model)
        if arguments.model and model.name not in arguments.model:
            continue
        if launch.lacks:
            lacking += 1
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                built = built_parameters(model, launch)
        except (Exception, SystemExit) as error:  # whatever Megatron-LM raises is its answer
            failed.append(f"{model.name}: {type(error).__name__}: {error}")
            continue
        equal += built == expected_parameters(model)
        if built != expected_parameters(model):
            failed.append(f"{model.name}: {built} parameters, not {expected_parameters(model)}")
    print(f"{equal} models have the parameters that the catalogue counts, {lacking} have no options")
    for line in failed:
        print(line)
    print(f"{len(failed)} failed", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
