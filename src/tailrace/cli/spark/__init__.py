"""`tailrace spark`: the queries of Spark that read topics."""

import typer

from tailrace.cli.spark import checkpoints

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(checkpoints.app, name="checkpoint", help="Show and move the checkpoint of a query.")
