"""EfficientNet-Lite0: names, shapes, padding, and the arithmetic of one block by hand."""

import hashlib

import pytest
import torch
from torch import nn
from torch.nn import functional

from fuseprompt.offline.image_tower import EfficientNetLite0, MBConvBlock, SameConv2d


@pytest.fixture(scope="module")
def network() -> EfficientNetLite0:
    torch.manual_seed(0)
    return EfficientNetLite0().eval()


def test_the_public_port_s_weights_fit_by_name_and_shape(network: EfficientNetLite0) -> None:
    # Of the names and shapes in efficientnet-lite0-57934424.pth, the file that prepare converts.
    shapes = "\n".join(f"{k} {tuple(v.shape)}" for k, v in sorted(network.state_dict().items()))
    assert hashlib.sha256(shapes.encode()).hexdigest() == (
        "56e888a56e06aa25f3d7c351f1d07cfd52106a7a2d880f25944cceb293419791"
    )
    assert sum(p.numel() for p in network.parameters()) == 4_652_008


@pytest.mark.parametrize("size", [32, 75, 224])
def test_features_have_one_width_for_any_size(network: EfficientNetLite0, size: int) -> None:
    with torch.inference_mode():
        features = network.features(torch.randn(2, 3, size, size))
    assert features.shape == (2, 1280)
    assert (features >= 0).all()


def test_forward_is_classify_after_features(network: EfficientNetLite0) -> None:
    pixels = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        logits = network(pixels)
        torch.testing.assert_close(logits, network.classify(network.features(pixels)))
    assert logits.shape == (2, 1000)


def test_a_batch_gives_what_its_pictures_give_alone(network: EfficientNetLite0) -> None:
    pixels = torch.randn(3, 3, 64, 64)
    with torch.inference_mode():
        alone = torch.cat([network.features(pixels[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(network.features(pixels), alone, rtol=1e-4, atol=1e-5)


def test_the_odd_pixel_of_a_strided_convolution_goes_right_and_below() -> None:
    conv = SameConv2d(1, 1, kernel=3, stride=2)
    nn.init.ones_(conv.weight)
    out = conv(torch.ones(1, 1, 4, 4))
    # Windows start at 0 and 2; only the second reaches over the edge.
    torch.testing.assert_close(out[0, 0], torch.tensor([[9.0, 6.0], [6.0, 4.0]]))
    symmetric = functional.conv2d(torch.ones(1, 1, 4, 4), conv.weight, stride=2, padding=1)
    assert not torch.equal(out, symmetric)


@pytest.mark.parametrize(("size", "stride", "kernel"), [(7, 2, 3), (8, 2, 5), (9, 1, 5), (1, 2, 3)])
def test_same_padding_gives_ceil_of_size_over_stride(size: int, stride: int, kernel: int) -> None:
    conv = SameConv2d(2, 3, kernel=kernel, stride=stride)
    assert conv(torch.zeros(1, 2, size, size)).shape == (
        1,
        3,
        -(-size // stride),
        -(-size // stride),
    )


def test_a_block_adds_its_input_only_where_shapes_agree() -> None:
    torch.manual_seed(0)
    maps = torch.randn(1, 8, 6, 6)
    same = MBConvBlock(8, 8, kernel=3, stride=1, expand=2).eval()
    nn.init.zeros_(same._project_conv.weight)
    torch.testing.assert_close(same(maps), maps)
    for wider in (
        MBConvBlock(8, 16, kernel=3, stride=1, expand=2).eval(),
        MBConvBlock(8, 8, kernel=3, stride=2, expand=2).eval(),
    ):
        nn.init.zeros_(wider._project_conv.weight)
        assert not wider(maps).any()


def test_relu6_cuts_at_six() -> None:
    block = MBConvBlock(1, 1, kernel=1, stride=1, expand=1).eval()
    nn.init.ones_(block._depthwise_conv.weight)
    nn.init.ones_(block._project_conv.weight)
    norm = (
        1 / (1 + 1e-3) ** 0.5
    )  # batch norm with mean 0 and variance 1, eps of the TensorFlow model
    out = block(torch.full((1, 1, 1, 1), 100.0))
    torch.testing.assert_close(out, torch.full((1, 1, 1, 1), 6 * norm + 100))
