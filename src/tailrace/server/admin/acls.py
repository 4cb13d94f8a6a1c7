"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31): a node has no authorizer, and says so as Kafka does.

The code is SECURITY_DISABLED: at the top of DescribeAcls, and of each binding or filter of the others. Tools that look
for access control lists where there may be none, as MirrorMaker 2 and kminion do, expect that code.
"""

from typing import NoReturn

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.acls import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from tailrace.server.context import RequestContext


class NoAclsHandler:
    """Refuses the requests of access control lists."""

    def handle(
        self, request: DescribeAclsRequest | CreateAclsRequest | DeleteAclsRequest, context: RequestContext
    ) -> NoReturn:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
