"""EfficientNet-Lite0: the image network behind the offline image-text model.

The network of Tan & Le (2019) in its Lite variant: no squeeze-and-excitation, ReLU6 instead of
swish. Module names follow the public PyTorch port, so that its weights load by name and in full.
Strided convolutions pad as TensorFlow does ("same": the odd pixel goes right and below), because
the weights were trained there.

Read next: `fuseprompt.offline.image_tower`.
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

#: Width of the pooled feature, and number of ImageNet classes.
FEATURE_WIDTH = 1280
NUM_CLASSES = 1000

#: TensorFlow's momentum 0.99 is PyTorch's 0.01; it is only used if somebody trains the network
#: further.
_NORM_EPS = 1e-3
_NORM_MOMENTUM = 0.01


class _Stage(NamedTuple):
    """A run of equal blocks; only the first one strides and changes the width."""

    repeats: int
    kernel: int
    stride: int
    expand: int
    width_in: int
    width_out: int


_STAGES = (
    _Stage(1, 3, 1, 1, 32, 16),
    _Stage(2, 3, 2, 6, 16, 24),
    _Stage(2, 5, 2, 6, 24, 40),
    _Stage(3, 3, 2, 6, 40, 80),
    _Stage(3, 5, 1, 6, 80, 112),
    _Stage(4, 5, 2, 6, 112, 192),
    _Stage(1, 3, 1, 6, 192, 320),
)


class SameConv2d(nn.Conv2d):
    """A convolution without bias that pads as TensorFlow's "same" does."""

    def __init__(
        self, width_in: int, width_out: int, *, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        """Make the layer; `kernel` and `stride` hold for both axes."""
        super().__init__(width_in, width_out, kernel, stride=stride, groups=groups, bias=False)

    def forward(self, input: Float[Tensor, "b k h w"]) -> Float[Tensor, "b m h2 w2"]:
        """Pad so that each side has ceil(size / stride) output pixels, and convolve."""
        height, width = input.shape[-2:]
        top, bottom = _same_padding(height, self.kernel_size[0], self.stride[0])
        left, right = _same_padding(width, self.kernel_size[1], self.stride[1])
        return super().forward(functional.pad(input, (left, right, top, bottom)))


class MBConvBlock(nn.Module):
    """Mobile inverted bottleneck: widen, filter each channel, narrow, add the input if it fits."""

    def __init__(
        self, width_in: int, width_out: int, *, kernel: int, stride: int, expand: int
    ) -> None:
        """Make one block; `expand` is the factor of the widening (1: no widening layer)."""
        super().__init__()
        inner = width_in * expand
        self._expands = expand != 1
        self._adds_input = stride == 1 and width_in == width_out
        if self._expands:
            self._expand_conv = SameConv2d(width_in, inner, kernel=1)
            self._bn0 = _norm(inner)
        self._depthwise_conv = SameConv2d(inner, inner, kernel=kernel, stride=stride, groups=inner)
        self._bn1 = _norm(inner)
        self._project_conv = SameConv2d(inner, width_out, kernel=1)
        self._bn2 = _norm(width_out)

    def forward(self, maps: Float[Tensor, "b k h w"]) -> Float[Tensor, "b m h2 w2"]:
        """Apply the block; the maps shrink by its stride."""
        inner = maps
        if self._expands:
            inner = functional.relu6(self._bn0(self._expand_conv(inner)))
        inner = functional.relu6(self._bn1(self._depthwise_conv(inner)))
        out: Tensor = self._bn2(self._project_conv(inner))
        return out + maps if self._adds_input else out


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 with its 1000-class layer; 4.65 million parameters."""

    def __init__(self) -> None:
        """Make the network with random weights; load trained ones with `load_state_dict`."""
        super().__init__()
        self._conv_stem = SameConv2d(3, _STAGES[0].width_in, kernel=3, stride=2)
        self._bn0 = _norm(_STAGES[0].width_in)
        self._blocks = nn.ModuleList(
            MBConvBlock(
                stage.width_in if i == 0 else stage.width_out,
                stage.width_out,
                kernel=stage.kernel,
                stride=stage.stride if i == 0 else 1,
                expand=stage.expand,
            )
            for stage in _STAGES
            for i in range(stage.repeats)
        )
        self._conv_head = SameConv2d(_STAGES[-1].width_out, FEATURE_WIDTH, kernel=1)
        self._bn1 = _norm(FEATURE_WIDTH)
        self._fc = nn.Linear(FEATURE_WIDTH, NUM_CLASSES)

    def features(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1280"]:
        """Pool the last feature maps over space.

        Args:
            pixels: Images as (value - 127) / 128; the network was trained at 224 x 224.

        Returns:
            One feature vector an image, shape (b, 1280).
        """
        maps = functional.relu6(self._bn0(self._conv_stem(pixels)))
        for block in self._blocks:
            maps = block(maps)
        return functional.relu6(self._bn1(self._conv_head(maps))).mean(dim=(2, 3))

    def classify(self, features: Float[Tensor, "b 1280"]) -> Float[Tensor, "b 1000"]:
        """Return logits in ImageNet's order from pooled features."""
        logits: Tensor = self._fc(features)
        return logits

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1000"]:
        """Return logits in ImageNet's order from pixels."""
        return self.classify(self.features(pixels))


def _norm(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=_NORM_EPS, momentum=_NORM_MOMENTUM)


def _same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2
