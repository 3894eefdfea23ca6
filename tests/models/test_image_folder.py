"""Folders: which files are pictures, and a sentence on all that was left alone."""

import os
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from fuseprompt.errors import DatasetError, ImageError
from fuseprompt.evaluation.datasets import read_dataset
from fuseprompt.models.images import describe_left_alone, list_images, open_image


@pytest.fixture(autouse=True)
def no_heif(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide pillow-heif, which some machines have, and what it told Pillow."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    Image.init()
    endings = {e: k for e, k in Image.EXTENSION.items() if e not in (".heic", ".heif", ".hif")}
    monkeypatch.setattr(Image, "EXTENSION", endings)


def fill(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()
    return folder


def names_of(folder: Path) -> list[str]:
    return [file.name for file in list_images(folder)]


def heic(brand: bytes = b"heic") -> bytes:
    """Return the head of a photo of a telephone."""
    return b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1" + brand + bytes(40)


def test_a_folder_is_listed_in_name_order_without_other_files(tmp_path: Path) -> None:
    names = ["b.JPG", "a b.png", "c.webp", "a.gif"]
    fill(tmp_path, *names, "notes.txt", "paper.pdf", "film.mpg", "d.jpg.part")
    (tmp_path / "folder.png").mkdir()
    assert names_of(tmp_path) == sorted(names)


@pytest.mark.parametrize("files", [[], ["notes.txt"]])
def test_a_folder_without_pictures(tmp_path: Path, files: list[str]) -> None:
    with pytest.raises(ImageError, match="the folder has no image files"):
        list_images(fill(tmp_path, *files))


@pytest.mark.parametrize(
    "ending", ["mpo", "MPO", "jfif", "avif", "jp2", "tiff", "pgm", "qoi", "eps"]
)
def test_every_format_that_pillow_reads_counts(ending: str, tmp_path: Path) -> None:
    assert names_of(fill(tmp_path, f"a.{ending}")) == [f"a.{ending}"]
    assert describe_left_alone(tmp_path) == ""


def test_a_stereo_photo_is_read_as_its_first_picture(tmp_path: Path) -> None:
    left, right = Image.new("RGB", (16, 16), "red"), Image.new("RGB", (16, 16), "blue")
    left.save(tmp_path / "a.mpo", save_all=True, append_images=[right])
    (file,) = list_images(tmp_path)
    assert open_image(file).getpixel((8, 8))[0] > 240


@pytest.mark.parametrize("hidden", ["._a.jpg", ".a.png", ".DS_Store"])
def test_hidden_files_are_no_pictures(hidden: str, tmp_path: Path) -> None:
    fill(tmp_path, "a.jpg", hidden)
    assert names_of(tmp_path) == ["a.jpg"]
    assert describe_left_alone(tmp_path).endswith(
        ": left alone: 1 hidden (the name begins with a dot)."
    )


def test_all_that_was_left_alone_is_counted_by_reason(tmp_path: Path) -> None:
    fill(tmp_path, "a.jpg", "b.heic", "c.HEIC", "d.svg", "e.txt", "README", "._a.jpg", "._b.jpg")
    fill(tmp_path / "more", "x.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "link.png").symlink_to(tmp_path / "nowhere.png")
    assert names_of(tmp_path) == ["a.jpg"]
    assert describe_left_alone(tmp_path) == (
        f"{tmp_path}: left alone: "
        "2 .heic (Pillow reads it with pillow-heif only: pip install pillow-heif), "
        "1 .svg (Pillow does not read it; save as JPEG or PNG), "
        "1 .txt (no image), "
        "2 hidden (the name begins with a dot), "
        "2 pipe, device or broken link, "
        "1 sub-folder (name it, or add --recursive, to have its images), "
        "1 without an ending (no image)."
    )


def test_a_folder_of_nothing_but_heic_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"no image files\..*Left alone: 2 \.heic.*pip install"):
        list_images(fill(tmp_path, "a.heic", "b.heic"))


@pytest.mark.parametrize("brand", [b"heic", b"heix", b"mif1"])
def test_a_heic_photo_alone_says_what_to_install(brand: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(heic(brand))
    with pytest.raises(ImageError, match=r"a\.jpg: a HEIC picture\. .*pip install pillow-heif"):
        open_image(tmp_path / "a.jpg")
    with pytest.raises(ImageError, match="bytes\\): a HEIC picture"):
        open_image(heic(brand))


@pytest.mark.parametrize("ending", ["heic", "heif", "hif"])
def test_heic_is_read_where_pillow_heif_is_installed(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in that does what the package does: it tells Pillow of endings and an opener."""
    package = ModuleType("pillow_heif")

    def register_heif_opener() -> None:
        for known in (".heic", ".heif", ".hif"):
            Image.EXTENSION[known] = "HEIF"
        Image.OPEN["HEIF"] = (None, None)

    package.register_heif_opener = register_heif_opener
    monkeypatch.setitem(sys.modules, "pillow_heif", package)
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    assert names_of(fill(tmp_path, f"a.{ending}")) == [f"a.{ending}"]
    assert describe_left_alone(tmp_path) == ""


def test_a_real_heic_photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pillow_heif")
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = Image.new("RGB", (64, 32), "red")
    photo.info["exif"] = exif.tobytes()  # The package then writes HEIC's own rotation.
    photo.save(tmp_path / "a.heic")
    (file,) = list_images(tmp_path)
    assert open_image(file).size == open_image(file.read_bytes()).size == (32, 64)


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(ImageError, match=r"cannot be listed \(Permission denied\)"):
        list_images(tmp_path)


def test_a_dataset_notes_pictures_that_were_left_alone_and_no_texts(tmp_path: Path) -> None:
    fill(tmp_path, "a.jpg", "b.heic", "._c.jpg", "README.txt", ".DS_Store")
    (note,) = read_dataset("folder", tmp_path).notes
    assert note.endswith(
        ": left alone: 1 .heic (Pillow reads it with pillow-heif only: pip install pillow-heif), "
        "1 hidden (the name begins with a dot)."
    )
    (tmp_path / "captions.jsonl").write_text('{"image": "a.jpg", "captions": ["A kite."]}\n')
    assert read_dataset("folder", tmp_path).notes == (note,)
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(DatasetError, match=r"no image files.*Left alone: .*1 \.heic"):
        read_dataset("folder", tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_what_is_no_plain_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    """A pipe would be waited for, and could be read once only."""
    place = tmp_path / "a.jpg"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place = Path(os.devnull)
    else:
        here = Path.cwd()
        os.chdir(tmp_path)  # The name of a socket must be short.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("a.jpg")
        os.chdir(here)
    with pytest.raises(ImageError, match=r"is a pipe or device, expected an image file.*to a file"):
        open_image(place)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        (
            "a.eps",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n",
            "Ghostscript",
        ),
        (
            "a.wmf",
            b"\xd7\xcd\xc6\x9a\0\0\0\0\0\0\x10\0\x10\0\x60\0\0\0\0\0\0\0\1\0\x09\0\0\3" + bytes(30),
            "cannot find loader",
        ),
        ("a.grb", b"GRIB\0\0\0\1" + bytes(20), "cannot find loader"),
    ],
)
def test_a_format_that_needs_another_program_is_not_called_damaged(
    name: str, data: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", False)
    (tmp_path / name).write_bytes(data)
    for picture in (tmp_path / name, data):
        with pytest.raises(ImageError) as refused:
            open_image(picture)
        message = str(refused.value)
        assert words in message
        assert "damaged" not in message
        assert "Install it, or save it as PNG" in message
