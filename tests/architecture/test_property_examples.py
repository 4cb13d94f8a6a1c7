"""The examples of a property depend on its own source alone: the verdict is the same on every machine."""

import importlib
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from budgets import MODEL_RUNS

pytestmark = pytest.mark.skipif(bool(MODEL_RUNS), reason="a long search takes its examples by chance")


def test_a_property_tries_no_constants_of_the_modules_that_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_with_a_constant.py").write_text("NUMBER = 918_273_645\n")
    monkeypatch.syspath_prepend(tmp_path)

    module = importlib.import_module("module_with_a_constant")

    assert module.NUMBER not in providers._get_local_constants()
    assert not len(providers._get_local_constants())


def test_a_property_has_no_examples_of_earlier_runs() -> None:
    usual = settings()

    assert usual.derandomize
    assert usual.database is None
