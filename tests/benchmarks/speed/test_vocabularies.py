"""The vocabularies of benchmarks, framed as their families frame a text."""

from benchmarks.speed.vocabularies import build_vocabularies, load_vocabularies
from tests.text.tiny import byte_bpe, end_of_word_bpe


def test_roberta_is_gpt2_with_other_ids_and_a_frame():
    ours, clip = byte_bpe(), end_of_word_bpe()
    built = build_vocabularies(ours._backend.to_str(), clip._backend.to_str())
    ids = built.gpt2.encode("An image of a cat")
    assert ids == ours.encode("An image of a cat")
    assert built.roberta.encode("An image of a cat") == [i + 4 for i in ids]
    assert built.roberta.add_special_tokens(ids) == [0, *ids, 2]
    assert built.roberta.decode([i + 4 for i in ids]) == "An image of a cat"
    assert built.roberta.padding.token_id == 1
    assert built.clip.max_length == 77


def test_the_vocabularies_of_the_repository_are_those_of_the_papers_models():
    loaded = load_vocabularies()
    assert [t.vocab_size for t in (loaded.gpt2, loaded.clip)] == [50_257, 49_408]
    assert loaded.gpt2.encode("An image of a cat") == [2025, 2939, 286, 257, 3797]
    assert loaded.clip.add_special_tokens(loaded.clip.encode("a cat")) == [49406, 320, 2368, 49407]
