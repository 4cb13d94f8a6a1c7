"""`tailrace audit verify`: whether the lines of an audit log are the lines that the node wrote.

The command reads files and sends no request; the node may be running.
"""

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.output import say
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.audit.chain import verify as verify_chain

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def audit() -> None:
    """Check audit logs."""


@app.command()
def verify(path: Annotated[Path, typer.Argument(metavar="DIRECTORY", show_default=False)]) -> None:
    """Check the chain of hashes of an audit log (audit.log.dir).

    Prints the first broken line, a tail that was cut off, or a file that was removed; the exit code is 1 then. The hash
    that is printed belongs to the last line: a copy of it elsewhere shows later whether the whole log was written anew.
    """
    if not path.is_dir():
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{path} is no directory of an audit log")
    verdict = verify_chain(path)
    if verdict.fault is not None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, verdict.fault)
    if not verdict.first:
        say("no line")
        return
    typer.echo(f"lines {verdict.first} to {verdict.last.number} are whole; hash {verdict.last.hash}")
    if verdict.unfinished_bytes:
        say(f"{verdict.unfinished_bytes} bytes behind the last line belong to a line that is not finished")
