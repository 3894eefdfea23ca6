"""The image tower of the offline image-text model: pictures to vectors in MiniLM's space.

The text side is MiniLM itself. Each part sees pictures as in its training: ConSE's classifier the
centre (EfficientNet-Lite0's own evaluation), the head (trained on captioned clip-art with MiniLM
frozen, docs/model-card.md) the whole, padded with white. ImageNet has no person: what people say
of pictures with its classes is learnt from captions alone, and put in the place of ConSE's vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from fuseprompt.errors import ModelError
from fuseprompt.models.images import open_image

#: Pixels a side; EfficientNet-Lite0 was trained at this size.
IMAGE_SIZE: Final = 224
#: Side of the centre crop per shorter side, as in the network's published evaluation.
CENTRE_SHARE: Final = 224 / 256
#: Width of the pooled feature, and number of ImageNet classes.
FEATURE_WIDTH: Final = 1280
NUM_CLASSES: Final = 1000
#: Width of the shared space (MiniLM's hidden size), and of the head's hidden layer.
EMBED_WIDTH: Final = 384
HIDDEN_WIDTH: Final = 512
#: Weight of the head against 1 of ConSE in its context, chosen on photos (docs/model-card.md).
HEAD_WEIGHT: Final = 0.5
#: Pictures that go through the network at once: bounds memory.
BATCH_SIZE: Final = 16


def class_text(name: str) -> str:
    """Word a class name as a caption for the sentence model: "An image of a goldfish."."""
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return f"An image of {article} {name}."


#: Runs of equal blocks, of which only the first one strides and changes the width: how many, their
#: kernel, stride and expansion, the width before and the width after.
_STAGES: Final = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)


class SameConv2d(nn.Conv2d):
    """A convolution without bias that pads as TensorFlow does: the odd pixel is right and below."""

    def __init__(
        self, width_in: int, width_out: int, *, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
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
    """EfficientNet-Lite0 (Tan & Le, 2019), with ReLU6 and without squeeze-and-excitation."""

    def __init__(self) -> None:
        super().__init__()
        # Names as in the public PyTorch port, so that its weights load by name and in full.
        self._conv_stem = SameConv2d(3, 32, kernel=3, stride=2)
        self._bn0 = _norm(32)
        self._blocks = nn.ModuleList()
        for repeats, kernel, stride, expand, before, after in _STAGES:
            shape = {"kernel": kernel, "expand": expand}
            self._blocks.append(MBConvBlock(before, after, stride=stride, **shape))
            for _ in range(repeats - 1):
                self._blocks.append(MBConvBlock(after, after, stride=1, **shape))
        self._conv_head = SameConv2d(320, FEATURE_WIDTH, kernel=1)
        self._bn1 = _norm(FEATURE_WIDTH)
        self._fc = nn.Linear(FEATURE_WIDTH, NUM_CLASSES)

    def features(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1280"]:
        """Pool the last feature maps of images, given as (value - 127) / 128, over space."""
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


@final
class ImageHead(nn.Module):
    """What is trained: a projection of pooled features, and the context of ImageNet's classes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURE_WIDTH, HIDDEN_WIDTH)
        self.out = nn.Linear(HIDDEN_WIDTH, EMBED_WIDTH)
        # The identity until it is learnt, and no random draw: the others are trained without it.
        self.context: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.Linear, EMBED_WIDTH, EMBED_WIDTH
        )
        nn.init.eye_(self.context.weight)
        nn.init.zeros_(self.context.bias)

    def forward(self, features: Float[Tensor, "b 1280"]) -> Float[Tensor, "b 384"]:
        """Project pooled features of EfficientNet-Lite0 to unit vectors of the sentence space."""
        hidden = functional.gelu(self.hidden(features))
        return functional.normalize(self.out(hidden), dim=-1)

    def in_context(self, named: Float[Tensor, "b 384"]) -> Float[Tensor, "b 384"]:
        """Return unit vectors of captions, given ConSE's of the things that they name."""
        return functional.normalize(self.context(named), dim=-1)


@final
@dataclass(frozen=True, eq=False)
class Conse:
    """ConSE (Norouzi et al., 2013): likely classes' unit sentence vectors, averaged by probability.

    They are averaged to unit length; the vectors have shape (1000, 384).
    """

    class_features: Float[Tensor, "1000 384"]
    num_classes: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.num_classes <= len(self.class_features):
            raise ValueError(
                f"num_classes must be 1 to {len(self.class_features)}, got {self.num_classes}."
            )

    def embed(self, logits: Float[Tensor, "b 1000"]) -> Float[Tensor, "b 384"]:
        """Average the vectors of the most probable classes by probability, to unit length."""
        best, classes = logits.softmax(dim=-1).topk(self.num_classes, dim=-1)
        mean = torch.einsum("bk,bkd->bd", best, self.class_features[classes])
        return functional.normalize(mean, dim=-1)


