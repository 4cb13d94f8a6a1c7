"""The list of groups. A completion in the shell asks for the list, so that no other call is imported with it."""

from dataclasses import dataclass

from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.protocol.messages.groups import ListGroupsRequest, ListGroupsResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list. State and type are empty from a server that is too old to report these fields."""

    group: str
    protocol_type: str
    state: str
    type: str


async def list_groups(router: Router) -> list[GroupListing]:
    """Groups of every broker, by name."""

    async def attempt() -> list[GroupListing]:
        await router.refresh(())
        listings: dict[str, GroupListing] = {}
        for node_id in router.view.brokers:
            connection = await router.node_connection(node_id)
            response = await router.ask(connection, ListGroupsRequest(), ListGroupsResponse)
            check(response.error_code, f"the groups of node {node_id}")
            for group in response.groups:
                listings[group.group_id] = GroupListing(
                    group=group.group_id,
                    protocol_type=group.protocol_type,
                    state=group.group_state,
                    type=group.group_type,
                )
        return [listings[name] for name in sorted(listings)]

    return await router.retry(attempt)
