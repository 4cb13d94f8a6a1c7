"""`tailrace acls`: list, add, remove, check."""

from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import typer

from tailrace.cli.completion import group_names, topic_names
from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, counted, say, show
from tailrace.model.access import CLUSTER, Operation, SecuredType
from tailrace.model.acls.bindings import (
    ALL_OPERATIONS,
    ANY,
    EVERY_NAME,
    OPERATIONS_OF,
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
    name_of_operation,
    name_of_type,
)
from tailrace.model.acls.rules import AccessQuestion, AclRules

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_COLUMNS = ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")
_CHECKED = ("DECISION", "REASON", *_COLUMNS)


@app.callback()
def _noun() -> None:
    """List, add, remove and check access control lists."""


class _Resource(NamedTuple):
    kind: int
    name: str | None


Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="NAME", help="A topic, or *; repeatable.", autocompletion=topic_names),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="NAME", help="A group, or *; repeatable.", autocompletion=group_names),
]
Ids = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id, or *; repeatable.")
]
Users = Annotated[list[str] | None, typer.Option("--user", metavar="USER", help="A user as a resource; repeatable.")]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster.", show_default=False)]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="Names that begin with the given name.", show_default=False)]
Principals = Annotated[
    list[str] | None, typer.Option("--principal", metavar="User:NAME", help="A principal; repeatable.")
]
Host = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="The address of the client.")]
Operations = Annotated[
    list[str] | None, typer.Option("--operation", metavar="OPERATION", help="READ, WRITE, DESCRIBE, ...; repeatable.")
]


def _resources(
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    transactional_ids: Sequence[str] | None,
    users: Sequence[str] | None,
    *,
    cluster: bool,
) -> list[_Resource]:
    named: list[tuple[SecuredType, Iterable[str]]] = [
        (SecuredType.TOPIC, topics or ()),
        (SecuredType.GROUP, groups or ()),
        (SecuredType.TRANSACTIONAL_ID, transactional_ids or ()),
        (SecuredType.USER, users or ()),
        (SecuredType.CLUSTER, (CLUSTER.name,) if cluster else ()),
    ]
    return [_Resource(kind, name) for kind, names in named for name in names]


def _operation(text: str) -> int:
    """The number of an operation, by its name in any case. Raises typer.BadParameter."""
    name = text.strip().upper().replace("-", "_")
    if name == "ALL":
        return ALL_OPERATIONS
    by_name = {operation.name.replace("_", ""): operation for operation in Operation}
    found = by_name.get(name.replace("_", ""))  # kafka-acls writes DescribeConfigs
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is not an operation; ALL, {', '.join(Operation.__members__)} are", param_hint="--operation"
        )
    return int(found)


