"""The only package that talks to servers: dial one, record evidence, close it. It decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.wire.dial import (
        SHORTEST_DIAL as SHORTEST_DIAL,
        Attempt as Attempt,
        Dialer as Dialer,
        HubTls as HubTls,
        Starting as Starting,
        descriptor_shortage as descriptor_shortage,
        evidence_in as evidence_in,
        raise_descriptor_limit as raise_descriptor_limit,
    )
    from holdfast.wire.dispatcher import (
        CALL_NOTIFICATIONS as CALL_NOTIFICATIONS,
        CLIENT_REQUESTS as CLIENT_REQUESTS,
        SHARED_CAPABILITIES as SHARED_CAPABILITIES,
        DialHooks as DialHooks,
        NoClients as NoClients,
        Relay as Relay,
    )
    from holdfast.wire.grpc import (
        GrpcChannel as GrpcChannel,
        GrpcFailed as GrpcFailed,
        GrpcTarget as GrpcTarget,
    )
    from holdfast.wire.http.answer_parser import (
        BadChunk as BadChunk,
        ChunkReader as ChunkReader,
        NotHttp as NotHttp,
        append_piece as append_piece,
        header_fields as header_fields,
        joined as joined,
    )
    from holdfast.wire.http.client import (
        LEAVING_HEADER as LEAVING_HEADER,
        ApiClient as ApiClient,
        Authorize as Authorize,
        HttpAnswer as HttpAnswer,
        exchange as exchange,
        fetch as fetch,
        ssl_context as ssl_context,
    )
    from holdfast.wire.http.connection import Response as Response, share_receive_room as share_receive_room
    from holdfast.wire.http.pool import (
        NOT_HTTP as NOT_HTTP,
        ConnectFailed as ConnectFailed,
        ConnectTimedOut as ConnectTimedOut,
        HttpOrigin as HttpOrigin,
        Pool as Pool,
        evidence_of as evidence_of,
        unix_peer_uid as unix_peer_uid,
    )
    from holdfast.wire.in_flight import Caller as Caller, Era as Era, until_cancelled as until_cancelled
    from holdfast.wire.listing import (
        Offer as Offer,
        Offers as Offers,
        read_template as read_template,
        task_support as task_support,
        without_task_support as without_task_support,
    )
    from holdfast.wire.process import (
        INHERITED as INHERITED,
        LONGEST_LINE as LONGEST_LINE,
        LONGEST_SECRET as LONGEST_SECRET,
        OnStderr as OnStderr,
        adopt_orphans as adopt_orphans,
        environment_of as environment_of,
        find_program as find_program,
        keep_reaping as keep_reaping,
    )
    from holdfast.wire.raw_json import (
        LOADED_BYTES as LOADED_BYTES,
        SMALL_BYTES as SMALL_BYTES,
        BadJson as BadJson,
        Bytes as Bytes,
        Fields as Fields,
        KeyNames as KeyNames,
        LoadedObject as LoadedObject,
        NotAnObject as NotAnObject,
        RawObject as RawObject,
        dump_object as dump_object,
        dumps as dumps,
        fields as fields,
        have_lone_surrogate as have_lone_surrogate,
        is_array as is_array,
        is_object as is_object,
        is_text as is_text,
        is_word as is_word,
        items as items,
        join_fields as join_fields,
        join_items as join_items,
        load_members as load_members,
        load_object as load_object,
        loads as loads,
        long_text as long_text,
        may_begin as may_begin,
        one_line as one_line,
        read_bytes as read_bytes,
        split as split,
        text_of as text_of,
    )
    from holdfast.wire.request_form import (
        CLIENT_HEADER as CLIENT_HEADER,
        ERA_HEADER as ERA_HEADER,
        FAILURE_KEY as FAILURE_KEY,
        PRINCIPAL_HEADER as PRINCIPAL_HEADER,
        TASK_METHODS as TASK_METHODS,
        TASKS_EXTENSION as TASKS_EXTENSION,
        SignAssertion as SignAssertion,
        principal_in as principal_in,
        traced as traced,
        via_in as via_in,
        without_task_capabilities as without_task_capabilities,
    )
    from holdfast.wire.session import (
        LIST_CHANGED as LIST_CHANGED,
        LOG_LEVELS as LOG_LEVELS,
        RELATED_TASK as RELATED_TASK,
        Connection as Connection,
        DesiredState as DesiredState,
        apply_desired_state as apply_desired_state,
        first_status as first_status,
        follow_hub as follow_hub,
        forget_client as forget_client,
        watch_connection as watch_connection,
    )
    from holdfast.wire.warden import Warden as Warden

__getattr__, __dir__ = lazy_exports(__name__)
