"""scripts/check_house.py: each number is counted, and each limit that is exceeded is named."""

from typing import Any

import pytest

from scripts import check_house
from scripts.check_house import Module, Numbers, full_folders, rates, small_modules

FINE = Numbers(
    source_lines=1_000_000,
    trial_lines=1_000_000,
    long_files={},
    full_folders={},
    small_modules={f"src/tailrace/{number}.py": "src/tailrace/importer.py" for number in range(5)},
    pronouns=1.5,
    pointers=7.0,
)


def module(name: str, text: str = "") -> Module:
    return Module(check_house.ROOT / name, text)


def test_numbers_at_their_limits_are_right() -> None:
    assert list(FINE.findings()) == []


@pytest.mark.parametrize(
    ("number", "value", "named"),
    [
        ("long_files", {"src/tailrace/a.py": 451}, "src/tailrace/a.py has 451 lines"),
        ("full_folders", {"tests/crash": 21}, "tests/crash/ has 21 modules"),
        ("small_modules", {f"{number}.py": "b.py" for number in range(6)}, "0.py is small, and only b.py"),
        ("pronouns", 1.6, "`one`"),
        ("pointers", 7.1, "`those`"),
    ],
)
def test_each_limit_that_is_exceeded_is_named(number: str, value: Any, named: str) -> None:
    assert named in next(FINE._replace(**{number: value}).findings())


def test_a_small_module_with_a_single_importer_is_found() -> None:
    found = small_modules(
        [
            module("src/tailrace/a/small.py"),
            module("src/tailrace/a/shared.py"),
            module("src/tailrace/a/large.py", "\n" * 60),
            module("src/tailrace/b.py", "from tailrace.a import small, shared\nimport tailrace.a.large"),
            module("src/tailrace/c.py", "from tailrace.a.shared import name"),
        ]
    )
    assert found == {"src/tailrace/a/small.py": "src/tailrace/b.py"}


def test_modules_of_a_folder_are_counted_without_its_package() -> None:
    names = ["__init__", *(f"m{number}" for number in range(21))]
    assert full_folders(module(f"tests/a/{name}.py") for name in names) == {"tests/a": 21}
    assert full_folders(module(f"tests/a/{name}.py") for name in names[:-1]) == {}


def test_pronouns_are_counted_in_docstrings_and_comments_alone() -> None:
    text = '"""The one that is left."""\nx = "the one that"  # Those of the others.\n' + "# word\n" * 991
    assert rates([module("a.py", text)]) == (1.0, 2.0)


def test_the_repository_has_numbers_and_no_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_house, "SOURCE", "scripts")
    monkeypatch.setattr(check_house, "TRIALS", ())
    assert check_house.main() == 0
    assert "House: source" in capsys.readouterr().out


def test_a_finding_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_house, "count", lambda: FINE._replace(long_files={"a.py": 451}))
    assert check_house.main() == 1
