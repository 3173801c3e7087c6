"""OAuth: log in to a server, keep the tokens, renew them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.auth.credentials import (
        Logins as Logins,
        LoginStatus as LoginStatus,
        status_of as status_of,
        takes_login as takes_login,
    )
    from holdfast.auth.discovery import (
        AuthorizationServer as AuthorizationServer,
        discover as discover,
        known_client as known_client,
    )
    from holdfast.auth.flows import DeviceCode as DeviceCode
    from holdfast.auth.person_login import (
        LoggedOut as LoggedOut,
        LoginMethod as LoginMethod,
        PendingLogin as PendingLogin,
        audience_of as audience_of,
        begin_login as begin_login,
        finish_login as finish_login,
        log_in as log_in,
        log_out as log_out,
        plan_login as plan_login,
        unverified_claims as unverified_claims,
    )
    from holdfast.auth.sign_in import (
        SIGN_IN as SIGN_IN,
        IdTokens as IdTokens,
        PendingSignIn as PendingSignIn,
        SignInClient as SignInClient,
    )
    from holdfast.auth.token_endpoint import canonical as canonical
    from holdfast.auth.token_store import (
        Grant as Grant,
        GrantKey as GrantKey,
        GrantStore as GrantStore,
        StoreUnusable as StoreUnusable,
        TokenStore as TokenStore,
        read_entry as read_entry,
        write_entry as write_entry,
    )
    from holdfast.auth.user_credentials import (
        Ladders as Ladders,
        RungStatus as RungStatus,
        SubjectTokens as SubjectTokens,
        rungs_of as rungs_of,
    )
    from holdfast.auth.user_tokens import (
        UserGrants as UserGrants,
        UserRow as UserRow,
        UserTokens as UserTokens,
        UserTokenStore as UserTokenStore,
        find_user_keys as find_user_keys,
    )

__getattr__, __dir__ = lazy_exports(__name__)
