"""Make src/fuseprompt/data/words.txt.gz from two Debian packages of SCOWL word lists.

apt-get download wamerican-small wamerican && for f in wamerican*.deb; do dpkg-deb -x "$f" scowl;
done python training/make_word_list.py scowl/usr/share/dict src/fuseprompt/data/words.txt.gz
"""

import gzip
import random
import sys
from pathlib import Path

NUM_WORDS = 60_000


def read(path: Path) -> set[str]:
    words = path.read_text(encoding="utf-8").split()
    return {w for w in words if w.isascii() and w.isalpha() and len(w) > 1}


def main(folder: Path, out: Path) -> None:
    common = read(folder / "american-english-small")
    rest = sorted(read(folder / "american-english") - common)
    random.Random(0).shuffle(rest)
    words = sorted(common | set(rest[: NUM_WORDS - len(common)]))
    out.write_bytes(gzip.compress("\n".join(words).encode("ascii"), 9, mtime=0))
    print(f"{len(words)} words, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
