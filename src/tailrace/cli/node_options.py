"""Options of the commands that run nodes."""

from typing import Annotated

import typer

Dev = Annotated[
    bool, typer.Option("--dev", help="Defaults for trying out: groups without delay, few internal partitions.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Let other machines connect without asking who they are.")]
UntilStdinCloses = Annotated[
    bool,
    typer.Option("--until-stdin-closes", help="Stop when standard input ends, so that no program leaves it behind."),
]
