"""The configuration of AgentGateway: a model, its rendering for each gateway version, and the bridge.

Each rendered config fails closed and sets the authorization timeout. Nothing here connects to an MCP server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.gateway.bridge import (
        Bridge as Bridge,
        BridgePlan as BridgePlan,
        Rules as Rules,
        read_bootstrap as read_bootstrap,
        seed as seed,
        session_key as session_key,
        with_session_key as with_session_key,
    )
    from holdfast.gateway.decide import AdminAddressWatch as AdminAddressWatch, NoAdminAddress as NoAdminAddress
    from holdfast.gateway.health import health_app as health_app, serving as serving
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
        check_config as check_config,
        find_schema as find_schema,
        render_config as render_config,
        short_timeouts as short_timeouts,
        to_yaml as to_yaml,
    )
    from holdfast.gateway.source import FileSource as FileSource, HttpSource as HttpSource, TargetSource as TargetSource

__getattr__, __dir__ = lazy_exports(__name__)
