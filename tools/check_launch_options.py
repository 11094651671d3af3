"""Hold the options that `choreo plan` prints to the programs' own argument parsers and assertions.

    python tools/check_launch_options.py --megatron ../Megatron-LM --torchtitan ../torchtitan

Each model of the catalogue is cut by several plans, and their options are given to the program in a checkout.
Megatron-LM parses them, validates them and makes its TransformerConfig; torchtitan parses them, and splits the layers
over stages. What either then holds must be the model and the plan. It needs torch, and tyro for
torchtitan; what else the programs import and is not installed is replaced by an empty module. Of plans and models that
a program cannot express, only the reason is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import itertools
import os
import shlex
import sys
import types
import typing
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from choreo.errors import ChoreoError
from choreo.plan import get_cluster, get_software
from choreo.plan.job import TrainingJob
from choreo.plan.launch import launches
from choreo.plan.pipeline.split import layers_per_stage
from choreo.workload import Plan, list_models

MISSING = (
    "triton", "grain", "datasets", "torchao", "tokenizers", "spmd_types", "transformers", "fsspec", "tensorboard",
    "PIL", "einops", "wandb", "torchdata", "sentencepiece", "tiktoken", "safetensors", "huggingface_hub",
    "torchvision", "torch.utils.tensorboard",
)  # fmt: skip
TRANSFORMER_ENGINE = "2.12.0"
# Cluster, program, and a plan; tp is lowered and the pipeline shortened until the model can be cut that way.
ONE = Plan(zero=1)
WIDE = Plan(tp=8, zero=1, sequence_parallel=True)
PIPED = Plan(tp=4, pp=4, dp=4, zero=1, sequence_parallel=True)
MODULES: dict[str, Any] = {"recompute": "selective", "recompute_modules": "mla_up_proj,layernorm,moe_act,mlp"}
JOBS: tuple[tuple[str, str, Plan], ...] = (
    ("hgx-h100", "megatron-core", ONE),
    ("hgx-h100", "nemo", replace(WIDE, dp=8, micro_batch=2, recompute="selective")),
    ("hgx-h100", "megatron-core", replace(WIDE, dp=4, cp=2, ep=8, precision="fp8")),
    ("hgx-h100", "megatron-core", replace(PIPED, recompute="full", overlap=False)),
    ("dgx-a100", "megatron-core", replace(PIPED, ep=4, schedule="interleaved", interleave=2)),
    ("hgx-h100", "megatron-core", replace(PIPED, pp=8, ep=2, split="balanced")),
    ("hgx-h100", "megatron-core", replace(PIPED, pp=16, schedule="interleaved", interleave=2, split="balanced")),
    ("hgx-h100", "megatron-core", Plan(dp=64, zero=2, ep=8, recompute="selective")),
    ("hgx-h100", "megatron-core", Plan(dp=32, cp=2, zero=3, ep=4)),
    ("dgx-a100", "megatron-core", Plan(dp=8, tp=2, zero=0, precision="fp16")),
    ("hgx-h100", "torchtitan", Plan(dp=32, tp=2, zero=3, sequence_parallel=True, recompute="selective")),
    ("hgx-h100", "torchtitan", Plan(dp=64, zero=3, ep=8, recompute="full")),
    ("hgx-h100", "torchtitan+compile", Plan(dp=8, pp=4, zero=2)),
    ("hgx-h100", "torchtitan", Plan(dp=8, tp=2, pp=4, zero=3, schedule="interleaved", interleave=2, cp=2)),
    ("hgx-h100", "torchtitan", Plan(dp=8, pp=4, zero=2, schedule="zero-bubble", interleave=2)),
    ("hgx-b200", "nemo", replace(WIDE, tp=2, dp=8, cp=2, ep=4, precision="fp8")),
    ("hgx-h100", "megatron-core+bf16-moments", replace(WIDE, dp=4, ep=8, etp=1, **MODULES)),
    ("hgx-h100", "megatron-core", replace(PIPED, pp=8, ep=8, etp=1, precision="fp8", split="balanced", **MODULES)),
    ("hgx-b200", "nemo", replace(WIDE, tp=2, dp=8, cp=2, ep=4, precision="fp4")),
    ("hgx-b200", "nemo+activation-offload=0.5+current-scaling", replace(WIDE, tp=2, dp=16, precision="fp8")),
    ("hgx-h100", "megatron-core+optimizer-offload", replace(WIDE, dp=4, ep=4, recompute="full", recompute_layers=2)),
    ("hgx-h100", "megatron-core", replace(PIPED, cp=2, recompute="full", recompute_layers=1)),
    ("hgx-h100", "megatron-core+deepep+ep-overlap", replace(PIPED, ep=8, etp=1, schedule="interleaved", interleave=2)),
    ("hgx-h100", "nemo+blockwise", replace(WIDE, dp=4, cp=2, ep=8, precision="fp8")),
    ("hgx-h100", "megatron-core", Plan(dp=32, zero=3, shard_size=8)),
    ("hgx-h100", "torchtitan+compile+async-tp", replace(WIDE, dp=8, zero=3, recompute="selective", precision="fp8")),
    ("hgx-h100", "torchtitan", Plan(dp=32, zero=3, shard_size=8)),
    ("hgx-h100", "torchtitan", Plan(dp=16, tp=2, zero=3, ep=8, etp=1, sequence_parallel=True)),
    ("hgx-h100", "torchtitan", Plan(dp=8, pp=4, zero=2, schedule="dualpipev", interleave=2)),
    ("hgx-h100", "nemo+blockwise", Plan(dp=64, zero=3, ep=8, precision="fp8")),
    ("hgx-b200", "nemo", Plan(dp=64, zero=2, precision="fp8")),
    ("hgx-b200", "megatron-core", Plan(dp=64, zero=3, precision="fp4")),
)


class Absent(types.ModuleType):
    """A module that is not installed: whatever is taken from it is an empty class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__, self.__version__ = [], "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        empty = {
            "__init__": lambda self, *args, **more: None,
            "__call__": lambda self, *args, **more: args[0] if args else self,
            "__getattr__": lambda self, name: self,
            "__class_getitem__": classmethod(lambda cls, item: cls),
            "__module__": self.__name__,
        }
        setattr(self, name, type(name, (), empty))
        return self.__dict__[name]


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an absent module where none is installed."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Where the module is, if it is one of those that are absent."""
        here = any(name == one or name.startswith(f"{one}.") for one in self.names)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if here else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty module."""
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is run."""


