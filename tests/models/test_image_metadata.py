"""Odd metadata on intact pixels: the pixels are read, for captions and for the gallery."""

import io
import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fuseprompt.errors import ImageError
from fuseprompt.evaluation.page import picture_url
from fuseprompt.models.images import open_image

ORIENTATION, X_RESOLUTION, Y_RESOLUTION, XMP, GPS = 0x0112, 0x011A, 0x011B, 700, 34853
BYTE, SHORT, LONG, RATIONAL, SIGNED_RATIONAL = 1, 3, 4, 5, 10

#: Tag, type, count, value.
Entry = tuple[int, int, int, bytes]

UPRIGHT = Image.fromarray(
    np.random.default_rng(0).integers(0, 256, size=(8, 12, 3), dtype=np.uint8)
)


def tiff(entries: Sequence[Entry]) -> bytes:
    """Return a little-endian TIFF directory, which is also what EXIF is."""
    body, data, start = b"", b"", 8 + 2 + 12 * len(entries) + 4
    for tag, kind, count, value in sorted(entries):
        inside = value.ljust(4, b"\0") if len(value) <= 4 else struct.pack("<I", start + len(data))
        body += struct.pack("<HHI", tag, kind, count) + inside
        data += value if len(value) > 4 else b""
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + body + b"\0\0\0\0" + data


def tiff_file(extra: Sequence[Entry]) -> bytes:
    """Return an uncompressed TIFF picture with more tags than its pixels need."""
    pixels = UPRIGHT.tobytes()
    entries = [
        (256, SHORT, 1, struct.pack("<H", 12)),
        (257, SHORT, 1, struct.pack("<H", 8)),
        (258, SHORT, 3, struct.pack("<3H", 8, 8, 8)),
        (259, SHORT, 1, struct.pack("<H", 1)),
        (262, SHORT, 1, struct.pack("<H", 2)),
        (277, SHORT, 1, struct.pack("<H", 3)),
        (278, SHORT, 1, struct.pack("<H", 8)),
        (279, LONG, 1, struct.pack("<I", len(pixels))),
        *extra,
    ]
    start = len(tiff([*entries, (273, LONG, 1, b"")]))
    return tiff([*entries, (273, LONG, 1, struct.pack("<I", start))]) + pixels


def encoded(kind: str) -> bytes:
    buffer = io.BytesIO()
    UPRIGHT.save(buffer, kind)
    return buffer.getvalue()


def jpeg(*segments: bytes, marker: int = 0xE1) -> bytes:
    """Return a JPEG with segments of metadata put behind its first two bytes."""
    plain = encoded("JPEG")
    parts = [bytes([0xFF, marker]) + struct.pack(">H", len(s) + 2) + s for s in segments]
    return plain[:2] + b"".join(parts) + plain[2:]


def png(kind: bytes, data: bytes, *, checksum: int | None = None) -> bytes:
    """Return a PNG with one more chunk behind its header."""
    plain = encoded("PNG")
    check = zlib.crc32(kind + data) if checksum is None else checksum
    return (
        plain[:33] + struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
    ) + plain[33:]


def exif(*entries: Entry, orientation: int = 6) -> bytes:
    return b"Exif\0\0" + tiff([(ORIENTATION, SHORT, 1, struct.pack("<H", orientation)), *entries])


NEGATIVE = struct.pack("<2i", -300, 1)
NO_TEXT = b"key\0\0" + zlib.compress(b"x" * 2_000_000)

#: What the issue reports first, then siblings: rational numbers by zero, text where numbers belong,
#: a GPS directory outside the file.
TURNED = {
    "negative resolution": exif(
        (X_RESOLUTION, SIGNED_RATIONAL, 1, NEGATIVE), (Y_RESOLUTION, SIGNED_RATIONAL, 1, NEGATIVE)
    ),
    "resolution as bytes": exif((X_RESOLUTION, BYTE, 4, b"\x48\0\0\1")),
    "resolution by zero": exif((X_RESOLUTION, RATIONAL, 1, struct.pack("<2I", 72, 0))),
    "resolution as text": exif((X_RESOLUTION, 2, 6, b"large\0")),
    "three resolutions": exif((X_RESOLUTION, SIGNED_RATIONAL, 3, 3 * NEGATIVE)),
    "GPS outside the file": exif((GPS, LONG, 1, b"\xff\xff\xff\x7f")),
}

