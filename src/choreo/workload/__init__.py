"""Workloads: models, parallel plans, and the dataflow graph of compute and communication that the two give."""

from choreo.workload.catalogue import Workload, get_model, get_workload, list_models, list_workloads, model_file
from choreo.workload.flops import forward_flops, forward_flops_per_token, hardware_flops, model_flops
from choreo.workload.graph.backward import backward_graph
from choreo.workload.graph.convolution import ConvNet, Convolution, convnet_graph
from choreo.workload.graph.fuse import fuse
from choreo.workload.graph.graph import CollectiveOp, Graph, Operator
from choreo.workload.graph.recommender import Recommender, recommender_graph
from choreo.workload.graph.sharding import Sharding, Tensor, Transition, reshard
from choreo.workload.graph.transformer import embedding_graph, head_graph, layer_graph
from choreo.workload.huggingface.config import read_config
from choreo.workload.model import Latent, Model
from choreo.workload.plan import Plan, stage_layers
from choreo.workload.yarn import Yarn

__all__ = [
    "CollectiveOp",
    "ConvNet",
    "Convolution",
    "Graph",
    "Latent",
    "Model",
    "Operator",
    "Plan",
    "Recommender",
    "Sharding",
    "Tensor",
    "Transition",
    "Workload",
    "Yarn",
    "backward_graph",
    "convnet_graph",
    "embedding_graph",
    "forward_flops",
    "forward_flops_per_token",
    "fuse",
    "get_model",
    "get_workload",
    "hardware_flops",
    "head_graph",
    "layer_graph",
    "list_models",
    "list_workloads",
    "model_file",
    "model_flops",
    "read_config",
    "recommender_graph",
    "reshard",
    "stage_layers",
]
