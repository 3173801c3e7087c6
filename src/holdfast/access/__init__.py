"""Who a caller is and what she may do: principals, tokens, quotas, and the checks at the door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.access.assertions import KEY_SET_PATH as KEY_SET_PATH, IdentityAssertions as IdentityAssertions
    from holdfast.access.audit_check import (
        AuditFilter as AuditFilter,
        AuditReader as AuditReader,
        Verified as Verified,
        checkpoints_in as checkpoints_in,
        latest_records as latest_records,
        verify as verify,
    )
    from holdfast.access.audit_files import (
        AuditFiles as AuditFiles,
        AuditKey as AuditKey,
        AuditRecord as AuditRecord,
        audit_places as audit_places,
        read_key as read_key,
    )
    from holdfast.access.audit_trail import AuditTrail as AuditTrail, send_checkpoints as send_checkpoints
    from holdfast.access.connections import (
        Admission as Admission,
        ClientPeer as ClientPeer,
        ConnectionLimits as ConnectionLimits,
        peer_at as peer_at,
    )
    from holdfast.access.ext_authz import (
        AuthzAnswer as AuthzAnswer,
        AuthzQuestion as AuthzQuestion,
        ExtAuthz as ExtAuthz,
        NotAsked as NotAsked,
    )
    from holdfast.access.guard import (
        LOOPBACK_HOSTS as LOOPBACK_HOSTS,
        AccessRules as AccessRules,
        Guard as Guard,
        RefusalKind as RefusalKind,
        Refused as Refused,
    )
    from holdfast.access.jwt import JwtVerifier as JwtVerifier
    from holdfast.access.local_peer import PeerUids as PeerUids, has_left as has_left
    from holdfast.access.policy import (
        AccessDecision as AccessDecision,
        AccessItem as AccessItem,
        Grants as Grants,
        ItemKind as ItemKind,
        Policy as Policy,
    )
    from holdfast.access.principals import (
        HOW_TO_BE_KNOWN as HOW_TO_BE_KNOWN,
        LOCAL as LOCAL,
        ClientKey as ClientKey,
        HubPrincipals as HubPrincipals,
        Principal as Principal,
        TokenPolicy as TokenPolicy,
        TokensFile as TokensFile,
        TrustedGateway as TrustedGateway,
        client_key_in as client_key_in,
    )
    from holdfast.access.protected_resource import (
        METADATA_PATH as METADATA_PATH,
        NeededScopes as NeededScopes,
        ProtectedResource as ProtectedResource,
        is_endpoint as is_endpoint,
    )
    from holdfast.access.quotas import QuotaExceeded as QuotaExceeded, Quotas as Quotas
    from holdfast.access.roles import ALL_ROLES as ALL_ROLES, Role as Role, roles_of as roles_of
    from holdfast.access.what_if import (
        PossiblePolicy as PossiblePolicy,
        Replayed as Replayed,
        principal_named as principal_named,
        replayed as replayed,
    )

__getattr__, __dir__ = lazy_exports(__name__)
