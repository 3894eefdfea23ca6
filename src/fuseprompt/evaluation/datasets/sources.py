"""The datasets: their files, their images, and their published sizes, as data.

Read next: `fuseprompt.evaluation.datasets.images`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, final


@final
@dataclass(frozen=True)
class Counts:
    """The published size of a split.

    Attributes:
        images: Images.
        captions: Captions, None where they are not published or nobody counted them here.
    """

    images: int
    captions: int | None = None


@final
@dataclass(frozen=True)
class Source:
    """All that is known of a dataset before its files are read.

    Attributes:
        title: Its name, in a few words.
        splits: Names of its splits, the default first.
        ids: Kind of ids: numbers of COCO, of Flickr's photos, of NoCaps, or places in the folder.
        files: Annotation files below its folder, best first; "{split}" stands for the split.
        images: Folders in which images are looked for, likewise.
        origin: Where people get it.
        licence: What is known of the terms; never legal advice.
        sentiments: Sentiments that its captions have.
        contains: Other splits that belong to a split.
        counts: Published counts by split.
        domains: Images of the default split by domain.
        remarks: What surprises people.
    """

    title: str
    splits: tuple[str, ...]
    ids: Literal["coco", "flickr", "nocaps", "file"]
    files: tuple[str, ...]
    images: tuple[str, ...]
    origin: tuple[str, ...] = ()
    licence: str = ""
    sentiments: tuple[str, ...] = ()
    contains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: Mapping[str, Counts] = field(default_factory=dict)
    domains: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


_COCO: Final = ("val2014", "train2014", "val2017", "train2017")
_COCO_IMAGES: Final = (*_COCO, *(f"images/{release}" for release in _COCO), "images", ".")
_FLICKR_IMAGES: Final = ("flickr30k-images", "flickr30k_images", "images", ".")
_KARPATHY: Final = "https://cs.stanford.edu/people/karpathy/deepimagesent/ (caption_datasets.zip)"
_COCO_TERMS: Final = "annotations CC BY 4.0; images under the terms of Flickr"

SOURCES: Final[Mapping[str, Source]] = {
    "coco": Source(
        title="COCO captions",
        splits=_COCO,
        ids="coco",
        files=("captions_{split}.json",),
        images=("{split}", *_COCO_IMAGES),
        origin=("https://cocodataset.org/#download (2014 Train/Val annotations and images)",),
        licence=_COCO_TERMS,
        counts={
            "val2014": Counts(40_504, 202_654),
            "train2014": Counts(82_783, 414_113),
            "val2017": Counts(5_000, 25_014),
            "train2017": Counts(118_287, 591_753),
        },
        remarks=("papers report on the Karpathy test split, not on val2014: see karpathy",),
    ),
    "karpathy": Source(
        title="COCO captions, Karpathy split",
        splits=("test", "val", "train", "restval"),
        ids="coco",
        files=("dataset_coco.json", "caption_datasets/dataset_coco.json"),
        images=_COCO_IMAGES,
        origin=(_KARPATHY, "https://cocodataset.org/#download (2014 Train/Val images)"),
        licence=_COCO_TERMS,
        contains={"train": ("restval",)},
        counts={
            "test": Counts(5_000, 25_010),
            "val": Counts(5_000, 25_010),
            "train": Counts(113_287, 566_747),
            "restval": Counts(30_504, 152_634),
        },
        remarks=(
            "train means train and restval together",
            "the split under this name in neuraltalk2 is another one",
        ),
    ),
    "nocaps": Source(
        title="NoCaps",
        splits=("val", "test"),
        ids="nocaps",
        files=("nocaps_{split}_4500_captions.json", "nocaps_{split}_image_info.json"),
        images=("{split}", "images", "images/{split}", "."),
        origin=(
            "https://nocaps.org/download (image info: no captions, no domains)",
            "https://nocaps.s3.amazonaws.com/nocaps_val_4500_captions.json (captions)",
        ),
        licence="images of Open Images, CC BY 2.0; see nocaps.org for the captions",
        counts={"val": Counts(4_500, 45_000), "test": Counts(10_600)},
        domains={"in-domain": 648, "near-domain": 2_938, "out-domain": 914},
        remarks=(
            "ids are 0 to 4499, not those of Open Images",
            "the captions of test are not public",
        ),
    ),
    "senticap": Source(
        title="SentiCap",
        splits=("test", "val", "train", "all"),
        ids="coco",
        files=("senticap_dataset.json", "data/senticap_dataset.json"),
        images=_COCO_IMAGES,
        origin=(
            "https://users.cecs.anu.edu.au/~u4534172/senticap.html (senticap_dataset.zip)",
            "https://cocodataset.org/#download (2014 Val images)",
        ),
        licence="see its page; images of COCO under the terms of Flickr",
        sentiments=("negative", "positive"),
        counts={
            "test": Counts(743, 3_528),
            "val": Counts(265, 922),
            "train": Counts(1_217, 4_419),
            "all": Counts(2_225, 8_869),
        },
        remarks=(
            "its 2,360 entries (878 in test) are 2,225 images (743), 135 of them listed twice",
            "of the 743 test images 673 have positive captions, 503 negative ones, 433 both",
            "some papers take all images for test: --split all",
        ),
    ),
    "flickr30k": Source(
        title="Flickr30k",
        splits=("test", "val", "train", "all"),
        ids="flickr",
        files=(
            "dataset_flickr30k.json",
            "caption_datasets/dataset_flickr30k.json",
            "results_20130124.token",
        ),
        images=_FLICKR_IMAGES,
        origin=(
            _KARPATHY,
            "https://shannon.cs.illinois.edu/DenotationGraph/ (images and token file, on request)",
        ),
        licence="for research and education without profit; images under the terms of Flickr",
        counts={
            "test": Counts(1_000, 5_000),
            "val": Counts(1_014, 5_070),
            "train": Counts(29_000, 145_000),
        },
        remarks=("the token file names no splits: --split all",),
    ),
    "flickrstyle10k": Source(
        title="FlickrStyle10K",
        splits=("train",),
        ids="flickr",
        files=(
            "humor/funny_train.txt",
            "humor/train.p",
            "romantic/romantic_train.txt",
            "romantic/train.p",
        ),
        images=_FLICKR_IMAGES,
        origin=(
            "https://zhegan27.github.io/Papers/FlickrStyle_v0.9.zip",
            "https://shannon.cs.illinois.edu/DenotationGraph/ (images, on request)",
        ),
        licence="see its page; images under the terms of Flickr",
        sentiments=("humorous", "romantic"),
        counts={"train": Counts(7_000, 14_000)},
        remarks=(
            "needs all of its files, as they are released",
            "only these 7,000 of 10,000 are public; papers split them again, each its own way",
        ),
    ),
    "folder": Source(
        title="A folder of images",
        splits=("all",),
        ids="file",
        files=("captions.jsonl", "captions.json", "captions.tsv"),
        images=(".",),
        remarks=(
            "captions are optional; each image is captioned, with or without",
            'captions.jsonl: {"image": "photo.jpg", "captions": ["..."]} on each line',
            "captions.tsv: photo.jpg TAB caption",
        ),
    ),
}

NAMES: Final = tuple(SOURCES)
