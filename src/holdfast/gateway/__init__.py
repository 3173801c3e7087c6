"""The configuration of AgentGateway: a model, its rendering for each gateway version, and the bridge.

Each rendered config fails closed and sets the authorization timeout. Nothing here connects to an MCP server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.gateway.bridge import (
        AdminAddressWatch as AdminAddressWatch,
        Bridge as Bridge,
        BridgePlan as BridgePlan,
        FileSource as FileSource,
        HttpSource as HttpSource,
        TargetSource as TargetSource,
        seed as seed,
        serving as serving,
    )
    from holdfast.gateway.model import (
        ADMIN_ADDRESS as ADMIN_ADDRESS,
        BODY_BYTES as BODY_BYTES,
        EXT_AUTH_TIMEOUT as EXT_AUTH_TIMEOUT,
        HEALTH_ADDRESS as HEALTH_ADDRESS,
        LISTEN_PORT as LISTEN_PORT,
        OUTAGE_STATUS as OUTAGE_STATUS,
        ExtAuth as ExtAuth,
        Gateway as Gateway,
        Jwt as Jwt,
        Release as Release,
        check_address as check_address,
        family_of as family_of,
    )
    from holdfast.gateway.render import (
        Rules as Rules,
        check_config as check_config,
        find_schema as find_schema,
        read_bootstrap as read_bootstrap,
        render_config as render_config,
        session_key as session_key,
        short_timeouts as short_timeouts,
        to_yaml as to_yaml,
        with_session_key as with_session_key,
    )

__getattr__, __dir__ = lazy_exports(__name__)