@final
class ImageTower:
    """EfficientNet-Lite0 with a head, with ConSE, or with both; frozen, for evaluation."""

    def __init__(
        self, network: EfficientNetLite0, head: ImageHead | None, *, conse: Conse | None
    ) -> None:
        if head is None and conse is None:
            raise ValueError("an ImageTower needs a head, a conse, or both; got None for both.")
        self.network = network.eval().requires_grad_(False)
        self.head = None if head is None else head.eval().requires_grad_(False)
        self.conse = conse

    @classmethod
    def load(cls, folder: Path, head_path: Path | None) -> "ImageTower":
        """Load a prepared folder, and the head if its file is given, on the CPU in fp32."""
        network = EfficientNetLite0()
        _fill(network, folder / "efficientnet.safetensors")
        class_features = _read(folder / "conse.safetensors")["class_features"].float()
        head = None
        if head_path is not None:
            head = ImageHead()
            _fill(head, head_path)
        return cls(network, head, conse=Conse(class_features))

    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 224 224"]:
        """Pad an RGB picture to a square on white, resize it and scale the pixels."""
        side = max(image.size)
        # Shrinking first keeps a 20-megapixel picture from being copied at full size again.
        size = tuple(max(1, round(length * IMAGE_SIZE / side)) for length in image.size)
        small = image.convert("RGB").resize((size[0], size[1]), Image.Resampling.BICUBIC)
        square = Image.new("RGB", (IMAGE_SIZE, IMAGE_SIZE), "white")
        square.paste(small, ((IMAGE_SIZE - size[0]) // 2, (IMAGE_SIZE - size[1]) // 2))
        return _scale_pixels(square)

    def preprocess_centre(self, image: Image.Image) -> Float[Tensor, "3 224 224"]:
        """Cut the centre square out, as the classifier's own evaluation does; resize and scale."""
        side = max(1, int(min(image.size) * CENTRE_SHARE))
        left, top = ((length - side) // 2 for length in image.size)
        box = (left, top, left + side, top + side)
        size = (IMAGE_SIZE, IMAGE_SIZE)
        return _scale_pixels(image.convert("RGB").resize(size, Image.Resampling.BICUBIC, box=box))

    def features(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1280"]:
        """Pool the image network's last feature maps, without gradients."""
        with torch.no_grad():
            return self.network.features(pixels)

    def embed(
        self, whole: Float[Tensor, "b 1280"], centre: Float[Tensor, "b 1280"]
    ) -> Float[Tensor, "b 384"]:
        """Return context(conse(centre)) + 0.5 head(whole), or the only part, to unit length."""
        with torch.no_grad():
            if self.conse is None:
                assert self.head is not None  # checked when the tower was made
                learnt: Tensor = self.head(whole)
                return learnt
            named = self.conse.embed(self.network.classify(centre))
            if self.head is None:
                return named
            both = self.head.in_context(named) + HEAD_WEIGHT * self.head(whole)
            return functional.normalize(both, dim=-1)

    def image_features(self, images: Sequence[Image.Image]) -> Float[Tensor, "b 384"]:
        """Embed pictures that Pillow opened, as unit vectors in their order."""
        parts = [torch.empty(0, EMBED_WIDTH)]
        for start in range(0, len(images), BATCH_SIZE):
            batch = [open_image(image) for image in images[start : start + BATCH_SIZE]]
            whole = torch.stack([self.preprocess(image) for image in batch])
            centre = torch.stack([self.preprocess_centre(image) for image in batch])
            parts.append(self.embed(self.features(whole), self.features(centre)))
        return torch.cat(parts)


def _scale_pixels(image: Image.Image) -> Float[Tensor, "3 224 224"]:
    values = torch.from_numpy(np.array(image, dtype=np.float32))  # (h, w, 3)
    return ((values - 127.0) / 128.0).permute(2, 0, 1).contiguous()  # (3, h, w)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"expected a safetensors file at {path}, got: {error}. Run `fuseprompt prepare`."
        ) from None


def _fill(module: nn.Module, path: Path) -> None:
    """Load all weights of a module."""
    tensors = _read(path)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelError(
            f"{path} does not hold the weights of {type(module).__name__}: {error}. "
            "Run `fuseprompt prepare --force`, or install fuseprompt again."
        ) from None


def _norm(width: int) -> nn.BatchNorm2d:
    # TensorFlow's momentum 0.99 is PyTorch's 0.01; only further training would use it.
    return nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)


def _same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2
