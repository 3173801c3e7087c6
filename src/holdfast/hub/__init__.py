"""The async shell around the decisions of core/ and the connections of wire/."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.hub.approvals import ApprovalsLock as ApprovalsLock, shown as shown
    from holdfast.hub.call_approvals import (
        CallApprovals as CallApprovals,
        CallBinding as CallBinding,
        CallQuestion as CallQuestion,
        CallVerdict as CallVerdict,
        QuestionSharing as QuestionSharing,
        UnknownQuestion as UnknownQuestion,
        find_question as find_question,
    )
    from holdfast.hub.hub import Hub as Hub
    from holdfast.hub.hub_clock import (
        Clock as Clock,
        next_poll as next_poll,
        sleep_until_poll as sleep_until_poll,
        stamps as stamps,
    )
    from holdfast.hub.journal import (
        ANSWERED as ANSWERED,
        AccessChanged as AccessChanged,
        AccessRefused as AccessRefused,
        BreakerChanged as BreakerChanged,
        CallEnded as CallEnded,
        CallOutcome as CallOutcome,
        CloseFailed as CloseFailed,
        ConfigApplied as ConfigApplied,
        ConfigRefused as ConfigRefused,
        HubRecord as HubRecord,
        ListFailed as ListFailed,
        Missed as Missed,
        OneClientRecord as OneClientRecord,
        Published as Published,
        RetryPlanned as RetryPlanned,
        ToolApproved as ToolApproved,
        ToolChanged as ToolChanged,
        Transition as Transition,
        as_fields as as_fields,
        server_text as server_text,
        transition_text as transition_text,
        warnings_of as warnings_of,
    )
    from holdfast.hub.kept_results import (
        READ_RESULT as READ_RESULT,
        RESULTS_URI as RESULTS_URI,
        has_output_schema as has_output_schema,
        read_result_tool as read_result_tool,
    )
    from holdfast.hub.lease import is_shown as is_shown
    from holdfast.hub.limits import DialLimit as DialLimit
    from holdfast.hub.loader import (
        Loader as Loader,
        OnStarting as OnStarting,
        call_tool as call_tool,
        get_tools_with_resilience as get_tools_with_resilience,
        load as load,
        report_starts as report_starts,
    )
    from holdfast.hub.owned_slots import OwnedSlots as OwnedSlots
    from holdfast.hub.publisher import findings as findings
    from holdfast.hub.registry import (
        ReplicaHost as ReplicaHost,
        Replicas as Replicas,
        access_item as access_item,
        is_or_may_be as is_or_may_be,
        suggested as suggested,
    )
    from holdfast.hub.reload import Reloader as Reloader
    from holdfast.hub.slot import (
        Slot as Slot,
        latest_failure as latest_failure,
        record_of as record_of,
        remedy_for as remedy_for,
    )
    from holdfast.hub.slot_call import is_tracing as is_tracing, outcome_of as outcome_of, read_result as read_result
    from holdfast.hub.state_store import (
        default_state_file as default_state_file,
        fingerprint as fingerprint,
        listing_from as listing_from,
        listing_pieces as listing_pieces,
    )
    from holdfast.hub.tool_index import found_tool as found_tool

__getattr__, __dir__ = lazy_exports(__name__)
