"""The metadata of the distribution: a package index has no checkout beside the README, so its links are absolute."""

import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
_LINK = re.compile(r"(!?)\[[^]]*\]\(([^)\s]+)\)")
_BUILD = (
    "import sys; from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel(sys.argv[1]))"
)


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Message:
    """The metadata as an installer gets it, built in a copy of what they are made from."""
    copy = tmp_path_factory.mktemp("distribution")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    (copy / "src" / "tailrace").mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(copy)], cwd=copy, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return message_from_bytes((copy / done.stdout.splitlines()[-1] / "METADATA").read_bytes())


def test_the_metadata_say_what_it_is(metadata: Message) -> None:
    assert (metadata["Name"], metadata["License-Expression"]) == ("tailrace", "Apache-2.0")
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Repository", "Documentation", "Changelog"}
    assert all(url.startswith(PLACE) for url in urls.values())
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_the_core_needs_no_spark(metadata: Message) -> None:
    core = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert 0 < len(core) <= 10
    assert not any(name in " ".join(core) for name in ("pyspark", "pyarrow", "numpy", "zstandard"))


def test_each_link_of_the_long_description_is_absolute_and_leads_to_a_file(metadata: Message) -> None:
    description = str(metadata.get_payload())
    assert description.startswith("# Tailrace\n")
    links = _LINK.findall(re.sub(r"^```.*?^```", "", description, flags=re.MULTILINE | re.DOTALL))
    assert len(links) > 15
    for picture, target in links:
        below = f"{PLACE}/{'raw' if picture else 'blob'}/main/"
        assert target.startswith(below), target
        assert (ROOT / target.removeprefix(below).partition("#")[0]).exists(), target
