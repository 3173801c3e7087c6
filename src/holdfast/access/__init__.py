"""Who a caller is and what she may do: principals, tokens, quotas, and the checks at the door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.access.audit_reader import (
        AuditFilter as AuditFilter,
        AuditReader as AuditReader,
        Replayed as Replayed,
        Verified as Verified,
        checkpoints_in as checkpoints_in,
        latest_records as latest_records,
        replayed as replayed,
        verify as verify,
    )
    from holdfast.access.audit_writer import (
        AuditFiles as AuditFiles,
        AuditKey as AuditKey,
        AuditRecord as AuditRecord,
        AuditTrail as AuditTrail,
        audit_places as audit_places,
        read_key as read_key,
        send_checkpoints as send_checkpoints,
    )
    from holdfast.access.connections import (
        Admission as Admission,
        ClientPeer as ClientPeer,
        ConnectionLimits as ConnectionLimits,
        PeerUids as PeerUids,
        has_left as has_left,
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
    from holdfast.access.jwt import (
        KEY_SET_PATH as KEY_SET_PATH,
        METADATA_PATH as METADATA_PATH,
        IdentityAssertions as IdentityAssertions,
        JwtVerifier as JwtVerifier,
        ProtectedResource as ProtectedResource,
        is_endpoint as is_endpoint,
    )
    from holdfast.access.policy import (
        ALL_ROLES as ALL_ROLES,
        LONGEST_URI as LONGEST_URI,
        AccessDecision as AccessDecision,
        AccessItem as AccessItem,
        Grants as Grants,
        ItemKind as ItemKind,
        Policy as Policy,
        PossiblePolicy as PossiblePolicy,
        Role as Role,
        principal_named as principal_named,
        roles_of as roles_of,
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
    from holdfast.access.quotas import (
        PrincipalUse as PrincipalUse,
        QuotaExceeded as QuotaExceeded,
        Quotas as Quotas,
    )

__getattr__, __dir__ = lazy_exports(__name__)
