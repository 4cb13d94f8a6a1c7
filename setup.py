"""Builds the one optional extension, the record kernels, and the long description. All else is in pyproject.toml.

Whatever goes wrong (no compiler, no Cython, no Python headers) costs speed, never the installation:
`tailrace.protocol.records._kernels_twin` does the same in pure Python. setuptools' own `optional=True` does not cover a
missing compiler on every platform, so the catching is done here.
"""

import re
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = "src/tailrace/protocol/records/_kernels.pyx"
MODULE = "tailrace.protocol.records._kernels"


class BuildKernelsIfPossible(build_ext):
    """Runs Cython and the compiler; says in one line why there will be no compiled kernels if either fails."""

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:  # a failing compiler may surface as SystemExit
            if isinstance(error, KeyboardInterrupt):
                raise
            self._give_up(error)

    def build_extension(self, extension: Extension) -> None:
        try:
            extension.sources = [self._translate(source) for source in extension.sources]
            super().build_extension(extension)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self._give_up(error)

    def copy_extensions_to_source(self) -> None:
        self.extensions = [
            extension
            for extension in self.extensions
            if Path(self.get_ext_fullpath(extension.name)).exists()
            or Path(self.build_lib, self.get_ext_filename(extension.name)).exists()
        ]
        super().copy_extensions_to_source()

    def get_outputs(self) -> list[str]:
        return [output for output in super().get_outputs() if Path(output).exists()]

    def _translate(self, source: str) -> str:
        if not source.endswith(".pyx"):
            return source
        from Cython.Build import cythonize

        Path(self.build_temp).mkdir(parents=True, exist_ok=True)
        (translated,) = cythonize(
            [Extension(MODULE, [source])], build_dir=self.build_temp, quiet=True, show_all_warnings=False
        )
        return translated.sources[0]

    def _give_up(self, error: BaseException) -> None:
        reason = " ".join(str(error).split()) or type(error).__name__
        sys.stderr.write(f"tailrace: record kernels not compiled, the pure Python ones will be used: {reason}\n")


def long_description() -> str:
    """README.md for a package index, which has no checkout beside it: links and pictures are absolute.

    The README itself has relative links, which work in a checkout, in a fork and wherever the repository moves.
    """
    root = Path(__file__).parent
    place = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    text = re.sub(r"(!\[[^]]*\]\()(?!\w+:|#)", rf"\1{place}/raw/main/", (root / "README.md").read_text())
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!\w+:|#)", rf"\1{place}/blob/main/", text)


setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            MODULE,
            [SOURCE],
            # The stable interface of Python 3.11: one build serves every later version.
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-g0"],
        )
    ],
    cmdclass={"build_ext": BuildKernelsIfPossible},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
