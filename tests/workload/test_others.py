"""ResNet-50 and DLRM: the same kind of graph, the same rule."""

from __future__ import annotations

import pytest

from choreo.errors import PlanError
from choreo.workload import (
    ConvNet,
    Plan,
    Recommender,
    backward_graph,
    convnet_graph,
    fuse,
    get_workload,
    recommender_graph,
)


@pytest.fixture(name="resnet")
def _resnet() -> ConvNet:
    found = get_workload("resnet-50")
    assert isinstance(found, ConvNet)
    return found


@pytest.fixture(name="dlrm")
def _dlrm() -> Recommender:
    found = get_workload("dlrm")
    assert isinstance(found, Recommender)
    return found


def test_resnet_50_table(resnet: ConvNet) -> None:
    rows = {row.name: row for row in resnet.table()}
    assert len(rows) == 1 + 3 * 16 + 4
    assert (rows["stem"].side, rows["stem"].kernel, rows["stem"].channels_out) == (112, 7, 64)
    middle = rows["group2.0.middle"]
    assert (middle.channels_in, middle.channels_out, middle.kernel, middle.stride, middle.side) == (128, 128, 3, 2, 28)
    assert rows["group4.2.expand"].channels_out == resnet.features == 2048
    assert resnet.parameters == 25_557_032  # torchvision's
    assert resnet.parameters * 4 / 2**20 == pytest.approx(97.5, abs=0.01)
    assert resnet.flops_per_image / 2 == pytest.approx(4.09e9, rel=0.001)  # multiply-adds, torchvision's


def test_resnet_50_graph(resnet: ConvNet) -> None:
    plan = Plan(dp=16, micro_batch=64, precision="fp32")
    graph = convnet_graph(resnet, plan)
    assert graph.parameters == resnet.parameters
    assert graph.flops == pytest.approx(64 * resnet.flops_per_image)
    assert not graph.collectives
    assert all("dp" in node.divided for node in graph.operators if node.weights)  # so gradients are sums over dp
    backward = backward_graph(graph)
    stem = 2 * 64 * resnet.table()[0].flops / 2  # the image needs no gradient
    assert backward.flops == pytest.approx(2 * graph.flops - stem)
    assert not backward.collectives
    # What convolutions read and norms read: 21 million numbers an image.
    assert graph.saved_bytes() / 64 / 4 == pytest.approx(21e6, rel=0.05)
    fused = fuse(graph)
    assert fused.bytes_moved < 0.85 * graph.bytes_moved
    stem_product = graph.operators[0]
    assert (stem_product.m, stem_product.n, stem_product.k) == (64 * 112 * 112, 64, 3 * 49)
    half = convnet_graph(resnet, Plan(dp=16, micro_batch=64, precision="fp16"))
    assert half.saved_bytes() < 0.51 * graph.saved_bytes()


def test_resnet_is_cut_over_images_alone(resnet: ConvNet) -> None:
    with pytest.raises(PlanError, match=r"resnet-50 is cut over dp alone, not tp 2, pp 1, cp 1; .* take dp 8"):
        convnet_graph(resnet, Plan(dp=4, tp=2))


def test_dlrm(dlrm: Recommender) -> None:
    assert (dlrm.tables, dlrm.interactions) == (26, 479)
    assert dlrm.dense_parameters == 2_368_897
    plan = Plan(dp=16, micro_batch=4096, precision="fp32")
    graph = recommender_graph(dlrm, plan)
    (sent,) = graph.collectives
    # Cut by table there, by sample here: what a device sends is its tables' rows for everybody's samples.
    assert (sent.kind, sent.axes) == ("all_to_all", ("dp",))
    assert sent.size_bytes == 4 * 4096 * 26 * 128
    (back,) = backward_graph(graph).collectives
    assert (back.kind, back.size_bytes) == ("all_to_all", sent.size_bytes)
    replicated = [weight for weight in graph.weights if weight.sharding.along("dp") is None]  # the tables are cut
    assert sum(weight.elements(graph.mesh) for weight in replicated) == dlrm.dense_parameters
    assert graph.parameters == pytest.approx(dlrm.embedding_parameters / 16 + dlrm.dense_parameters)
    assert graph.flops == pytest.approx(4096 * dlrm.flops_per_sample)
    assert not recommender_graph(dlrm, Plan(micro_batch=8)).collectives
    with pytest.raises(PlanError, match="dlrm is cut over dp alone"):
        recommender_graph(dlrm, Plan(pp=2))
