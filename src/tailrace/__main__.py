"""`tailrace` and `python -m tailrace`: the command line."""

import gc
import sys


def main() -> None:
    """Run the command line and exit. The import takes a moment; a SIGINT may come in it."""
    try:
        from tailrace.cli import quick_imports

        with quick_imports():
            from tailrace.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(1)
    try:
        run()
    finally:
        # The interpreter collects garbage when it ends: a walk over every object of every module, which takes longer
        # than the answer of a node. Files and connections are closed before.
        gc.freeze()


if __name__ == "__main__":
    main()