def prepare() -> None:
    """Make imports of what is not installed work, and torch say that there is a GPU."""
    import torch
    import torch._inductor.runtime.triton_heuristics
    import torch.utils.flop_counter

    if not hasattr(typing, "override"):
        typing.override = lambda method: method  # type: ignore[attr-defined]
    absent = [name for name in MISSING if name.startswith("torch.") or importlib.util.find_spec(name) is None]
    sys.meta_path.insert(0, Finder(absent))
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    hopper = types.SimpleNamespace(major=9, minor=0, multi_processor_count=132, name="H100", total_memory=80 << 30)
    torch.cuda.get_device_properties = lambda *_: hopper
    torch.cuda.current_device = lambda: 0


def prepare_megatron() -> None:
    """Make Megatron-LM believe that Transformer Engine is there."""
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.moe import moe_utils
    from packaging.version import Version

    utils._te_version = Version(TRANSFORMER_ENGINE)
    sorts = ("sort_chunks_by_index", "sort_chunks_by_index_with_probs")
    for name in ("permute", "permute_with_probs", "unpermute", *sorts):
        setattr(moe_utils, f"fused_{name}", object())
    rope_utils.fused_apply_rotary_pos_emb = object()


def prepare_torchtitan() -> None:
    """Make torchtitan believe that the GPU has products of eight bits."""
    from torchtitan.components.quantization import float8

    float8.has_cuda_capability = lambda *_: True


PREPARATIONS = {"Megatron-LM": prepare_megatron, "torchtitan": prepare_torchtitan}


def cases(names: Sequence[str] = ()) -> Iterator[tuple[TrainingJob, Plan]]:
    """Jobs and plans of every model, or of those named."""
    models = [model for model in list_models() if not names or model.name in names]
    for model, (cluster, software, wanted) in itertools.product(models, JOBS):
        seq = min(4096, model.max_seq or 4096, model.learned_positions or 4096)
        place = get_cluster(cluster)
        for tp, pp in itertools.product((8, 4, 2, 1), (16, 8, 4, 3, 2, 1)):
            one = replace(wanted, tp=tp, pp=pp, ep=wanted.ep if model.experts else 1)
            one = replace(one, etp=wanted.etp if model.experts and tp > 1 else 0)
            there = {"mla_up_proj": model.latent is not None, "moe_act": model.experts > 0}
            one = replace(one, recompute_modules=",".join(name for name in one.modules if there.get(name, True)))
            one = replace(one, sequence_parallel=one.sequence_parallel and tp > 1)
            if pp == 1:
                one = replace(one, interleave=1, schedule="1f1b", split="even")
            batch = 2 * one.dp * one.micro_batch * max(4, pp)
            try:
                one.check(model, one.gpus, batch, seq)
            except ChoreoError:
                continue
            if tp <= wanted.tp and pp <= wanted.pp:
                program = get_software(software)
                yield TrainingJob(model, one.gpus, batch, seq, place, place.chip(None), program, one.precision), one
                break


