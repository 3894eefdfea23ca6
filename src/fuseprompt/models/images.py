"""Image files as upright RGB pictures, and one sentence for each reason why one cannot be read."""

import errno
import warnings
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from fuseprompt.errors import ImageError

#: More pixels than any camera has, few enough to decode in memory (a decompression bomb has more).
MAX_PIXELS = 120_000_000

#: Formats that Pillow recognises but cannot decode, or that are no pictures.
_NO_PICTURES = frozenset({"BUFR", "GRIB", "HDF5", "MPEG"})


def open_image(path: str | Path) -> Image.Image:
    """Return the picture in a file: first frame, upright (EXIF), RGB, transparency on white.

    Args:
        path: An image file that Pillow can read. Greyscale, palette, 16-bit, CMYK and transparent
            ones work.

    Returns:
        An RGB image, fully decoded; the file is closed.

    Raises:
        ImageError: If there is no such file, it is a folder or empty, is no image, is cut short or
            too large.
    """
    file = Path(path)
    if not str(path):  # Path("") would be the current folder.
        raise ImageError("An image was named '', expected the path of an image or of a folder.")
    if not _exists(file):
        raise ImageError(
            f"{file}: no such file. Give the path of an image or of a folder of images."
        )
    if file.is_dir():
        raise ImageError(f"{file}: is a folder, expected an image file.")
    if file.stat().st_size == 0:
        raise ImageError(f"{file}: the file is empty (0 bytes). Copy or download it again.")
    try:
        with warnings.catch_warnings():
            # Pillow warns of half-size bombs and odd metadata: neither matters here.
            warnings.simplefilter("ignore")
            with Image.open(file) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ImageError(
                        f"{file}: {image.width} x {image.height} pixels are more than "
                        f"{MAX_PIXELS:,}. Scale it down first."
                    )
                image.seek(0)
                image.load()
                return _to_rgb(ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        raise ImageError(
            f"{file}: not an image that Pillow can read (its content, not its name, decides)."
        ) from None
    except Image.DecompressionBombError:
        raise ImageError(f"{file}: more than {MAX_PIXELS:,} pixels. Scale it down first.") from None
    except PermissionError as error:
        raise ImageError(
            f"{file}: may not be read ({error.strerror}). Change its permissions."
        ) from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise ImageError(
            f"{file}: the image is damaged or cut short ({error}). Copy or download it again."
        ) from None


def list_images(folder: str | Path) -> list[Path]:
    """Return the image files of a folder in name order (not of its sub-folders), by file ending.

    Raises:
        ImageError: If the folder has none.
    """
    kinds = Image.registered_extensions()
    endings = {e for e, kind in kinds.items() if kind in Image.OPEN and kind not in _NO_PICTURES}
    files = sorted(f for f in Path(folder).iterdir() if f.is_file() and f.suffix.lower() in endings)
    if not files:
        raise ImageError(
            f"{folder}: the folder has no image files. "
            "Expected files such as photo.jpg or photo.png."
        )
    return files


def _exists(file: Path) -> bool:
    """Return whether there is such a file; no file has a name that is too long."""
    try:
        return file.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise ImageError(f"{file}: cannot be looked up ({error.strerror}).") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return an RGB copy; 16-bit greys keep their brightness, transparency becomes white."""
    if image.mode.startswith("I") or image.mode == "F":
        extrema: Any = image.getextrema()  # one band: two numbers
        is_16_bit = image.mode.startswith("I;16") or float(extrema[1]) > 255.0
        # 16-bit files hold 0..65535; Pillow's own conversion would clip all above 255 to white.
        scale = 255.0 / 65535.0 if is_16_bit else 1.0
        return image.convert("F").point(lambda value: value * scale).convert("L").convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")
