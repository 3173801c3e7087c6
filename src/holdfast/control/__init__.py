"""The control API of a running hub: its models, a client, and how to find a hub on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.control.control_client import (
        ControlClient as ControlClient,
        ServerAction as ServerAction,
        trust_in as trust_in,
    )
    from holdfast.control.hub_finder import (
        TOKEN_VARIABLE as TOKEN_VARIABLE,
        URL_VARIABLE as URL_VARIABLE,
        RunningHub as RunningHub,
        find_hub as find_hub,
        is_running as is_running,
        registered as registered,
        running_hubs as running_hubs,
    )
    from holdfast.control.models import (
        Activity as Activity,
        Approval as Approval,
        BreakerView as BreakerView,
        CatalogItem as CatalogItem,
        Change as Change,
        FleetView as FleetView,
        HubView as HubView,
        JoinedClientView as JoinedClientView,
        LogLine as LogLine,
        Server as Server,
        Servers as Servers,
        Status as Status,
        TargetsView as TargetsView,
        WaitingCall as WaitingCall,
    )
    from holdfast.control.server.browser_identity import BrowserIdentity as BrowserIdentity, Identified as Identified
    from holdfast.control.server.control_server import ControlServer as ControlServer
    from holdfast.control.server.log_buffer import (
        ConsoleFormatter as ConsoleFormatter,
        JsonFormatter as JsonFormatter,
        LogHandler as LogHandler,
    )
    from holdfast.control.server.server_logins import ConnectPage as ConnectPage
    from holdfast.control.server.status_page import BrowserSessions as BrowserSessions
    from holdfast.control.server.views import History as History, HubInfo as HubInfo, Views as Views
    from holdfast.control.server.workers import Worker as Worker, WorkerGroup as WorkerGroup

__getattr__, __dir__ = lazy_exports(__name__)
