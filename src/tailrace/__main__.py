"""`tailrace` and `python -m tailrace`: the command line."""

import sys


def main() -> None:
    """Run the command line and exit. The import takes a moment; a SIGINT may come in it."""
    try:
        from tailrace.cli import quick_imports

        with quick_imports():
            from tailrace.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
