"""What ``holdfast serve`` does: one hub from its first socket to its last call, or a supervisor of several.

``config`` has the options, ``run`` one hub, ``supervisor`` the processes of ``--workers``, ``takeover`` the hand-over
of the listening socket to a successor, and ``leave`` the end, step by step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.serve.isolation import isolate as isolate
    from holdfast.serve.listen import (
        DEFAULT_HOST as DEFAULT_HOST,
        DEFAULT_PORT as DEFAULT_PORT,
        DEFAULT_URL as DEFAULT_URL,
        AcceptedJwt as AcceptedJwt,
        CallerAuth as CallerAuth,
        GatewayAuth as GatewayAuth,
        TlsOptions as TlsOptions,
        bind as bind,
        check_token_length as check_token_length,
        endpoint as endpoint,
        inherited_socket as inherited_socket,
        local_token as local_token,
        local_token_file as local_token_file,
        needs_name as needs_name,
        open_to as open_to,
        read_token as read_token,
        require_auth_beyond_loopback as require_auth_beyond_loopback,
        uid_of as uid_of,
    )
    from holdfast.serve.program import here as here, own_command as own_command, typed_command as typed_command
    from holdfast.serve.run import ServeOptions as ServeOptions, run_hub as run_hub
    from holdfast.serve.supervisor import Supervised as Supervised, Supervisor as Supervisor
    from holdfast.serve.takeover import Predecessor as Predecessor, find_predecessor as find_predecessor
    from holdfast.serve.telemetry import (
        log_faults_in_lines as log_faults_in_lines,
        log_to_stderr as log_to_stderr,
        traced as traced,
    )
    from holdfast.serve.worker_link import WorkerLink as WorkerLink

__getattr__, __dir__ = lazy_exports(__name__)
