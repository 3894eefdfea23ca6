"""Results are made once for a name and its sources."""

from fuseprompt.text.memo import Memo


def test_a_result_is_made_once() -> None:
    memo, model, made = Memo(), [1.0], []
    for _ in range(3):
        assert memo.recall("sum", (model,), lambda: made.append(0) or sum(model)) == 1.0
    assert len(made) == 1


def test_other_names_settings_and_sources_are_other_results() -> None:
    memo = Memo()
    one, equal = [1.0], [1.0]  # equal, and not the same
    got = [
        memo.recall("a", (one,), lambda: 0),
        memo.recall("b", (one,), lambda: 1),
        memo.recall(("a", 3), (one,), lambda: 2),
        memo.recall("a", (equal,), lambda: 3),
        memo.recall("a", (one, equal), lambda: 4),
        memo.recall("a", (equal, one), lambda: 5),
    ]
    assert got == [0, 1, 2, 3, 4, 5]


def test_a_source_lives_as_long_as_its_result() -> None:
    # Otherwise its id could be given to another object, and that one would get its result.
    memo = Memo()
    for i in range(50):
        assert memo.recall("a", (object(),), lambda i=i: i) == i


def test_memos_know_nothing_of_each_other() -> None:
    model = [1.0]
    assert Memo().recall("a", (model,), lambda: 1) == 1
    assert Memo().recall("a", (model,), lambda: 2) == 2
