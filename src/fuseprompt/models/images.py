"""Pictures as upright RGB images, and the pictures of a folder.

`open_image` is the one way in for paths, bytes, Pillow images and arrays. Metadata cannot stop it:
an orientation that can be read is followed, and nothing else is kept. `READERS` maps each mode of
Pillow to what a viewer shows. In a folder a file counts by its ending; what Pillow cannot open or
what is hidden does not.
"""

import importlib
import io
import os
import stat
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from fuseprompt.errors import ImageError

#: More pixels than any camera has, few enough to decode in memory (a decompression bomb has more).
MAX_PIXELS: Final = 120_000_000

#: A picture as users have it; an array is (height, width) or (height, width, channels).
Picture = str | os.PathLike[str] | bytes | bytearray | Image.Image | np.ndarray

#: What to do about HEIC, and the marks of such a file behind its eighth byte.
_INSTALL_HEIF: Final = "Pillow reads it with pillow-heif only: pip install pillow-heif"
_HEIC_MARKS: Final = frozenset({b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"})

#: What errors of Pillow say if a program or a library is missing; the file may be sound.
_MISSING: Final = ("Ghostscript", "cannot find loader", "not available", "not installed")

#: Tags of TIFF files that decide how grey values are shown.
_BITS, _WHITE_IS_ZERO, _NUMBER_TYPE = 258, 262, 339

#: Tags of TIFF files that no pixel needs: words, resolution and XMP; so are all from 32768 on.
_TIFF_WORDS: Final = frozenset({269, 270, 271, 272, 282, 283, 296, 305, 306, 315, 316, 700})

#: Files above are not read again to get round their metadata.
_MOST_BYTES: Final = 1 << 28

#: Formats that Pillow recognises but cannot decode, or that are no pictures.
_NO_PICTURES: Final = frozenset({"BUFR", "GRIB", "HDF5", "MPEG"})

_HEIC: Final = frozenset({".heic", ".heif", ".hif"})

#: Pictures that Pillow does not read: vectors, raw files of cameras and rare formats.
_UNREAD: Final = frozenset(
    {".svg", ".ai", ".jxl", ".jxr", ".exr", ".hdr", ".xcf"}
    | {".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".raw"}
)


def open_image(picture: Picture) -> Image.Image:
    """Return a picture as an RGB image: first frame, upright (EXIF), transparency on white.

    A Pillow image is read at the frame where it is. An array is grey, grey and alpha, RGB or RGBA
    with channels last: truth values, whole numbers or floats. The result is new, decoded and
    without metadata; a file is closed.

    Raises:
        ImageError: If there is no such file, it is a folder, a pipe or empty, is no image, is cut
            short or too large; or if the picture is of another type.
    """
    source: Any = picture
    if isinstance(picture, Image.Image):
        name = f"A Pillow image ({picture.mode}, {picture.width} x {picture.height})"
    elif isinstance(picture, np.ndarray):
        name = f"An array ({picture.dtype}, shape {picture.shape})"
        source = _image_of(picture, name)
    elif isinstance(picture, bytes | bytearray):
        name = f"A picture in memory ({len(picture):,} bytes)"
    elif isinstance(picture, str | os.PathLike):
        name = str(picture)
        _check_file(name)
    else:
        raise ImageError(
            f"A picture was given as {type(picture).__name__}, expected a path, the bytes of an "
            "image file, a Pillow image or a numpy array."
        )
    _register_heif()
    try:
        return _read(source, name)
    except ImageError:
        raise
    except Exception as error:  # Pillow's readers raise whatever a damaged file makes them.
        # Odd metadata can hide pixels that are intact.
        data = _content(source)
        if bare := _BARE.get(data[:2]):
            with suppress(Exception):  # The first error says more.
                return _read(bare(data), name)
        raise ImageError(f"{name}: {_reason(error, source)}") from None


def _register_heif() -> None:
    """Let Pillow read HEIC if the package pillow-heif is installed."""
    with suppress(ImportError, OSError):  # OSError: it lacks a library.
        importlib.import_module("pillow_heif").register_heif_opener()


def _check_file(name: str) -> None:
    """Raise an `ImageError` unless there is a file with this name, and it has content."""
    if not name:  # Path("") would be the current folder.
        raise ImageError("An image was named '', expected the path of an image or of a folder.")
    try:
        status = os.stat(name)
    except PermissionError as error:
        raise ImageError(f"{name}: cannot be looked up ({error.strerror}).") from None
    except (OSError, ValueError):  # No file has a name that is too long or holds a null byte.
        raise ImageError(
            f"{name}: no such file. Give the path of an image or of a folder of images."
        ) from None
    if stat.S_ISDIR(status.st_mode):
        raise ImageError(f"{name}: is a folder, expected an image file.")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(
            f"{name}: is a pipe or device, expected an image file, for it is read more than once. "
            "Write what comes from it to a file first."
        )
    if status.st_size == 0:
        raise ImageError(f"{name}: the file is empty (0 bytes). Copy or download it again.")


def _read(source: Any, name: str) -> Image.Image:
    with warnings.catch_warnings():
        # Pillow warns of half-size bombs and odd metadata: neither matters here.
        warnings.simplefilter("ignore")
        if isinstance(source, Image.Image):
            return _to_rgb(source, name)
        is_content = isinstance(source, bytes | bytearray)
        with Image.open(io.BytesIO(source) if is_content else source) as image:
            image.seek(0)
            return _to_rgb(image, name)


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Return a new image, upright and without metadata."""
    if not image.width * image.height:
        image.load()  # Says if the format needs another program, and so has no size.
    _check_size(image.width, image.height, name)
    image.load()
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # Metadata that cannot be read turns nothing.
        orientation = None
    rgb = READERS.get(image.mode, _colours)(image)
    rgb.info = {}
    rgb.getexif()[ExifTags.Base.Orientation] = orientation
    return ImageOps.exif_transpose(rgb)


def _check_size(width: int, height: int, name: str) -> None:
    if not width * height:
        raise ImageError(f"{name}: {width} x {height} pixels, expected at least one.")
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{name}: {width} x {height} pixels are more than {MAX_PIXELS:,}. Scale it down first."
        )


def _colours(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, layer).convert("RGB")


def _numbers(image: Image.Image) -> Image.Image:
    """Return an image of numbers as a viewer shows it; a tag of TIFF may say more than its mode."""
    values, tags = np.asarray(image), getattr(image, "tag_v2", {})
    if image.mode == "I" and tags.get(_NUMBER_TYPE) in (1, (1,)):
        values = values.view(np.uint32)  # Pillow has no mode for these.
    elif image.mode == "I" and image.format in ("PNG", "PPM"):
        values = values.astype(np.uint16)  # The only numbers that these formats give this mode.
    elif image.mode != "F" and tags.get(_BITS) in (12, (12,)):
        values = values * np.uint16(16)
    grey = _to_bytes(values)
    if tags.get(_WHITE_IS_ZERO) == 0:
        grey = np.uint8(255) - grey
    if isinstance(clear := image.info.get("transparency"), int):
        grey = np.where(np.asarray(image) == clear, np.uint8(255), grey)
    return Image.fromarray(grey).convert("RGB")


#: How each mode of Pillow becomes RGB.
READERS: Final[Mapping[str, Callable[[Image.Image], Image.Image]]] = {
    **dict.fromkeys(["1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"], _colours),
    **dict.fromkeys(["LA", "La", "PA", "RGBA", "RGBa"], _colours),
    **dict.fromkeys(["I;16", "I;16L", "I;16B", "I;16N", "I", "F"], _numbers),
}


def _image_of(array: np.ndarray, name: str) -> Image.Image:
    """Return an array as an image; colours and alpha may have ranges of their own."""
    shape = array.shape if array.ndim == 3 else (*array.shape, 1)
    if array.dtype.kind not in "biuf" or len(shape) != 3 or not 1 <= shape[2] <= 4:
        raise ImageError(
            f"{name}: expected numbers of shape (height, width) or (height, width, channels) with "
            "1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA) channels. Put channels last."
        )
    _check_size(shape[1], shape[0], name)
    num_colours = 3 if shape[2] > 2 else 1
    parts = np.split(array.reshape(shape), [num_colours], axis=-1)
    pixels = np.concatenate([_to_bytes(part) for part in parts], axis=-1)
    return Image.fromarray(pixels[..., 0] if shape[2] == 1 else pixels)


def _to_bytes(values: np.ndarray) -> np.ndarray:
    """Return numbers as brightness from 0 to 255; what is no number is black."""
    if values.dtype == np.uint8:
        return values
    black, white = _range(values)
    with np.errstate(all="ignore"):
        shares = (values.astype(np.float64) - black) / (white - black)
    shares = np.nan_to_num(shares, nan=0.0, posinf=1.0, neginf=0.0)
    return np.rint(255.0 * shares.clip(0.0, 1.0)).astype(np.uint8)


def _range(values: np.ndarray) -> tuple[float, float]:
    """Return which values are black and white.

    16-bit numbers without a sign have a fixed white. Others have the least usual white that no
    value exceeds; if the picture would be all but black with it, or has values below 0, they have
    their own range, as viewers of measurements show them.
    """
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:
        return 0.0, 65535.0
    finite = values[np.isfinite(values)]
    if values.dtype == np.bool_ or not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    least = 1.0 if values.dtype.kind == "f" else 255.0
    for white in (least, 255.0, 65535.0):
        if low >= 0.0 and high <= white and (white == least or high >= white / 16.0):
            return 0.0, white
    return (low, high) if low < high else (high - 1.0, high)


def _bare_jpeg(data: bytes) -> bytes:
    kept, at = [data[:2]], 2
    # Segments up to the start of the pixels; a marker, then a length that counts itself.
    while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] != b"\xda" and at + 4 <= len(data):
        kind, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4])
        is_metadata = (0xE0 <= kind <= 0xEF and kind != 0xEE) or kind == 0xFE  # 0xEE: colours
        if not is_metadata or data[at + 4 : at + 8] == b"Exif":
            kept.append(data[at:end])
        at = end
    return b"".join([*kept, data[at:]])


def _bare_png(data: bytes) -> bytes:
    kept, at = [data[:8]], 8
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4])
        kind, check = data[at + 4 : at + 8], data[end - 4 : end]
        is_whole = zlib.crc32(data[at + 4 : end - 4]).to_bytes(4) == check
        # A capital letter marks what the pixels need.
        if kind[:1].isupper() or (kind in (b"tRNS", b"eXIf") and is_whole):
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def _bare_tiff(data: bytes) -> bytes:
    order: Literal["little", "big"] = "little" if data[:2] == b"II" else "big"
    start = int.from_bytes(data[4:8], order)
    end = start + 2 + 12 * int.from_bytes(data[start : start + 2], order)
    tags = [data[at : at + 12] for at in range(start + 2, end, 12)]
    kept = [t for t in tags if (n := int.from_bytes(t[:2], order)) < 32768 and n not in _TIFF_WORDS]
    table = len(kept).to_bytes(2, order) + b"".join(kept) + data[end : end + 4]
    return data[:start] + table.ljust(end + 4 - start, b"\0") + data[end + 4 :]


#: What leaves a file's metadata out but its orientation, by how the file begins.
_BARE: Final = {b"\xff\xd8": _bare_jpeg, b"\x89P": _bare_png, b"II": _bare_tiff, b"MM": _bare_tiff}


def _reason(error: Exception, source: Any) -> str:
    """Return why a picture cannot be read and what to do, the end of a sentence."""
    if isinstance(error, UnidentifiedImageError):
        head = _content(source)[:12]
        if head[4:8] == b"ftyp" and head[8:] in _HEIC_MARKS:
            return f"a HEIC picture. {_INSTALL_HEIF}; or save it as JPEG."
        return "not an image that Pillow can read (its content, not its name, decides)."
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {MAX_PIXELS:,} pixels. Scale it down first."
    if isinstance(error, PermissionError):
        return f"may not be read ({error.strerror}). Change its permissions."
    text = str(error) or type(error).__name__
    if isinstance(source, Image.Image):
        return f"cannot be decoded ({text}). Its file is damaged, or was closed too early."
    if any(word in text for word in _MISSING):
        return f"Pillow lacks what this format needs ({text}). Install it, or save it as PNG."
    return f"the image is damaged or cut short ({text}). Copy or download it again."


def _content(source: Any) -> bytes:
    """Return the bytes of a file, or nothing where there are none."""
    if isinstance(source, bytes | bytearray):
        return bytes(source)
    try:
        with open(source, "rb") as file:
            return file.read(_MOST_BYTES)
    except (OSError, TypeError):
        return b""


def list_images(folder: str | Path) -> list[Path]:
    """Return the image files of a folder in name order (not of its sub-folders), by file ending.

    Raises:
        ImageError: If the folder has none, or cannot be listed.
    """
    files, left = _sort(folder)
    if not files:
        more = f" Left alone: {left}." if left else ""
        raise ImageError(
            f"{folder}: the folder has no image files. "
            f"Expected files such as photo.jpg or photo.png.{more}"
        )
    return files


def list_folders(folder: str | Path) -> list[Path]:
    """Return the folders with images in a tree, itself included, in name order, hidden ones aside.

    Links to folders are not followed. A tree without images is returned as its root alone.
    """
    found = []
    for path, folders, _ in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        with suppress(ImageError):
            list_images(path)
            found.append(Path(path))
    return found or [Path(folder)]


def describe_left_alone(
    folder: str | Path, *, with_others: bool = True, with_folders: bool = True
) -> str:
    """Return a sentence on what `list_images` leaves alone and why, with counts; "" for nothing.

    Without `with_others` only pictures count, not texts and sub-folders.
    """
    _, left = _sort(folder, with_others=with_others, with_folders=with_folders)
    return f"{folder}: left alone: {left}." if left else ""


def _sort(
    folder: str | Path, *, with_others: bool = True, with_folders: bool = True
) -> tuple[list[Path], str]:
    """Return the image files of a folder, and in words what else is there, counted by reason."""
    _register_heif()
    readable = {
        ending
        for ending, kind in Image.registered_extensions().items()
        if (kind in Image.OPEN or kind == "MPO") and kind not in _NO_PICTURES  # JPEG's opens MPO.
    }
    files: list[Path] = []
    left: Counter[str] = Counter()
    try:
        for file in sorted(Path(folder).iterdir()):
            if file.is_dir() and not with_folders:
                continue
            reason = _why_left(file, readable)
            if not reason:
                files.append(file)
            elif with_others or file.suffix.lower() in readable | _HEIC | _UNREAD:
                left[reason] += 1
    except OSError as error:
        raise ImageError(f"{folder}: cannot be listed ({error.strerror}).") from None
    return files, ", ".join(f"{count:,} {reason}" for reason, count in sorted(left.items()))


def _why_left(file: Path, readable: set[str]) -> str:
    """Return why a file is left alone, or "" for a picture."""
    ending = file.suffix.lower()
    if file.name.startswith("."):
        return "hidden (the name begins with a dot)"
    if file.is_dir():
        return "sub-folder (name it, or add --recursive, to have its images)"
    if not file.is_file():
        return "pipe, device or broken link"
    if ending in readable:
        return ""
    if ending in _HEIC:
        return f"{ending} ({_INSTALL_HEIF})"
    if ending in _UNREAD:
        return f"{ending} (Pillow does not read it; save as JPEG or PNG)"
    return f"{ending or 'without an ending'} (no image)"