def check_megatron(job: TrainingJob, one: Plan, options: Sequence[str]) -> None:
    """Parse, validate, and compare with the model and the plan."""
    from megatron.core.transformer.enums import LayerType
    from megatron.training import argument_utils, arguments

    sys.argv = ["pretrain_gpt.py", *shlex.split(" ".join(options))]
    sys.argv += shlex.split("--mock-data --tokenizer-type NullTokenizer --train-iters 10 --lr 1e-4")
    sys.argv += ["--vocab-size", str(job.model.vocab - 1)]
    os.environ["WORLD_SIZE"] = str(one.gpus)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    if one.tp * one.cp > 1 and one.zero < 2:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    args = arguments.parse_args()
    arguments.validate_args(args)
    config = argument_utils.core_transformer_config_from_args(args)
    assert args.data_parallel_size == one.dp, f"dp {args.data_parallel_size}, not {one.dp}"
    model = job.model
    if not model.learned_positions:
        assert args.rotary_base == model.rope_base, f"rotary base {args.rotary_base}, not {model.rope_base}"
    wanted: dict[str, object] = {
        "num_layers": model.layers, "hidden_size": model.hidden, "ffn_hidden_size": model.ffn,
        "num_attention_heads": model.heads, "add_bias_linear": model.bias, "layernorm_epsilon": model.norm_eps,
        "gated_linear_unit": model.gated, "num_moe_experts": model.experts or None,
        "add_qkv_bias": model.bias or model.qkv_bias, "tensor_model_parallel_size": one.tp,
        "pipeline_model_parallel_size": one.pp, "context_parallel_size": one.cp, "expert_model_parallel_size": one.ep,
        "virtual_pipeline_model_parallel_size": one.interleave if one.pp > 1 and one.interleave > 1 else None,
        "sequence_parallel": one.sequence_parallel and one.tp > 1, "mtp_num_layers": model.mtp_layers or None,
        "window_size": (model.window - 1, 0) if 0 < model.window < job.seq else None,
    }  # fmt: skip
    if model.experts:
        wanted["expert_tensor_parallel_size"] = one.expert_tp
        wanted |= {
            "moe_router_topk": model.experts_per_token, "moe_ffn_hidden_size": model.expert_ffn,
            "moe_router_score_function": model.router_score, "moe_shared_expert_gate": model.shared_gate,
            "moe_shared_expert_intermediate_size": model.shared_ffn or None,
            "moe_router_topk_scaling_factor": model.router_scale or None,
            "moe_router_num_groups": model.router_groups or None,
            "moe_router_group_topk": model.router_groups_per_token or None,
        }  # fmt: skip
        normalised = model.router_normalised and model.experts_per_token > 1
        if model.router_score == "softmax":
            wanted["moe_router_pre_softmax"] = not normalised
    if model.yarn and model.latent:
        yarn = model.yarn
        wanted |= {
            "rotary_scaling_factor": yarn.factor, "mscale": yarn.mscale, "mscale_all_dim": yarn.mscale_all,
        }  # fmt: skip
    elif model.yarn:
        yarn = model.yarn
        wanted |= {
            "yarn_rotary_scaling_factor": yarn.factor, "yarn_original_max_position_embeddings": yarn.first_seq,
            "yarn_beta_fast": yarn.beta_fast, "yarn_beta_slow": yarn.beta_slow,
            "yarn_correction_range_round_to_int": yarn.rounded,
        }  # fmt: skip
    if one.recompute == "selective":
        wanted["recompute_modules"] = list(one.modules or ("core_attn",))
    if not model.latent:
        wanted |= {"kv_channels": model.head_dim, "num_query_groups": model.kv_heads}
    for name, value in wanted.items():
        held = getattr(config, name)
        assert held == value, f"{name} is {held}, not {value}"
    if config.pipeline_model_parallel_layout is not None and one.pp > 1:
        layout = config.pipeline_model_parallel_layout.layout
        counts = [
            sum(layer is LayerType.decoder for layer in layout[device][chunk])
            for chunk in range(_chunks(one))
            for device in range(one.pp)
        ]
        told = list(layers_per_stage(model, one.pp, _chunks(one), one.split, job.seq, one.precision))
        assert counts == told, f"layers by stage are {counts}, not {told}"


