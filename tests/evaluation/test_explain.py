"""One step explained: what is judged, what counts as found, and a page that stands alone."""

import re
from html.parser import HTMLParser

import pytest
import torch
from PIL import Image

from fuseprompt.errors import SearchError
from fuseprompt.evaluation.explain import (
    Explanation,
    Token,
    View,
    explain,
    render,
    show_token,
)
from fuseprompt.objective.problem import Problem
from fuseprompt.proposals import Gradient, LanguageModelOnly, Positions
from fuseprompt.tasks.caption import objective_of
from fuseprompt.tasks.settings import CaptionSettings
from tests.tasks.fixtures import tiny_models

PHOTO = Image.new("RGB", (40, 30), "red")
SMALL = dict(text="An image of the", search_width=6, num_likeliest=40)


@pytest.fixture(scope="module")
def found() -> Explanation:
    return explain(PHOTO, [LanguageModelOnly(), Gradient()], tiny_models(), **SMALL)


@pytest.mark.shapes
def test_losses_are_those_of_the_whole_text(found) -> None:
    objective = objective_of(CaptionSettings(), tiny_models())
    bound = objective.bind([Problem("0", {"image": PHOTO}, "An image of")])
    texts = [found.text + token.text for token in found.tokens]
    for token, exact in zip(found.tokens, bound.evaluate(texts, [0] * len(texts)), strict=True):
        assert token.image == pytest.approx(exact.terms["image"], abs=1e-5)


def test_the_total_is_that_of_the_search(found) -> None:
    model = tiny_models().lm
    prefix = len(model.tokenizer.encode("An image of"))
    for token in found.tokens[:5]:
        ids = model.tokenizer.encode(found.text + token.text)
        fluency = float(model.nll([ids], [prefix])[0][:-1].mean())
        assert token.total == pytest.approx(fluency + found.weight * token.image, abs=1e-4)


def test_the_best_are_the_lowest_and_the_likeliest_come_first(found) -> None:
    totals = [token.total for token in found.tokens]
    assert [totals[i] for i in found.best] == sorted(totals)[:10]
    nll = [token.nll for token in found.tokens[: found.num_likeliest]]
    assert nll == sorted(nll)
    assert len({token.text for token in found.tokens}) == len(found.tokens)


def test_a_proposal_knows_its_rank(found) -> None:
    for view in found.views:
        assert len(view.proposals) == 6
        for place, index in enumerate(found.best):
            if index in view.proposals:
                assert view.ranks[place] == view.proposals.index(index) + 1
        assert view.found == len(set(view.proposals) & set(found.best))
    assert [view.cost for view in found.views] == [0, 3 * 16]


class Oracle:
    """A proposal that asks for the exact loss of every token."""

    name = "oracle"

    def init(self, primary, secondary, table) -> "Oracle":
        return self

    def bind(self, loss) -> "Oracle":
        self.loss, self.cost = loss, 0.0
        return self

    def word_initial(self, positions, words) -> torch.Tensor:
        rows = torch.arange(len(positions)).repeat_interleave(len(words))
        tokens = words.repeat(len(positions))
        exact, _ = self.loss.score(positions.left, rows, tokens, positions.problems[rows])
        return exact.reshape(len(positions), len(words))

    def word_internal(self, positions, tokens) -> torch.Tensor:
        return torch.stack(
            [
                self.word_initial(Positions.append(positions.left, positions.problems), row)[0]
                for row in tokens
            ]
        )


def test_an_oracle_finds_all_and_correlates() -> None:
    settings = dict(text="An image of the", search_width=10, num_likeliest=500)
    (view,) = explain(PHOTO, [Oracle()], tiny_models(), **settings).views
    assert view.rho > 0.99  # Texts that are equal for the secondary tie.
    # Of word-internal tokens a proposer considers the likeliest 16 only, an oracle too.
    assert view.ranks[0] == 1
    (none,) = explain(PHOTO, [LanguageModelOnly()], tiny_models(), **settings).views
    assert len(set(none.images.values())) == 1


def test_a_step_of_the_search_is_reached() -> None:
    settings = dict(step=2, search_width=4, num_likeliest=10)
    caption = CaptionSettings(beam_width=2, search_width=4, proposal="none")
    found = explain(PHOTO, [LanguageModelOnly()], tiny_models(), **settings, caption=caption)
    assert found.text.startswith("An image of")
    assert found.text != "An image of"


def test_a_text_that_cannot_be_continued_is_refused() -> None:
    settings = dict(text="An image of ", num_likeliest=4)
    with pytest.raises(SearchError, match="ends in white space"):
        explain(PHOTO, [LanguageModelOnly()], tiny_models(), **settings)


class Reader(HTMLParser):
    """Collects the text of a page and the addresses that it names; fails on unclosed tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag) -> None:
        assert tag == self.open.pop(), f"</{tag}> does not close what is open"

    def handle_data(self, data) -> None:
        self.words.append(data)


def test_the_reader_of_these_tests_sees_an_unclosed_tag() -> None:
    assert Reader("<p>a</p>").words == ["a"]
    with pytest.raises(AssertionError, match="does not close"):
        Reader("<div><p>a</div>")


def test_the_page_stands_alone_and_is_well_formed(found) -> None:
    page = render(found, PHOTO, name="photo.jpg")
    reader = Reader(page)
    assert reader.open == []
    assert [address[:22] for address in reader.addresses] == ["data:image/jpeg;base64"]
    assert "<script" not in page
    assert not re.search(r"https?:|url\(|@import", page)
    assert "prefers-color-scheme: dark" in page


def test_the_page_says_what_was_found(found) -> None:
    words = " ".join(Reader(render(found, PHOTO, name="photo.jpg")).words)
    for index in found.best:
        assert show_token(found.tokens[index].text) in words
    for view in found.views:
        assert f"{view.found} of 10" in words
    assert "It predicts nothing about the photo." in words


def test_everything_that_comes_from_outside_is_escaped() -> None:
    evil = "<script>alert('x')</script>"
    token = Token(f" {evil}", 1.0, 0.5, 7.0)
    other = Token("ing&", 2.0, 0.6, 8.0)
    view = View(evil, (0, 1), (6.0, 7.0), {0: 0.4, 1: 0.7}, (1, None), 0.5, 48.0)
    found = Explanation(evil, 0.9, 12.0, 1.0, (token, other), 2, (0, 1), (view,))
    page = render(found, PHOTO, name=f'"{evil}.jpg')
    assert "<script" not in page
    assert Reader(page).open == []
    assert "&lt;script&gt;" in page
    assert "…ing&amp;" in page


def test_tokens_read_as_word_initial_or_word_internal() -> None:
    assert [show_token(t) for t in (" cat", "ing", " ")] == ["cat", "…ing", "… "]


def test_one_word_alone_can_be_drawn() -> None:
    view = View("direct", (0,), (6.0,), {0: 0.4}, (1,), 0.0, 3.0)
    found = Explanation("a", 0.9, 12.0, 1.0, (Token(" b", 1.0, 0.5, 7.0),), 1, (0,), (view,))
    assert Reader(render(found, PHOTO, name="a.jpg")).open == []
    assert torch.isfinite(torch.tensor(found.tokens[0].total))
