"""The checksum, and that a process which uses it does not pay for the rest of the package crc32c."""

import subprocess
import sys

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.checksum import crc32c


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1), st.sampled_from([bytes, bytearray, memoryview]))
def test_the_checksum_is_the_packages(content: bytes, start: int, kind: type) -> None:
    assert crc32c(kind(content), start) == package.crc32c(content, start)


def test_the_checksum_of_the_check_value_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(
    "statement", ["import tailrace.node.process", "from tailrace import Consumer, Producer; Consumer, Producer"]
)
def test_a_process_with_the_checksum_imports_no_reader_of_mail(statement: str) -> None:
    done = run(f"{statement}\nimport sys; print(*sys.modules)")
    loaded = set(done.split())
    assert "tailrace.model.checksum" in loaded
    assert loaded & {"crc32c", "email", "argparse", "importlib.metadata"} == set()


def test_another_layout_of_the_package_gives_the_checksum_too() -> None:
    """As of a release whose extension module has another name."""
    hidden = (
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *more: None if name == '_crc32c' else find(name, *more)\n"
        "from tailrace.model.checksum import crc32c\n"
        "import sys; print(crc32c(b'123456789'), 'crc32c' in sys.modules)"
    )
    assert run(hidden) == f"{0xE3069283} True\n"


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout
