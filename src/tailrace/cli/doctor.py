"""`tailrace doctor`: checks of this machine, and of the way to a cluster."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.completion import topic_names
from tailrace.cli.machine_checks import install_line, machine_rows
from tailrace.cli.output import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Format,
    Output,
    Row,
    admin_of,
    one_line,
    show,
    write,
)
from tailrace.client.diagnosis.diagnosis import diagnose
from tailrace.client.diagnosis.findings import Finding, Verdict
from tailrace.client.diagnosis.rack_survey import survey_racks
from tailrace.client.diagnosis.racks import diagnose_rack
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.connection import parse_addresses

app = typer.Typer(rich_markup_mode=None)

_SIGNS = {Verdict.OK: "ok", Verdict.NOTE: "note", Verdict.WARNING: "warning", Verdict.FAILED: "FAILED"}


@app.callback(invoke_without_command=True)
def environment(
    context: typer.Context,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Check the executors of a Spark cluster instead; code 1 if tasks would fail."),
    ] = False,
    master: Annotated[str, typer.Option(help="With --spark: the cluster, such as spark://HOST:7077.")] = "local[2]",
    tasks: Annotated[int, typer.Option(help="With --spark: as many as reach each executor.", min=1)] = 16,
    rack_env: Annotated[
        str, typer.Option(help="With --spark: the variable of client.rack.env.", show_default="none")
    ] = "",
    bootstrap_server: Annotated[
        str, typer.Option(help="With --spark: a broker, to try the way to all from each executor.", show_default="none")
    ] = "",
    conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="With --spark: a setting of Spark's; may be repeated.", show_default="none"
        ),
    ] = None,
    archives: Annotated[
        str,
        typer.Option(
            metavar="FILE#NAME[,...]", help="With --spark: as of spark-submit, spark.archives.", show_default="none"
        ),
    ] = "",
    timeout: Annotated[float, typer.Option(help="With --spark: seconds for the whole job.", min=1)] = 120,
    data_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="A node's directory of data, or where one will be: for the disk.")
    ] = Path("tailrace-data"),
    output: Output = Format.TABLE,
) -> None:
    """Check the software, limits, disk and clock of this machine. A note is no fault: some uses need more.

    `connect` finds out why a cluster cannot be reached, `rack` why consumers of a rack are not served in it. With
    --spark a short job shows the Python, versions and rack of each executor of a Spark cluster; exit code 1 if tasks
    would fail there: without Tailrace or with another version than the driver's, without pyarrow, or if a broker cannot
    be reached.
    """
    if context.invoked_subcommand is not None:
        return
    if spark:
        settings = dict(_setting(word) for word in conf or ())
        if archives:
            settings["spark.archives"] = archives
        _executors(master, tasks, rack_env, bootstrap_server, settings, timeout, output)
    else:
        show(list(machine_rows(data_dir)), ("CHECK", "VERDICT", "VALUE", "ADVICE"), output)


def _setting(word: str) -> tuple[str, str]:
    name, mark, value = word.partition("=")
    if not (mark and name.startswith("spark.")):
        raise typer.BadParameter(
            f"{word!r} is not KEY=VALUE with a key of Spark's, such as spark.executor.memory=2g", param_hint="--conf"
        )
    return name, value


def _executors(
    master: str,
    tasks: int,
    rack_env: str,
    bootstrap_server: str,
    settings: Mapping[str, str],
    timeout_s: float,
    output: Format,
) -> None:
    try:
        from tailrace.spark.survey.executor_survey import advice, survey, tasks_fail
        from tailrace.spark.survey.survey_job import SurveyFailed
    except ImportError as missing:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"{missing}: {install_line('spark')} in this Python, the driver's"
        ) from None
    addresses: list[str] = []
    if bootstrap_server:
        with admin_of(bootstrap_server) as admin:
            addresses = [f"{broker.host}:{broker.port}" for broker in admin.list_brokers()]
    try:
        found = survey(master, addresses, tasks=tasks, rack_variable=rack_env, settings=settings, timeout_s=timeout_s)
    except SurveyFailed as fault:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the job on {master} failed: {fault}") from None
    driver = found[0]
    rows: list[Row] = [
        {
            "EXECUTOR": executor.where,
            "TASKS": executor.tasks,
            "PYTHON": executor.python,
            "TAILRACE": executor.tailrace or "none",
            "PYARROW": executor.pyarrow or "none",
            "KERNEL": executor.kernel or "none",
            "RACK": executor.rack,
            "BROKERS": f"{len(addresses) - len(executor.unreached)}/{len(addresses)}" if executor is not driver else "",
            "ADVICE": "; ".join(advice(executor, driver, rack_variable="" if executor is driver else rack_env)),
        }
        for executor in found
    ]
    show(rows, tuple(rows[0]), output)
    if any(tasks_fail(executor, driver) for executor in found):
        raise typer.Exit(1)


@app.command()
def connect(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", show_default=False)],
    timeout: Annotated[float, typer.Option(help="Seconds to wait for each step.", min=0.1)] = 5.0,
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS, as with security.protocol=SSL.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Find out why clients cannot use a cluster: each step they take, and which setting to change.

    Requests the list of brokers and tries every address that they advertise. Works with any Kafka and changes nothing.
    Exit code 1 if a step fails.
    """
    (target, *_) = parse_addresses(address)
    _report(diagnose(target, timeout_s=timeout, tls=tls), output)


@app.command()
def rack(
    rack: Annotated[
        str, typer.Option("--rack", help="The client's rack, its client.rack.", show_default="it has none")
    ] = "",
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", help="A topic that it reads; may be repeated.", show_default="all", autocompletion=topic_names
        ),
    ] = None,
    fetch_version: Annotated[
        int | None, typer.Option(help="The newest version of Fetch that it sends.", min=0, show_default="new enough")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Find out why consumers of a rack are not served in that rack (KIP-392), and which setting to change.

    Shows the broker that serves each partition. Works with Apache Kafka too, and changes nothing. Exit code 1 if a
    partition is not served in the rack.
    """
    with admin_of(bootstrap_server) as admin:
        survey = survey_racks(admin, topic or None)
    _report(diagnose_rack(survey, rack, fetch_version=fetch_version), output)


def _report(findings: Iterable[Finding], output: Format) -> None:
    """Print the findings, in a table each as soon as known; exit with code 1 if a step failed."""
    found: list[Finding] = []
    for finding in findings:
        found.append(finding)
        if output is Format.TABLE:
            _print(finding)
    if output is Format.JSON:
        show([_finding_row(finding) for finding in found], (), output)
    if any(finding.verdict is Verdict.FAILED for finding in found):
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    """Print a finding at once: the next step may take seconds."""
    write(one_line(f"{_SIGNS[finding.verdict]:8} {finding.check:15} {finding.target}: {finding.detail}"))
    if finding.advice:
        write(one_line(f"{'':8} {'':15} -> {finding.advice}"))


def _finding_row(finding: Finding) -> Row:
    return {
        "check": finding.check,
        "target": finding.target,
        "verdict": finding.verdict,
        "detail": finding.detail,
        "advice": finding.advice,
    }
