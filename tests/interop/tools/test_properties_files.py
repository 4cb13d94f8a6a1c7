"""A node reads a server.properties as Java does."""

import subprocess
from pathlib import Path

import pytest

from interop.kafka_tools import absent, java
from testkit.programs.properties_files import FILES

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


def test_java_reads_properties_files_alike(tmp_path: Path) -> None:
    if why := absent():
        pytest.skip(why)
    files = [tmp_path / str(number) for number in range(len(FILES))]
    for file, (text, _) in zip(files, FILES.values(), strict=True):
        file.write_bytes(text.encode())
    source = str(Path(__file__).with_name("ReadProperties.java"))
    command = [*java(), source, *map(str, files)]
    printed = subprocess.run(command, capture_output=True, check=True, timeout=100).stdout.decode()
    read = [dict(pair.split("\x1f") for pair in file.split("\x1e") if pair) for file in printed.split("\x1d")[:-1]]
    assert read == [expected for _, expected in FILES.values()]
