"""The image tower: preprocessing, ConSE by hand, the head, and what happens with missing files."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from fuseprompt.errors import ModelError
from fuseprompt.offline.image_tower import (
    Conse,
    EfficientNetLite0,
    ImageHead,
    ImageTower,
    class_text,
)
from fuseprompt.offline.manifest import offline_folder

DATA = Path(__file__).parents[2] / "src/fuseprompt/data"


@pytest.fixture(scope="module")
def class_features() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return functional.normalize(torch.randn(1000, 384, generator=generator), dim=-1)


@pytest.fixture(scope="module")
def network() -> EfficientNetLite0:
    torch.manual_seed(0)
    return EfficientNetLite0()


@pytest.fixture(scope="module")
def head() -> ImageHead:
    torch.manual_seed(2)
    head = ImageHead()
    torch.nn.init.normal_(head.context.weight)
    torch.nn.init.normal_(head.context.bias)
    return head.requires_grad_(False)


@pytest.fixture
def folder(tmp_path: Path, network: EfficientNetLite0, class_features: Tensor) -> Path:
    save_file(network.state_dict(), tmp_path / "efficientnet.safetensors")
    save_file({"class_features": class_features}, tmp_path / "conse.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("goldfish", "An image of a goldfish."),
        ("African elephant", "An image of an African elephant."),
    ],
)
def test_class_text_words_a_caption(name: str, text: str) -> None:
    assert class_text(name) == text


def test_conse_is_the_mean_of_the_top_classes_weighted_by_probability(
    class_features: Tensor,
) -> None:
    logits = torch.full((1, 1000), -50.0)
    logits[0, 7], logits[0, 3] = torch.tensor(0.75).log(), torch.tensor(0.25).log()
    expected = functional.normalize(0.75 * class_features[7] + 0.25 * class_features[3], dim=-1)
    torch.testing.assert_close(Conse(class_features).embed(logits)[0], expected)
    torch.testing.assert_close(
        Conse(class_features, num_classes=1).embed(logits)[0], class_features[7]
    )


def test_bad_conse_settings_are_refused(class_features: Tensor) -> None:
    with pytest.raises(ValueError, match="num_classes must be 1 to 1000, got 1001"):
        Conse(class_features, num_classes=1001)


def test_a_tower_joins_what_it_has(
    network: EfficientNetLite0, head: ImageHead, class_features: Tensor
) -> None:
    conse = Conse(class_features)
    whole, centre = torch.rand(2, 3, 1280)
    named = ImageTower(network, None, conse=conse).embed(whole, centre)
    learnt = ImageTower(network, head, conse=None).embed(whole, centre)
    both = ImageTower(network, head, conse=conse).embed(whole, centre)
    said = functional.normalize(named @ head.context.weight.T + head.context.bias, dim=-1)
    torch.testing.assert_close(both, functional.normalize(said + 0.5 * learnt, dim=-1))
    for vectors in (named, learnt, both):
        assert vectors.shape == (3, 384)
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))
    with pytest.raises(ValueError, match="a head, a conse, or both"):
        ImageTower(network, None, conse=None)


def test_preprocess_pads_to_a_centred_square_on_white(
    network: EfficientNetLite0, class_features: Tensor
) -> None:
    tower = ImageTower(network, None, conse=Conse(class_features))
    pixels = tower.preprocess(Image.new("RGB", (400, 200), (255, 0, 127)))
    assert pixels.shape == (3, 224, 224)
    white, red, zero = (255 - 127) / 128, (255 - 127) / 128, 0.0
    torch.testing.assert_close(pixels[:, 0, 0], torch.full((3,), white))
    torch.testing.assert_close(pixels[:, 223, 223], torch.full((3,), white))
    torch.testing.assert_close(pixels[:, 112, 0], torch.tensor([red, -127 / 128, zero]))
    # 400 x 200 becomes 224 x 112: rows 56 to 167.
    assert pixels[1, 55].min() == white
    assert pixels[1, 56].max() < 0
    assert pixels[1, 167].max() < 0
    assert pixels[1, 168].min() == white


@pytest.mark.parametrize("size", [(1, 1), (3000, 2), (2, 3000)])
def test_odd_sizes_work(
    network: EfficientNetLite0, class_features: Tensor, size: tuple[int, int]
) -> None:
    tower = ImageTower(network, None, conse=Conse(class_features))
    assert tower.preprocess(Image.new("RGB", size)).shape == (3, 224, 224)
    assert tower.preprocess_centre(Image.new("RGB", size)).shape == (3, 224, 224)


def test_the_centre_is_the_published_evaluation_s(
    network: EfficientNetLite0, class_features: Tensor
) -> None:
    tower = ImageTower(network, None, conse=Conse(class_features))
    picture = Image.new("RGB", (512, 256), "white")
    picture.paste((0, 0, 0), (144, 16, 368, 240))  # the 224 pixels in the middle
    assert bool((tower.preprocess_centre(picture) == -127 / 128).all())
    picture.paste((255, 0, 0), (144, 16, 145, 17))
    assert float(tower.preprocess_centre(picture)[0, 0, 0]) > 0.9


def test_the_classifier_sees_the_centre_and_the_head_the_whole(
    network: EfficientNetLite0, head: ImageHead, class_features: Tensor
) -> None:
    picture = Image.new("RGB", (300, 100), "blue")
    changed = picture.copy()
    changed.paste((255, 255, 0), (0, 0, 60, 100))  # outside the centre
    conse = ImageTower(network, None, conse=Conse(class_features))
    alone = ImageTower(network, head, conse=None)
    assert torch.equal(conse.image_features([picture]), conse.image_features([changed]))
    assert not torch.equal(alone.image_features([picture]), alone.image_features([changed]))


def test_each_part_gets_the_features_of_its_own_view(
    network: EfficientNetLite0,
    head: ImageHead,
    class_features: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The untrained network's features hardly differ between pictures, so here they are colours."""
    tower = ImageTower(network, head, conse=Conse(class_features))
    picture = Image.new("RGB", (300, 100), "blue")
    picture.paste((255, 255, 0), (0, 0, 60, 100))  # outside the centre
    seen: list[Tensor] = []

    def embed(whole: Tensor, centre: Tensor) -> Tensor:
        seen.extend([whole, centre])
        return torch.zeros(len(whole), 384)

    monkeypatch.setattr(tower, "features", lambda views: views.mean((2, 3)))
    monkeypatch.setattr(tower, "embed", embed)
    tower.image_features([picture])
    whole, centre = seen
    assert torch.equal(whole[0], tower.preprocess(picture).mean((1, 2)))
    assert torch.equal(centre[0], tower.preprocess_centre(picture).mean((1, 2)))
    assert not torch.allclose(whole, centre, atol=0.1)


