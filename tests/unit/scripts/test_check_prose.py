"""scripts/check_prose.py: each rule finds its fault, and neither list allows more than it has to."""

from pathlib import Path

import pytest

from scripts.check_prose import PAGES, ROOT, Exceptions, check, findings_in, main, read_exceptions


def _numbers(source: str, path: str = "src/module.py") -> list[str]:
    return [finding.rule.number for finding in findings_in(path, source)]


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ('"""What is kept."""', "P1"),
        ('def f():\n    """How many there are."""', "P1"),
        ('class A:\n    """Whose vote it is."""', "P1"),
        ('LIMIT = 5\n"""Where a segment ends."""', "P1"),
        ("# the log that nobody reads", "P2"),
        ('raise ValueError("no one leads the partition")', "P2"),
        ('raise ValueError(f"{name} that somebody made")', "P2"),
        ("def test_a_log_that_nobody_reads(): ...", "P2"),
        ("class WhoeverLeads: ...", "P2"),
        ('"""Calls those who wait."""', "P3"),
        ("x = 1  # the broker for whom this waits", "P3"),
        ('"""Reads it. What is left stays."""', "P4"),
        ("# It ends here.\n# What was read is lost.", "P4"),
        ('"""Renamed.\n\n- What is old goes first."""', "P4"),
        ('"""A replica is told of it."""', "P5"),
        ("# The file is set\n# aside.", "P5"),
        ("def test_what_is_kept(): ...", "P1"),
        ("async def test_wherever_a_write_fails(): ...", "P1"),
        ("class TestHowLogsEnd: ...", "P1"),
        ('pytest.param(1, id="what is left")', "P1"),
        ('cases(ids=["one", "how-short"])', "P1"),
        ("# the log that everyone reads", "P2"),
        ("def test_a_reader_is_told_at_once(): ...", "P5"),
        ("def test_a_file_is_set_aside(): ...", "P5"),
        ("class SettledBatch: ...", "P5"),
        ('pytest.param(1, id="never heard of")', "P5"),
        ('log("event=address-told node=1")', "P5"),
        ('log(f"event=log-set-aside of={name}")', "P5"),
        ('log("the column set_aside is full")', "P5"),
        ('"""Leaves on its own word."""', "P5"),
        ('"""Splits a chunk, a large one."""', "P6"),
        ("# the ones that are left", "P6"),
        ("for one in due:\n    pass", "P6"),
        ("x = [one for one in due]", "P6"),
        ("def f(one): ...", "P6"),
        ("x = lambda one: 1", "P6"),
        ('"""One view partition."""', "P7"),
        ('"""Of one view partition."""', "P7"),
        ('def f():\n    """\n    Those of the leader."""', "P7"),
        ('"""Its records."""', "P7"),
        ('"""All partitions."""', "P7"),
        ('"""Have the connection take a turn."""', "P8"),
        ('"""A reader has it split again."""', "P8"),
        ("# the broker that had the large session closed", "P8"),
        ('"""A position that is none to read on from."""', "P9"),
        ("# the leader was none.", "P9"),
    ],
)
def test_each_rule_finds_its_fault(source: str, number: str) -> None:
    assert _numbers(source) == [number]


@pytest.mark.parametrize(
    "source",
    [
        '"""Whether the log is closed."""',
        '"""A question: what is kept?"""',
        "# What is lost then? Nothing.",
        '"""The rule "who asks must wait" of the KIP."""',
        '"""Calls `nobody`."""',
        'name = "nobody"',
        "who = 1",
        "def what_is_kept(): ...",
        "def test_whole_batches_are_kept(): ...",
        "def test_a_gap_is_told_from_damage(): ...",
        'node(id="leader", name="what")',
        'raise ValueError("how was it told")',
        '"""The replicas whose logs are short."""',
        '"""A torn write can be told from damage; the two are told apart."""',
        '"""A batch with one record, one more than before."""',
        '"""Sends one request at a time."""',
        '"""A queue that has a batch to send, or has the records that make a batch."""',
        '"""Has the flushed offset of the log."""',
        '"""Records, of which none is old; there is none."""',
        "alone = none = 1",
    ],
)
def test_plain_text_passes(source: str) -> None:
    assert _numbers(source) == []


