"""Decisions only. No I/O, no clock, no randomness, no tasks: time and chance are arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.core.breaker import (
        BreakerPolicy as BreakerPolicy,
        BreakerState as BreakerState,
        Outcome as Outcome,
        Permit as Permit,
        Refusal as Refusal,
        RefusalReason as RefusalReason,
        Tripped as Tripped,
    )
    from holdfast.core.catalog import (
        Catalog as Catalog,
        CatalogEntry as CatalogEntry,
        CatalogSource as CatalogSource,
        ChangedKinds as ChangedKinds,
        Collision as Collision,
        Item as Item,
        Listing as Listing,
        NameKey as NameKey,
        ResourceIndex as ResourceIndex,
        Unknown as Unknown,
        is_repeatable as is_repeatable,
        unmarked as unmarked,
    )
    from holdfast.core.changes import (
        WATCHED as WATCHED,
        ApprovalKind as ApprovalKind,
        ChangedTool as ChangedTool,
        key_of as key_of,
        kind_of as kind_of,
        said as said,
    )
    from holdfast.core.classify import (
        STOPPED_FROM_OUTSIDE as STOPPED_FROM_OUTSIDE,
        Verdict as Verdict,
        classify_evidence as classify_evidence,
        classify_load_error as classify_load_error,
        statement_of as statement_of,
        status_class as status_class,
        wants_password as wants_password,
    )
    from holdfast.core.evidence import (
        BadConfig as BadConfig,
        Challenge as Challenge,
        CommandFault as CommandFault,
        CommandUnusable as CommandUnusable,
        CredentialRefused as CredentialRefused,
        CredentialsUnavailable as CredentialsUnavailable,
        Evidence as Evidence,
        HttpStatus as HttpStatus,
        Login as Login,
        LoginState as LoginState,
        NetworkFailure as NetworkFailure,
        NetworkFault as NetworkFault,
        NotMcp as NotMcp,
        NotMcpFault as NotMcpFault,
        OutOfDescriptors as OutOfDescriptors,
        OverBound as OverBound,
        PlainHttpRefused as PlainHttpRefused,
        ProcessExit as ProcessExit,
        Redirected as Redirected,
        RpcError as RpcError,
        TimedOut as TimedOut,
        TlsFailure as TlsFailure,
        TlsFault as TlsFault,
        TokenNotRenewed as TokenNotRenewed,
        ToldByHub as ToldByHub,
        Unexpected as Unexpected,
        read_challenge as read_challenge,
        scopes_in as scopes_in,
    )
    from holdfast.core.forbidden import LONGEST_BODY as LONGEST_BODY, Statement as Statement, stated_in as stated_in
    from holdfast.core.hosts import is_loopback as is_loopback
    from holdfast.core.hub_record import (
        HUB_CAPABILITY as HUB_CAPABILITY,
        HUB_VERSION as HUB_VERSION,
        LOOP_HINT as LOOP_HINT,
        LOOP_REASON as LOOP_REASON,
        MOST_HUBS as MOST_HUBS,
        STATUS_URI as STATUS_URI,
        ServerRecord as ServerRecord,
        hub_warns as hub_warns,
        read_records as read_records,
        speaks_hub as speaks_hub,
        told_number as told_number,
    )
    from holdfast.core.lifecycle import events as events
    from holdfast.core.lifecycle.backoff import (
        LifecyclePolicy as LifecyclePolicy,
        delay as delay,
        to_milliseconds as to_milliseconds,
    )
    from holdfast.core.lifecycle.events import (
        AccessChanged as AccessChanged,
        BreakerChanged as BreakerChanged,
        CheckAddress as CheckAddress,
        CheckLiveness as CheckLiveness,
        ClaimProbe as ClaimProbe,
        Close as Close,
        CloseFailed as CloseFailed,
        Dial as Dial,
        Effect as Effect,
        Emit as Emit,
        Publish as Publish,
        Record as Record,
        RefreshNow as RefreshNow,
        Reinstate as Reinstate,
        ReleaseProbe as ReleaseProbe,
        RetryPlanned as RetryPlanned,
        ShareEvidence as ShareEvidence,
        Transition as Transition,
        WakeAt as WakeAt,
        Withdraw as Withdraw,
    )
    from holdfast.core.lifecycle.table import IllegalTransition as IllegalTransition, State as State
    from holdfast.core.machine import Health as Health, Machine as Machine
    from holdfast.core.messages import (
        Failure as Failure,
        FailureStatus as FailureStatus,
        Invocation as Invocation,
        ServerStatus as ServerStatus,
        cause_of as cause_of,
        command_line as command_line,
        counted as counted,
        for_caller as for_caller,
        for_model as for_model,
        for_user as for_user,
        invocation as invocation,
        next_try as next_try,
        span as span,
        typed_as as typed_as,
    )
    from holdfast.core.names import (
        CLIENT_NAMINGS as CLIENT_NAMINGS,
        HUB_NAME as HUB_NAME,
        LONGEST_NAME as LONGEST_NAME,
        NAME_LENGTH as NAME_LENGTH,
        SHORTEST_NAME as SHORTEST_NAME,
        ClientNaming as ClientNaming,
        Kind as Kind,
        base_name as base_name,
        cutting_clients as cutting_clients,
        is_own_key as is_own_key,
        is_own_name as is_own_name,
        is_own_uri as is_own_uri,
        near as near,
        nearest as nearest,
        uri_lead as uri_lead,
        uri_leads as uri_leads,
        without_own_keys as without_own_keys,
    )
    from holdfast.core.process_output import (
        Need as Need,
        NeedKind as NeedKind,
        hint_for as hint_for,
        need_of as need_of,
        says_nothing as says_nothing,
        telling_line as telling_line,
    )
    from holdfast.core.redact import (
        INVISIBLE as INVISIBLE,
        LEFT_OUT as LEFT_OUT,
        MASK as MASK,
        Redactor as Redactor,
        cut as cut,
        fault_line as fault_line,
        has_secret_shape as has_secret_shape,
        mask_url as mask_url,
        masked as masked,
        masked_data as masked_data,
        plain as plain,
        quote_block as quote_block,
        quoted as quoted,
        quoted_line as quoted_line,
        quoted_name as quoted_name,
        secrets_in_url as secrets_in_url,
        visible_json as visible_json,
    )
    from holdfast.core.remedies import (
        Facts as Facts,
        FailureRemedy as FailureRemedy,
        ServerText as ServerText,
        remedy_of as remedy_of,
        sentence as sentence,
        text_for as text_for,
    )
    from holdfast.core.replicas.agreement import (
        ConfigAgreement as ConfigAgreement,
        FleetClock as FleetClock,
        home_of as home_of,
        question_number as question_number,
        replica_tag as replica_tag,
        replicas_with_tag as replicas_with_tag,
        tag_of_question as tag_of_question,
    )
    from holdfast.core.replicas.member import (
        Alone as Alone,
        Connected as Connected,
        FleetMember as FleetMember,
        Happening as Happening,
        RecordLearned as RecordLearned,
    )
    from holdfast.core.replicas.probe_rights import Granted as Granted, Unused as Unused
    from holdfast.core.replicas.store import (
        BATCH as BATCH,
        BATCH_BYTES as BATCH_BYTES,
        PRESENT_SECONDS as PRESENT_SECONDS,
        Claim as Claim,
        ClaimAnswer as ClaimAnswer,
        ClaimRelease as ClaimRelease,
        FleetExchange as FleetExchange,
        FleetRecord as FleetRecord,
        FleetReply as FleetReply,
        SharedStore as SharedStore,
        VersionClock as VersionClock,
        evidence_event as evidence_event,
        evidence_value as evidence_value,
        is_stamp as is_stamp,
        keyed_tool as keyed_tool,
        record_key as record_key,
        record_value as record_value,
        stamp as stamp,
    )
    from holdfast.core.search import (
        SYNONYMS as SYNONYMS,
        Ranking as Ranking,
        SearchText as SearchText,
        first_sentence as first_sentence,
        meaning_text as meaning_text,
        query_words as query_words,
        search_text as search_text,
        signature as signature,
    )

__getattr__, __dir__ = lazy_exports(__name__)
