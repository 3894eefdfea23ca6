"""Ranks and the bootstrap interval that the model card's numbers come from."""

import torch

from training.retrieval import paired_interval, ranks, summarise


def test_ranks_count_better_and_equal_captions() -> None:
    images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    captions = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    # The second picture's caption is tied with another, the third's is the worst of three.
    assert ranks(images, captions, torch.tensor([0, 1, 0])).tolist() == [1, 2, 3]


def test_summarise_gives_recall_and_median() -> None:
    found = torch.tensor([1, 1, 5, 6, 100])
    assert summarise(found) == {"r1": 0.4, "r5": 0.6, "median_rank": 5.0}


def test_interval_holds_the_mean_and_excludes_zero_only_for_a_difference() -> None:
    generator = torch.Generator().manual_seed(0)
    worse = (torch.rand(400, generator=generator) < 0.2).float()
    better = torch.maximum(worse, (torch.rand(400, generator=generator) < 0.1).float())
    pictures = torch.arange(400)
    low, high = paired_interval(better, worse, pictures)
    assert 0 < low < float((better - worse).mean()) < high
    shuffled = worse[torch.randperm(400, generator=generator)]
    low, high = paired_interval(shuffled, worse, pictures)
    assert low < 0 < high


def test_asking_a_picture_twice_does_not_narrow_the_interval() -> None:
    generator = torch.Generator().manual_seed(0)
    worse = torch.zeros(100)
    better = (torch.rand(100, generator=generator) < 0.5).float()
    pictures = torch.arange(100)
    once = paired_interval(better, worse, pictures)
    twice = paired_interval(better.repeat(2), worse.repeat(2), pictures.repeat(2))
    assert once == twice