#: Where Pillow's own reader gives up: a text longer than it unpacks (workflows of image generators
#: are), a wrong checksum behind the pixels' back, a list of pictures that is none, tags of a TIFF.
PLAIN = {
    "PNG, long packed text": png(b"zTXt", NO_TEXT),
    "PNG, long packed international text": png(b"iTXt", b"key\0\1\0\0\0" + NO_TEXT[5:]),
    "PNG, colour profile that is none": png(b"iCCP", b"name\0\0no profile"),
    "PNG, wrong checksum of a comment": png(b"tEXt", b"key\0text", checksum=1),
    "PNG, empty physical size": png(b"pHYs", b""),
    "JPEG, broken list of pictures": jpeg(
        b"MPF\0" + tiff([(0xB000, 7, 4, b"0100"), (0xB001, LONG, 1, struct.pack("<I", 2))]),
        marker=0xE2,
    ),
    "JPEG, list of pictures too short": jpeg(
        b"MPF\0" + tiff([(0xB001, LONG, 1, struct.pack("<I", 9)), (0xB002, 7, 5, b"abcde")]),
        marker=0xE2,
    ),
    "JPEG, EXIF that is none": jpeg(b"Exif\0\0II*\0\xff\xff\xff\xff"),
    "JPEG, Photoshop's block cut": jpeg(b"Photoshop 3.0\x008BIM\x03\xed\0", marker=0xED),
    "TIFF, XMP as numbers": tiff_file([(XMP, LONG, 3, struct.pack("<3I", 1, 2, 3))]),
    "TIFF, resolution as bytes": tiff_file(
        [(282, BYTE, 4, b"\1\2\3\4"), (283, BYTE, 4, b"\1\2\3\4"), (296, SHORT, 1, b"\3\0")]
    ),
    "TIFF, GPS before the file": tiff_file([(GPS, 9, 1, struct.pack("<i", -73))]),
}


def as_plain(data: bytes) -> Image.Image:
    return UPRIGHT if not data.startswith(b"\xff\xd8") else Image.open(io.BytesIO(encoded("JPEG")))


@pytest.mark.parametrize("name", TURNED)
def test_a_photo_with_odd_exif_is_read_and_turned(name: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(jpeg(TURNED[name]))
    turned = as_plain(jpeg()).transpose(Image.Transpose.ROTATE_270)
    for picture in (file, file.read_bytes(), Image.open(file)):
        opened = open_image(picture)
        assert opened.size == (8, 12)
        assert np.array_equal(np.asarray(opened), np.asarray(turned))


@pytest.mark.parametrize("orientation", range(10))
def test_each_orientation_is_followed_and_an_unknown_one_is_not(orientation: int) -> None:
    opened = np.asarray(open_image(jpeg(exif(orientation=orientation))))
    pixels = np.asarray(as_plain(jpeg()))
    flipped, across = pixels[:, ::-1], pixels.transpose(1, 0, 2)
    expected = {
        2: flipped,
        3: flipped[::-1],
        4: pixels[::-1],
        5: across,
        6: across[:, ::-1],
        7: across[::-1, ::-1],
        8: across[::-1],
    }.get(orientation, pixels)
    assert np.array_equal(opened, expected)


@pytest.mark.parametrize("name", PLAIN)
def test_metadata_that_cannot_be_read_hides_no_pixels(name: str) -> None:
    opened = open_image(PLAIN[name])
    assert np.array_equal(np.asarray(opened), np.asarray(as_plain(PLAIN[name])))


def test_some_of_these_stop_pillow_itself() -> None:
    stopped = 0
    for data in PLAIN.values():
        try:
            Image.open(io.BytesIO(data)).load()
        except Exception:
            stopped += 1
    assert stopped >= 6


def test_a_broken_list_of_pictures_keeps_the_orientation() -> None:
    broken = b"MPF\0" + tiff([(0xB001, LONG, 1, struct.pack("<I", 9)), (0xB002, 7, 5, b"abcde")])
    head, tail = jpeg(exif())[:2], jpeg(broken, marker=0xE2)[2:]
    assert open_image(head + jpeg(exif())[2 : -len(encoded("JPEG")) + 2] + tail).size == (8, 12)


@pytest.mark.parametrize("data", [*PLAIN.values(), *map(jpeg, TURNED.values())])
def test_what_was_read_carries_no_metadata_and_can_be_saved(data: bytes) -> None:
    opened = open_image(data)
    assert opened.info == {}
    assert not opened.getexif()
    assert picture_url(opened, longest=8).startswith("data:image/jpeg;base64,")
    for kind in ("PNG", "JPEG", "TIFF", "WEBP"):
        opened.save(io.BytesIO(), kind)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_picture_is_read_or_refused_in_a_sentence(seed: int) -> None:
    """Bytes changed, left out and put in, at random: an `ImageError` is all that comes."""
    chance = random.Random(seed)
    sources = [*PLAIN.values(), *map(jpeg, TURNED.values())]
    sources += [encoded(kind) for kind in ("GIF", "BMP", "WEBP", "PPM", "TGA", "ICO", "PCX")]
    data = bytearray(chance.choice(sources))
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data))
        data[at : at + chance.randint(0, 4)] = chance.randbytes(chance.randint(0, 4))
    try:
        opened = open_image(bytes(data))
    except ImageError as error:
        message = str(error)
    else:
        assert opened.mode == "RGB"
        assert picture_url(opened, longest=320)
        return
    assert message.startswith(f"A picture in memory ({len(data):,} bytes): ")
    assert message.endswith(".")
