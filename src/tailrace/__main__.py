"""`python -m tailrace` is the command line."""

from tailrace.cli.main import main

if __name__ == "__main__":
    main()