def _row(rule: AclBinding) -> Row:
    pattern = PatternType(rule.pattern_type).name if rule.pattern_type in tuple(PatternType) else "UNKNOWN"
    permission = Permission(rule.permission).name if rule.permission in tuple(Permission) else "UNKNOWN"
    values = (
        name_of_type(rule.resource_type),
        rule.resource_name,
        pattern,
        rule.principal,
        rule.host,
        name_of_operation(rule.operation),
        permission,
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _filters(
    resources: Sequence[_Resource],
    principals: Sequence[str] | None,
    operations: Sequence[str] | None,
    host: str | None,
    pattern: PatternType,
    permission: int = ANY,
) -> list[AclFilter]:
    return [
        AclFilter(resource.kind, resource.name, pattern, principal, host, operation, permission)
        for resource in resources or [_Resource(ANY, None)]
        for principal in (principals or (None,))
        for operation in [_operation(name) for name in operations or ()] or [ANY]
    ]


@app.command("list")
def list_acls(
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: Ids = None,
    users: Users = None,
    cluster: OfCluster = False,
    principals: Principals = None,
    matching: Annotated[
        bool, typer.Option("--matching", help="Every rule about the named resources.", show_default=False)
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """List rules: all, or the rules of the named resources and principals.

    `--topic orders` lists the rules of that very name; with --matching also rules with a prefix of the name, and with
    `*`.
    """
    resources = _resources(topics, groups, transactional_ids, users, cluster=cluster)
    pattern = PatternType.MATCH if matching else PatternType.ANY
    with admin_of(bootstrap_server) as admin:
        found = {
            rule
            for wanted in _filters(resources, principals, None, None, pattern)
            for rule in admin.describe_acls(wanted)
        }
    show([_row(rule) for rule in sorted(found)], _COLUMNS, output)


@app.command()
def add(
    principals: Principals = None,
    operations: Operations = None,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: Ids = None,
    users: Users = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    host: Host = None,
    deny: Annotated[
        bool, typer.Option("--deny", help="Deny the operations; DENY wins over ALLOW.", show_default=False)
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Allow principals to carry out operations on resources, or deny it with --deny."""
    resources = _resources(topics, groups, transactional_ids, users, cluster=cluster)
    if not principals or not operations or not resources:
        raise typer.BadParameter("name a --principal, an --operation and a resource, as --topic or --cluster")
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    rules = [
        AclBinding(
            kind,
            name or "",
            PatternType.LITERAL if kind == SecuredType.CLUSTER else pattern,
            principal,
            host or EVERY_NAME,
            operation,
            Permission.DENY if deny else Permission.ALLOW,
        )
        for kind, name in resources
        for principal in principals
        for operation in map(_operation, operations)
    ]
    for rule in rules:
        rule.check()
        if rule.operation != ALL_OPERATIONS and rule.operation not in OPERATIONS_OF[rule.resource_type]:
            possible = ", ".join(name_of_operation(number) for number in OPERATIONS_OF[rule.resource_type])
            raise typer.BadParameter(
                f"{name_of_operation(rule.operation)} is no operation on {name_of_type(rule.resource_type)}; ALL,"
                f" {possible} are",
                param_hint="--operation",
            )
    with admin_of(bootstrap_server) as admin:
        admin.create_acls(*rules)
    say(f"added {counted(len(rules), 'rule')}")
    if output is Format.JSON:
        show([_row(rule) for rule in rules], _COLUMNS, output)


@app.command()
def remove(
    principals: Principals = None,
    operations: Operations = None,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: Ids = None,
    users: Users = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    host: Host = None,
    every: Annotated[bool, typer.Option("--all", help="Every rule of the cluster.", show_default=False)] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Remove the rules that have all the given values, and print the removed rules."""
    resources = _resources(topics, groups, transactional_ids, users, cluster=cluster)
    is_narrow = bool(resources or principals or operations or host)
    if is_narrow == every:
        raise typer.BadParameter("name resources, principals, operations or a host, or say --all")
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL if resources else PatternType.ANY
    with admin_of(bootstrap_server) as admin:
        removed = admin.delete_acls(*_filters(resources, principals, operations, host, pattern))
    show([_row(rule) for rule in removed], _COLUMNS, output)
    say(f"removed {counted(len(removed), 'rule')}")


@app.command()
def check(
    principal: Annotated[str, typer.Option("--principal", metavar="User:NAME", show_default=False)],
    operation: Annotated[str, typer.Option("--operation", metavar="OPERATION", show_default=False)],
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: Ids = None,
    users: Users = None,
    cluster: OfCluster = False,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address of the client.")] = "127.0.0.1",
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Tell whether a principal may carry out an operation, and which rule decides.

    The rules alone are looked at: a principal in super.users may do everything, and a resource without any rule is
    denied, unless the settings of the nodes permit it. The reason is RULE, with the deciding rule,
    NO-RULE-OF-CLIENT if the resource has other rules, or NO-RULE-OF-RESOURCE. Exit code 1 if an operation is denied.
    """
    resources = _resources(topics, groups, transactional_ids, users, cluster=cluster)
    if not resources:
        raise typer.BadParameter("name a resource, as --topic or --cluster")
    number = _operation(operation)
    rows: list[Row] = []
    is_allowed = True
    with admin_of(bootstrap_server) as admin:
        for kind, name in resources:
            rules = AclRules(admin.describe_acls(AclFilter(kind, name, PatternType.MATCH)))
            question = AccessQuestion(principal, host, number, kind, name or "")
            decision = rules.decide(question, allows_without_rule=False)
            is_allowed &= decision.is_allowed
            asked: Row = {"RESOURCE": name_of_type(kind), "NAME": name}
            rows.append(
                {
                    "DECISION": "ALLOWED" if decision.is_allowed else "DENIED",
                    "REASON": decision.reason.name.replace("_", "-"),
                    **(asked if decision.rule is None else _row(decision.rule)),
                }
            )
    show(rows, _CHECKED, output)
    if not is_allowed:
        raise typer.Exit(1)