@pytest.mark.parametrize(
    ("page", "numbers"),
    [
        ("# What to expect", []),
        ("Text. What is new comes last.", ["P4"]),
        ("| Setting | What it is |", ["P4"]),
        ("```python\nwho = nobody\n```", []),
        ("```python\nx = 1  # nobody reads it\n```", ["P2"]),
        ("```journey\na -> b    who leads\n```", ["P3"]),
    ],
)
def test_pages(page: str, numbers: list[str]) -> None:
    assert _numbers(page, "docs/page.md") == numbers


KERNEL = '''"""A kernel."""  # nobody reads it

cdef class Rows:
    """Where rows are."""

    cdef int64_t place(self, int64_t row) except -1:
        """The row."""
        raise ValueError("""What is quoted.""")
'''


@pytest.mark.parametrize(
    ("path", "source", "findings"),
    [
        ("kernel.pyx", KERNEL, [(1, "P2"), (4, "P1")]),
        ("mutant.toml", 'what = "Nobody votes."\nold = "nobody"\nlaw = "the leader is told"', [(1, "P2"), (3, "P5")]),
        ("docs/decisions/0001.md", "Terms.\nWho leads?", [(2, "P3")]),
    ],
)
def test_kernels_mutants_and_decisions_are_checked(path: str, source: str, findings: list[tuple[int, str]]) -> None:
    assert [(found.line, found.rule.number) for found in findings_in(path, source)] == findings


def test_a_finding_has_the_line_of_the_fault() -> None:
    (found,) = findings_in("m.py", '"""A log.\n\nRead by\nnobody.\n"""')
    assert (found.line, found.source) == (4, "nobody.")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("src/old", "scripts", "docs/decisions"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "src/old/a.py").write_text('"""Who leads."""\n')
    (tmp_path / "src/new.py").write_text('"""A name: the WHO file."""\n')
    (tmp_path / "docs/decisions/0001.md").write_text("A decision.")
    for name in ("simulation", "testkit", "tests", "fuzz", "benchmarks", "examples"):
        (tmp_path / name).mkdir()
    for name in PAGES:
        (tmp_path / name).write_text("A log.")
    return tmp_path


def test_the_lists_allow_what_they_name(root: Path) -> None:
    assert len(check(root, Exceptions((), ()))) == 3  # src/old/a.py has two
    (root / "scripts/prose_exceptions.txt").write_text("# head\nsrc/new.py | the WHO file | a name\n")
    (root / "scripts/prose_unwritten.txt").write_text("src/old/\n")
    assert check(root, read_exceptions(root)) == []


@pytest.mark.parametrize(("entry", "complaints"), [("src/old/*", 0), ("src/*", 3), ("src/old/a.py", 0), ("src/", 0)])
def test_an_unwritten_entry_is_a_file_a_folder_or_all_below_it(root: Path, entry: str, complaints: int) -> None:
    (root / "src/new.py").unlink()
    assert len(check(root, Exceptions((), ((entry, frozenset()),)))) == complaints


def test_an_unwritten_entry_may_name_its_rules(root: Path) -> None:
    (root / "src/new.py").write_text('"""One record for somebody."""\n')
    (root / "scripts/prose_unwritten.txt").write_text("src/old/\nsrc/new.py | P7\n")
    (complaint,) = check(root, read_exceptions(root))
    assert "P2" in complaint
    (root / "src/new.py").write_text('"""A record for somebody."""\n')
    assert "src/new.py keeps P7: take it off" in check(root, read_exceptions(root))[-1]


def test_an_entry_that_nothing_needs_is_a_complaint(root: Path) -> None:
    (root / "src/old/a.py").write_text('"""The leader."""\n')
    unneeded = Exceptions(
        (("src/new.py", "the WHO file"), ("src/new.py", "something else")), (("src/old/", frozenset()),)
    )
    assert [line.split(":")[0] for line in check(root, unneeded)] == [
        "scripts/prose_exceptions.txt",
        "scripts/prose_unwritten.txt",
    ]


def test_an_exception_without_a_reason_is_refused(root: Path) -> None:
    (root / "scripts/prose_exceptions.txt").write_text("src/new.py | the WHO file\n")
    with pytest.raises(ValueError, match="src/new.py"):
        read_exceptions(root)


def test_paths_print_their_findings_whatever_the_lists_say(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).relative_to(ROOT)
    assert main([str(ROOT / path)]) == 0
    assert f"{path.as_posix()}:" in capsys.readouterr().out
    assert main(["--count", str(ROOT / path)]) == 0
    assert "tests/unit/scripts" in capsys.readouterr().out
