"""Source, sink and examples use Spark by its Python API alone: a session of Spark Connect has no JVM to reach into."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_THE_JVM = {"_jvm", "_jsc", "_jdf", "_jsparkSession", "_gateway", "java_gateway"}
FILES = sorted(
    file.relative_to(ROOT).as_posix() for folder in ("src", "examples") for file in (ROOT / folder).rglob("*.py")
)


def names_of(tree: ast.AST) -> set[str]:
    """Attributes, imported modules and their names."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {word for each in node.names for word in each.name.split(".")}
            found |= set((getattr(node, "module", None) or "").split("."))
    return found


def test_files_of_spark_are_among_them() -> None:
    assert {"src/tailrace/spark/writing/sink.py", "src/tailrace/testing/spark/__init__.py"} <= set(FILES)


@pytest.mark.parametrize("text", ["spark._jvm.x()", "import py4j.java_gateway", "from pyspark import java_gateway"])
def test_a_use_of_the_jvm_is_found(text: str) -> None:
    assert names_of(ast.parse(text)) & OF_THE_JVM


def test_no_file_reaches_into_the_jvm() -> None:
    names = {file: names_of(ast.parse((ROOT / file).read_text())) & OF_THE_JVM for file in FILES}
    assert {file: found for file, found in names.items() if found} == {}