def _chunks(one: Plan) -> int:
    return one.interleave if one.pp > 1 else 1


def check_torchtitan(job: TrainingJob, one: Plan, options: Sequence[str]) -> None:
    """Parse, split the layers, and compare."""
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed import pipeline_parallel

    config = ConfigManager().parse_args(shlex.split(" ".join(options)))
    parallelism = config.parallelism
    degrees = (
        parallelism.data_parallel_replicate_degree * parallelism.data_parallel_shard_degree,
        parallelism.tensor_parallel_degree,
        parallelism.pipeline_parallel_degree,
        parallelism.context_parallel_degree,
        parallelism.expert_parallel_degree,
    )
    assert degrees == (one.dp, one.tp, one.pp, one.cp, one.ep), degrees
    compiled = {*config.compile.components} if config.compile.enable else set()
    wanted = {"model", "loss"} if "+compile" in job.software.name else set()
    assert compiled == wanted, f"{compiled or 'nothing'} is compiled, not {wanted or 'nothing'}"
    assert config.loss.num_chunks == job.software.loss_chunks, f"a loss in {config.loss.num_chunks} parts"
    wanted_async = "+async-tp" in job.software.name and one.tp > 1
    assert config.compile.enable_async_tensor_parallel == wanted_async, f"async TP is not {wanted_async}"
    layers = len(config.model_spec.model.layers)
    assert layers == job.model.layers, f"{layers} layers, not {job.model.layers}"
    if one.pp > 1:
        dims = types.SimpleNamespace(pp=one.pp)
        stages, count, first, last = pipeline_parallel._get_pipeline_metadata(
            dims, parallelism, config.model_spec.model
        )
        parts = pipeline_parallel._generate_llm_fqn_per_model_part(stages, count, first, last)
        counts = tuple(sum(name.startswith("layers.") for name in part) for part in parts)
        told = layers_per_stage(job.model, one.pp, one.interleave, one.split, job.seq, one.precision)
        assert counts == told, f"layers by stage are {counts}, not {told}"


def main() -> None:
    """Check both programs, and end with 1 if any options fail."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--megatron", type=Path, help="a checkout of NVIDIA/Megatron-LM")
    parser.add_argument("--torchtitan", type=Path, help="a checkout of pytorch/torchtitan")
    parser.add_argument("--model", action="append", default=[], help="only this model; may be given again")
    arguments = parser.parse_args()
    checks = {}
    for program, folder, check in (
        ("Megatron-LM", arguments.megatron, check_megatron),
        ("torchtitan", arguments.torchtitan, check_torchtitan),
    ):
        if folder is not None:
            sys.path.insert(0, str(folder))
            checks[program] = check
    prepare()
    for program in checks:
        PREPARATIONS[program]()
    passed: Counter[str] = Counter()
    lacking: Counter[str] = Counter()
    models: dict[str, set[str]] = {program: set() for program in checks}
    failed = []
    for job, one in cases(arguments.model):
        for launch in launches(job, one):
            if launch.program not in checks:
                continue
            if launch.lacks:
                reason = launch.lacks[0].replace(job.model.name, "the model")
                lacking[f"{launch.program} lacks {reason}"] += 1
                continue
            heard = io.StringIO()
            try:
                with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
                    checks[launch.program](job, one, launch.options)
            except (Exception, SystemExit) as error:  # whatever a program raises is its answer
                last = [line.strip(" │") for line in heard.getvalue().splitlines() if line.strip(" │╭╰─╯╮")][-5:]
                told = f"{type(error).__name__}: {error}" if str(error) not in ("", "2") else " ".join(last)
                failed.append(f"{launch.program}: {job.model.name}, {one}: {told}\n    {' '.join(launch.options)}")
            else:
                passed[launch.program] += 1
                models[launch.program].add(job.model.name)
    for program in checks:
        print(f"{program}: options of {passed[program]} plans of {len(models[program])} models are taken")
    for reason, count in lacking.most_common():
        print(f"  not expressed, {count} plans: {reason}")
    for line in failed:
        print(line)
    print(f"{len(failed)} failed", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
