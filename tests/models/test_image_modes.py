"""One way in for paths, bytes, Pillow images and arrays; each mode as a viewer shows it."""

import inspect
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from fuseprompt.errors import ImageError
from fuseprompt.models.images import READERS, open_image
from fuseprompt.objective.terms import ImageText
from tests.tiny import clip

RAMP = np.linspace(0, 255, 48).round().astype(np.uint8).reshape(6, 8)
RGB = np.stack([RAMP, RAMP[:, ::-1], np.full_like(RAMP, 90)], axis=-1)
RGBA = np.concatenate([RGB, RAMP[..., None]], axis=-1)
WHITE = (255, 255, 255)


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Return what a colour with alpha looks like on white, by hand."""
    share = alpha[..., None] / 255.0
    return colour * share + 255.0 * (1.0 - share)


def pixels(picture: Any) -> np.ndarray:
    opened = open_image(picture)
    assert opened.mode == "RGB"
    return np.asarray(opened).astype(float)


def grey_of(picture: Any) -> list[int]:
    """Return the first row of a grey picture."""
    opened = pixels(picture)
    assert np.array_equal(opened[..., 0], opened[..., 2])
    return opened[0, :, 0].astype(int).tolist()


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def rotated_photo() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(Image.fromarray(RGB), "JPEG", exif=exif, quality=95)


def transparent_palette() -> bytes:
    image = Image.new("P", (8, 6), 0)
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.paste(1, (0, 0, 4, 6))
    return saved(image, "PNG", transparency=0)


def sixteen_bits() -> np.ndarray:
    return np.linspace(0, 65535, 48).astype(np.uint16).reshape(6, 8)


#: Files, and the array that holds the same picture.
SAME: dict[str, tuple[bytes, Callable[[Image.Image], np.ndarray]]] = {
    "EXIF rotation": (rotated_photo(), lambda i: np.asarray(ImageOps.exif_transpose(i))),
    "transparency": (saved(Image.fromarray(RGBA), "PNG"), np.asarray),
    "16 bits": (saved(Image.fromarray(sixteen_bits()), "PNG"), np.asarray),
    "palette with transparency": (transparent_palette(), lambda i: np.asarray(i.convert("RGBA"))),
    "grey": (saved(Image.fromarray(RAMP), "PNG"), np.asarray),
    "black and white": (saved(Image.fromarray(RAMP > 100), "PNG"), np.asarray),
    "grey floats": (saved(Image.fromarray((RAMP / 255).astype(np.float32)), "TIFF"), np.asarray),
    "transparent colour": (
        saved(Image.fromarray(RGB), "PNG", transparency=tuple(RGB[2, 3].tolist())),
        lambda i: np.asarray(i.convert("RGBA")),
    ),
    "CMYK": (saved(Image.fromarray(RGB).convert("CMYK"), "TIFF"), lambda i: i.convert("RGB")),
}


@pytest.mark.parametrize("name", SAME)
def test_a_picture_is_the_same_by_every_way_in(name: str, tmp_path: Path) -> None:
    """Path as text and as path, bytes, Pillow image as opened, loaded and copied, array."""
    data, as_array = SAME[name]
    file = tmp_path / "picture"
    file.write_bytes(data)
    loaded = Image.open(io.BytesIO(data))
    loaded.load()
    ways = {
        "path": file,
        "bytes": data,
        "bytearray": bytearray(data),
        "lazy": Image.open(io.BytesIO(data)),
        "loaded": loaded,
        "copy": loaded.copy(),
        "array": np.asarray(as_array(Image.open(io.BytesIO(data)))),
    }
    expected, term = pixels(str(file)), ImageText(clip())
    target = term.encode_target(str(file))
    for way, picture in ways.items():
        assert np.array_equal(pixels(picture), expected), way
        assert torch.equal(term.encode_target(picture), target), way
        if isinstance(picture, Image.Image):
            assert torch.equal(term.model.image_features([picture])[0], target), way
    assert torch.equal(term.encode_target(list(ways.values())[:1]), target)


def test_a_picture_in_memory_stays_as_it_was() -> None:
    image, array = Image.open(io.BytesIO(rotated_photo())), RGB.copy()
    image.load()
    before, info = image.tobytes(), dict(image.info)
    for picture in (image, array):
        opened = open_image(picture)
        opened.paste(WHITE, (0, 0, 8, 6))
    assert image.tobytes() == before
    assert image.info == info
    assert np.array_equal(array, RGB)


def test_a_pillow_image_is_read_at_the_frame_where_it_is() -> None:
    frames = [Image.new("RGB", (4, 4), c) for c in ("red", "lime")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    image = Image.open(io.BytesIO(data))
    image.seek(1)
    assert open_image(image).getpixel((0, 0)) == (0, 255, 0)
    assert open_image(data).getpixel((0, 0)) == (255, 0, 0)


#: For each mode, an image, what a viewer shows of it, and how far off it may be.
MODES: dict[str, tuple[Image.Image, np.ndarray, float]] = {
    "1": (Image.fromarray(RAMP > 100), np.where(RAMP > 100, 255, 0), 0),
    "L": (Image.fromarray(RAMP), RAMP, 0),
    "P": (Image.fromarray(RAMP).convert("P"), RAMP, 0),
    "RGB": (Image.fromarray(RGB), RGB, 0),
    "RGBX": (Image.fromarray(RGB).convert("RGBX"), RGB, 0),
    "CMYK": (Image.fromarray(RGB).convert("CMYK"), RGB, 0),
    "YCbCr": (Image.fromarray(RGB).convert("YCbCr"), RGB, 4),
    "HSV": (Image.fromarray(RGB).convert("HSV"), RGB, 6),
    "LAB": (
        Image.merge("LAB", [Image.new("L", (8, 6), v) for v in (255, 128, 128)]),
        RAMP * 0 + 255,
        1,
    ),
    "LA": (
        Image.merge("LA", [Image.fromarray(RAMP)] * 2),
        on_white(RAMP[..., None], RAMP)[..., 0],
        1,
    ),
    "La": (
        Image.merge("LA", [Image.fromarray(RAMP)] * 2).convert("La"),
        on_white(RAMP[..., None], RAMP)[..., 0],
        1.5,
    ),
    "PA": (Image.fromarray(RAMP).convert("P").convert("PA"), RAMP, 0),
    "RGBA": (Image.fromarray(RGBA), on_white(RGB, RAMP), 1),
    "RGBa": (Image.fromarray(RGBA).convert("RGBa"), on_white(RGB, RAMP), 1.5),
    "I;16": (Image.fromarray(sixteen_bits()), sixteen_bits() / 257, 0.5),
    "I;16L": (Image.frombytes("I;16L", (8, 6), sixteen_bits()), sixteen_bits() / 257, 0.5),
    "I;16B": (
        Image.frombytes("I;16B", (8, 6), sixteen_bits().astype(">u2")),
        sixteen_bits() / 257,
        0.5,
    ),
    "I;16N": (
        Image.frombytes("I;16N", (8, 6), sixteen_bits().astype("=u2")),
        sixteen_bits() / 257,
        0.5,
    ),
    "I": (Image.fromarray(sixteen_bits().astype(np.int32)), sixteen_bits() / 257, 0.5),
    "F": (Image.fromarray((RAMP / 255).astype(np.float32)), RAMP, 0),
}


def test_every_mode_of_pillow_has_a_row_and_a_test() -> None:
    assert set(Image.MODES) <= set(READERS) == set(MODES)


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_is_as_a_viewer_shows_it(mode: str) -> None:
    image, expected, tolerance = MODES[mode]
    assert image.mode == mode
    wanted = expected if expected.ndim == 3 else np.stack([expected] * 3, axis=-1)
    assert np.abs(pixels(image) - wanted).max() <= tolerance


def test_half_transparent_red_of_a_premultiplied_image() -> None:
    image = Image.new("RGBA", (2, 2), (255, 0, 0, 128)).convert("RGBa")
    assert np.abs(pixels(image)[0, 0] - [255, 127, 127]).max() <= 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.0, 100.0, 255.0], [0, 100, 255]),
        ([0.0, 257.0, 65535.0], [0, 1, 255]),
        ([0.5, 6.5, 12.5], [0, 128, 255]),  # a depth in metres is neither of these
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([0.0, 1e6, 1e9], [0, 0, 255]),
        ([float("nan"), 0.5, 1.0], [0, 128, 255]),
        ([float("-inf"), 0.5, float("inf")], [0, 128, 255]),
        ([float("nan")] * 3, [0, 0, 0]),
        ([0.0, 0.0, 0.0], [0, 0, 0]),
        ([700.0] * 3, [255, 255, 255]),
        ([0.0, 0.01, 0.02], [0, 3, 5]),
    ],
)
def test_floats_have_the_range_that_their_values_tell(
    values: list[float], expected: list[int]
) -> None:
    row = np.array([values], dtype=np.float32)
    assert grey_of(row) == grey_of(Image.fromarray(row)) == expected
    assert grey_of(saved(Image.fromarray(row), "TIFF")) == expected


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([0, 100, 255], np.int32, [0, 100, 255]),
        ([0, 1, 2], np.int32, [0, 1, 2]),
        ([0, 25700, 65535], np.int32, [0, 100, 255]),
        ([0, 50_000, 100_000], np.int32, [0, 128, 255]),
        ([-100, 0, 100], np.int32, [0, 128, 255]),
        ([-(2**31), 0, 2**31 - 1], np.int32, [0, 128, 255]),
        ([0, 500, 1000], np.int32, [0, 128, 255]),
        ([0, 128, 255], np.int64, [0, 128, 255]),
        ([0, 2**31, 2**32 - 1], np.uint32, [0, 128, 255]),
        ([-100, 0, 100], np.int16, [0, 128, 255]),
    ],
)
def test_whole_numbers_are_neither_all_white_nor_all_black(
    values: list[int], dtype: type, expected: list[int]
) -> None:
    row = np.array([values], dtype=dtype)
    assert grey_of(row) == expected
    if dtype == np.int32:
        assert grey_of(Image.fromarray(row)) == expected
        assert grey_of(saved(Image.fromarray(row), "TIFF")) == expected


def grey_tiff(row: np.ndarray, *, bits: int, kind: int, white_is_zero: bool = False) -> bytes:
    """Return a TIFF of one row whose tags are what is asked for."""
    data = row.tobytes()
    tags = [
        (256, 3, len(row)),
        (257, 3, 1),
        (258, 3, bits),
        (259, 3, 1),
        (262, 3, 0 if white_is_zero else 1),
        (273, 4, 8 + 2 + 10 * 12 + 4),
        (277, 3, 1),
        (278, 3, 1),
        (279, 4, len(data)),
        (339, 3, kind),
    ]
    table = b"".join(
        tag.to_bytes(2, "little")
        + type_.to_bytes(2, "little")
        + b"\1\0\0\0"
        + value.to_bytes(4, "little")
        for tag, type_, value in tags
    )
    return b"II*\0\x08\0\0\0\x0a\0" + table + bytes(4) + data


def test_tags_of_a_tiff_say_what_its_mode_cannot() -> None:
    unsigned = np.array([0, 2**31, 2**32 - 1], dtype="<u4")
    assert grey_of(grey_tiff(unsigned, bits=32, kind=1)) == [0, 128, 255]
    signed = np.array([-100, 0, 100], dtype="<i2")
    assert grey_of(grey_tiff(signed, bits=16, kind=2)) == [0, 128, 255]
    inverted = np.array([0, 25700, 65535], dtype="<u2")
    assert grey_of(grey_tiff(inverted, bits=16, kind=1, white_is_zero=True)) == [255, 155, 0]
    assert grey_of(grey_tiff(inverted, bits=16, kind=1)) == [0, 100, 255]


def test_twelve_bits_have_a_white_of_their_own() -> None:
    packed = np.frombuffer(bytes([0x00, 0x08, 0x00, 0xFF, 0xF0, 0x00]), dtype=np.uint8)
    # Two numbers in three bytes: 0, 2048, 4095, 0.
    data = grey_tiff(packed, bits=12, kind=1).replace(
        b"\0\1\3\0\1\0\0\0\6\0", b"\0\1\3\0\1\0\0\0\4\0", 1
    )
    assert grey_of(data) == [0, 128, 255, 0]


def test_grey_formats_with_more_than_8_bits_keep_their_brightness() -> None:
    dim = np.array([[0, 100, 200]], dtype=np.uint16)
    assert grey_of(b"P5 3 1 65535 " + dim.astype(">u2").tobytes()) == [0, 0, 1]
    assert grey_of(saved(Image.fromarray(dim), "PNG")) == [0, 0, 1]
    clear = saved(
        Image.fromarray(np.array([[0, 25700]], dtype=np.uint16)), "PNG", transparency=25700
    )
    assert grey_of(clear) == [0, 255]
    floats = np.array([[0.0, 0.5, 1.0]], dtype="<f4")
    assert grey_of(b"Pf 3 1 -1.0\n" + floats.tobytes()) == [0, 128, 255]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (RGB, RGB),
        (RGB / 255.0, RGB),
        (RGB.astype(np.uint16) * 257, RGB),
        (RGB.astype(np.int64), RGB),
        (RGB[..., :1], RGB[..., [0, 0, 0]]),
        (RGB[::-1, ::2], RGB[::-1, ::2]),
        (RGBA, on_white(RGB, RAMP)),
        (RGBA / 255.0, on_white(RGB, RAMP)),
        (RGBA.astype(np.uint16) * 257, on_white(RGB, RAMP)),
        (RGBA[..., [0, 3]], on_white(RGB[..., [0, 0, 0]], RAMP)),
        (RAMP > 100, np.stack([np.where(RAMP > 100, 255, 0)] * 3, axis=-1)),
    ],
)
def test_arrays_of_every_kind(array: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(pixels(array) - expected).max() <= 1


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (np.zeros((3, 20, 30)), r"An array \(float64, shape \(3, 20, 30\)\).*Put channels last"),
        (np.zeros(5), "expected numbers of shape"),
        (np.zeros((2, 2), dtype=complex), "expected numbers of shape"),
        (np.array([["a"]]), "expected numbers of shape"),
        (np.zeros((0, 5)), "5 x 0 pixels, expected at least one"),
        (
            np.broadcast_to(np.uint8(0), (20_000, 20_000)),
            "20000 x 20000 pixels are more than 120,000,000",
        ),
        (Image.new("RGB", (0, 5)), "0 x 5 pixels, expected at least one"),
        (b"", r"A picture in memory \(0 bytes\): not an image"),
        (b"no picture", r"A picture in memory \(10 bytes\): not an image"),
    ],
)
def test_what_is_no_picture_is_refused_in_a_sentence(picture: Any, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        open_image(picture)
    if isinstance(picture, np.ndarray) and picture.ndim == 1:
        return  # as a target it is a vector
    with pytest.raises(ImageError, match=words):
        ImageText(clip()).encode_target(picture)


@pytest.mark.parametrize("picture", [None, torch.zeros(3, 4, 4), 7])
def test_what_is_of_another_type_is_refused_in_a_sentence(picture: Any) -> None:
    unchecked = inspect.unwrap(open_image)  # Users have no type checker at run time; tests have.
    with pytest.raises(ImageError, match=rf"given as {type(picture).__name__}, expected a path, "):
        unchecked(picture)


def test_a_pillow_image_that_cannot_be_decoded(tmp_path: Path) -> None:
    cut = Image.open(io.BytesIO(saved(Image.effect_noise((64, 64), 90), "PNG")[:900]))
    with pytest.raises(ImageError, match=r"A Pillow image \(L, 64 x 64\): cannot be decoded"):
        open_image(cut)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as closed:
        pass
    with pytest.raises(ImageError, match="was closed too early"):
        open_image(closed)