def test_image_features_keep_the_order_and_allow_none(
    network: EfficientNetLite0, class_features: Tensor
) -> None:
    tower = ImageTower(network, None, conse=Conse(class_features))
    colours = ["red", "lime", "blue"]
    images = [Image.new("RGB", (64, 64), colour) for colour in colours]
    together = tower.image_features(images)
    alone = torch.cat([tower.image_features([image]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert tower.image_features([]).shape == (0, 384)
    assert not together.requires_grad


def test_load_reads_the_head_and_its_context(folder: Path, head: ImageHead) -> None:
    save_file(head.state_dict(), folder / "head.safetensors")
    both = ImageTower.load(folder, folder / "head.safetensors")
    assert both.conse is not None
    assert both.head is not None
    torch.testing.assert_close(both.head.out.weight, head.out.weight)
    torch.testing.assert_close(both.head.context.weight, head.context.weight)
    assert ImageTower.load(folder, None).head is None


def test_a_missing_or_wrong_file_names_the_remedy(folder: Path) -> None:
    with pytest.raises(ModelError, match="does not hold the weights of ImageHead"):
        ImageTower.load(folder, folder / "efficientnet.safetensors")
    (folder / "efficientnet.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="fuseprompt prepare"):
        ImageTower.load(folder, None)
    (folder / "efficientnet.safetensors").unlink()
    with pytest.raises(ModelError, match=r"expected a safetensors file at .*efficientnet"):
        ImageTower.load(folder, None)


def test_the_committed_head_loads_and_is_small(folder: Path) -> None:
    path = DATA / "image_head.safetensors"
    assert path.stat().st_size <= 4_010_000
    tower = ImageTower.load(folder, path)
    assert tower.head is not None


@pytest.mark.offline
def test_photos_lie_near_their_words() -> None:
    from fuseprompt.models.encoders import SentenceEncoder

    folder = offline_folder("image-text")
    names = json.loads((folder / "classes.json").read_text("utf-8"))
    words = [
        "cat",
        "cup of coffee",
        "flower",
        "motorcycle",
        "dog",
        "boat",
        "hammer",
        "pizza",
        "horse",
    ]
    texts = SentenceEncoder.load(offline_folder("sentence")).encode([class_text(w) for w in words])
    photos = Path(__file__).parents[2] / "examples/photos"
    images = [Image.open(photos / f"{n}.jpg") for n in ("cat", "coffee", "flower", "motorcycle")]
    tower = ImageTower.load(folder, DATA / "image_head.safetensors")
    nearest = (tower.image_features(images) @ texts.T).argmax(dim=1).tolist()
    assert [words[i] for i in nearest] == words[:4]
    pixels = torch.stack([tower.preprocess_centre(images[1])])
    best = tower.network.classify(tower.features(pixels)).argmax(dim=1)
    assert names[int(best)] == "espresso"


@pytest.mark.offline
def test_in_context_people_wear_clothes() -> None:
    """ImageNet has no person; captions tell who is in a picture with one of its classes."""
    from fuseprompt.models.encoders import SentenceEncoder

    folder = offline_folder("image-text")
    tower = ImageTower.load(folder, DATA / "image_head.safetensors")
    assert tower.head is not None
    assert tower.conse is not None
    names = json.loads((folder / "classes.json").read_text("utf-8"))
    texts = SentenceEncoder.load(offline_folder("sentence")).encode(
        ["A man wearing a suit and tie.", "A suit on a shelf."]
    )
    suit = tower.conse.class_features[names.index("suit")][None]
    person, shelf = (tower.head.in_context(suit) @ texts.T)[0].tolist()
    assert person > shelf + 0.1
