"""A child process answers in JSON, says why it failed, and has a memory of its own."""

import pytest

from benchmarks.speed.process import peak_mb, resident_mb, run_in_child
from fuseprompt.errors import FuseError


def test_what_the_call_returns_comes_back():
    assert run_in_child("json", """loads('{"a": 2}')""", what="It") == {"a": 2}


def test_a_failure_is_named_with_its_hint():
    with pytest.raises(FuseError, match=r"It of the benchmark ended .* 1: .*Expecting.* Try again"):
        run_in_child("json", "loads('x')", what="It", hint="Try again.")


def test_memory_is_plausible():
    assert peak_mb() >= resident_mb() - 1 > 10
