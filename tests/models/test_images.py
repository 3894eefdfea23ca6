"""Pictures of every kind, and every bad file of a real folder with the error that names it."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fuseprompt.errors import ImageError
from fuseprompt.models import images
from fuseprompt.models.images import open_image


def gradient(width: int = 24, height: int = 16) -> Image.Image:
    """Return a picture that is red on the left and blue at the bottom."""
    x = np.linspace(255, 0, width)[None, :].repeat(height, 0)
    y = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    rgb = np.stack([x, np.full_like(x, 40), y], -1).round().astype(np.uint8)
    return Image.fromarray(rgb)


def test_gradient_is_what_its_name_says() -> None:
    red, blue = gradient().getpixel((0, 0)), gradient().getpixel((23, 15))
    assert red == (255, 40, 0)
    assert blue == (0, 40, 255)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Return a PNG chunk with length and checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of a few bytes that claims so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(b"\0" * 10))
    return b"\x89PNG\r\n\x1a\n" + body + png_chunk(b"IEND", b"")


def test_a_picture_is_read_as_rgb(tmp_path: Path) -> None:
    gradient().save(tmp_path / "a.png")
    image = open_image(tmp_path / "a.png")
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), np.asarray(gradient()))


@pytest.mark.parametrize("path_type", [str, Path])
def test_paths_may_be_text_or_paths(tmp_path: Path, path_type: type) -> None:
    gradient().save(tmp_path / "a.png")
    assert open_image(path_type(tmp_path / "a.png")).size == (24, 16)


@pytest.mark.parametrize(
    "name", ["two words.png", "ünï-図.png", "-dash.png", "no ending", "UPPER.PNG", "a'b\"c$d;e.png"]
)
def test_odd_names(tmp_path: Path, name: str) -> None:
    gradient().save(tmp_path / name, format="PNG")
    assert open_image(tmp_path / name).size == (24, 16)


def test_grey(tmp_path: Path) -> None:
    gradient().convert("L").save(tmp_path / "a.png")
    pixels = np.asarray(open_image(tmp_path / "a.png"))
    assert np.array_equal(pixels[..., 0], np.asarray(gradient().convert("L")))
    assert np.array_equal(pixels[..., 0], pixels[..., 2])


def test_black_and_white(tmp_path: Path) -> None:
    gradient().convert("1").save(tmp_path / "a.png")
    assert set(np.unique(np.asarray(open_image(tmp_path / "a.png")))) == {0, 255}


def test_palette(tmp_path: Path) -> None:
    gradient().quantize(200).save(tmp_path / "a.png")
    difference = np.asarray(open_image(tmp_path / "a.png"), float) - np.asarray(gradient(), float)
    assert np.abs(difference).mean() < 8


def test_palette_with_transparency_is_white_where_transparent(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((3, 3), 1)
    image.save(tmp_path / "a.png", transparency=0)
    opened = open_image(tmp_path / "a.png")
    assert opened.getpixel((0, 0)) == (255, 255, 255)
    assert opened.getpixel((3, 3)) == (0, 255, 0)


def test_rgba_is_put_on_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (3, 1), (200, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    image.putpixel((2, 0), (0, 0, 0, 128))
    image.save(tmp_path / "a.png")
    opened = open_image(tmp_path / "a.png")
    assert opened.mode == "RGB"
    assert opened.getpixel((0, 0)) == (200, 0, 0)
    assert opened.getpixel((1, 0)) == (255, 255, 255)
    assert abs(opened.getpixel((2, 0))[0] - 127) <= 1


def test_grey_with_alpha(tmp_path: Path) -> None:
    Image.new("LA", (2, 2), (0, 0)).save(tmp_path / "a.png")
    assert open_image(tmp_path / "a.png").getpixel((0, 0)) == (255, 255, 255)


def test_cmyk(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)
    red, green, blue = open_image(tmp_path / "a.jpg").getpixel((4, 4))
    assert red > 200
    assert max(green, blue) < 60


@pytest.mark.parametrize("brightest", [65535, 30000, 200])
def test_16_bit_greys_keep_their_brightness(tmp_path: Path, brightest: int) -> None:
    values = np.array([[0, brightest // 2, brightest]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    row = np.asarray(open_image(tmp_path / "a.png"))[0, :, 0].astype(float)
    assert np.abs(row - values[0] / 257.0).max() <= 1.0


def test_32_bit_and_float_pictures_can_be_read(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 65535]], dtype=np.int32)).save(tmp_path / "i.tif")
    Image.fromarray(np.array([[0, 255]], dtype=np.float32)).save(tmp_path / "f.tif")
    for name in ("i.tif", "f.tif"):
        assert np.asarray(open_image(tmp_path / name))[0, :, 0].tolist() == [0, 255]


def test_photos_are_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: turn by 90 degrees clockwise
    gradient(32, 16).save(tmp_path / "a.jpg", exif=exif, quality=95)
    image = open_image(tmp_path / "a.jpg")
    assert image.size == (16, 32)
    assert image.getpixel((8, 1))[0] > 200  # the red left side is now on top


def test_the_first_frame_of_an_animation_is_read(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), c) for c in ("red", "lime", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=50)
    with Image.open(tmp_path / "a.gif") as animation:
        assert animation.n_frames == 3
    assert open_image(tmp_path / "a.gif").getpixel((4, 4)) == (255, 0, 0)


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "bmp", "webp"])
def test_one_pixel(tmp_path: Path, ending: str) -> None:
    Image.new("RGB", (1, 1), "white").save(tmp_path / f"a.{ending}")
    assert open_image(tmp_path / f"a.{ending}").getpixel((0, 0)) == (255, 255, 255)


def test_the_file_is_closed_and_may_be_deleted_while_the_picture_lives(tmp_path: Path) -> None:
    gradient().save(tmp_path / "a.png")
    image = open_image(tmp_path / "a.png")
    (tmp_path / "a.png").unlink()
    assert image.getpixel((0, 0)) == (255, 40, 0)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"nope\.jpg: no such file\. Give the path"):
        open_image(tmp_path / "nope.jpg")


@pytest.mark.parametrize("name", ["x" * 5000 + ".jpg", "a\0b.jpg"], ids=["too long", "null byte"])
def test_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageError, match="no such file"):
        open_image(tmp_path / name)


def test_a_folder_is_not_an_image(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="is a folder, expected an image file"):
        open_image(tmp_path)


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    with pytest.raises(ImageError, match=r"a\.jpg: the file is empty \(0 bytes\)"):
        open_image(tmp_path / "a.jpg")


def test_a_text_called_jpg(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("This is no picture.")
    with pytest.raises(ImageError, match=r"a\.jpg: not an image that Pillow can read"):
        open_image(tmp_path / "a.jpg")


@pytest.mark.parametrize("ending", ["jpg", "png", "gif", "webp"])
def test_a_truncated_file(tmp_path: Path, ending: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = tmp_path / f"whole.{ending}"
    Image.fromarray(noise).save(whole)
    cut = tmp_path / f"cut.{ending}"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(ImageError, match=rf"cut\.{ending}: (the image is damaged|not an image)"):
        open_image(cut)


def test_damaged_data(tmp_path: Path) -> None:
    gradient().save(tmp_path / "a.png")
    data = bytearray((tmp_path / "a.png").read_bytes())
    data[60:70] = b"\xff" * 10
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(ImageError, match=r"a\.png: "):
        open_image(tmp_path / "a.png")


@pytest.mark.parametrize("side", [11_000, 60_000])
def test_a_decompression_bomb(tmp_path: Path, side: int) -> None:
    (tmp_path / "a.png").write_bytes(bomb(side, side))
    assert side * side > images.MAX_PIXELS
    with pytest.raises(ImageError, match=r"a\.png: .*120,000,000.*Scale it down first"):
        open_image(tmp_path / "a.png")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradient().save(tmp_path / "a.png")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(ImageError, match=r"a\.png: may not be read \(Permission denied\)"):
        open_image(tmp_path / "a.png")
