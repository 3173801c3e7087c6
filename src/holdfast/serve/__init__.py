"""What ``holdfast serve`` does: one hub from its first socket to its last call, or a supervisor of several.

``options`` has what a person can ask for; ``start`` goes from it to what runs; ``run`` is one hub; ``supervisor`` has
the processes of ``--workers``; ``takeover`` hands the listening socket to a successor; ``web_server`` is how a
hub meets and leaves its clients.
"""

from __future__ import annotations

from holdfast._exports import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.serve.hub_secrets import (
        TOKEN_VARIABLE as TOKEN_VARIABLE,
        local_token as local_token,
        local_token_file as local_token_file,
        read_token as read_token,
    )
    from holdfast.serve.isolation import isolate as isolate
    from holdfast.serve.joiner import (
        JoinOptions as JoinOptions,
        join_hub as join_hub,
        runs_in_background as runs_in_background,
    )
    from holdfast.serve.options import (
        DEFAULT_HOST as DEFAULT_HOST,
        DEFAULT_PORT as DEFAULT_PORT,
        DEFAULT_URL as DEFAULT_URL,
        ServeConfig as ServeConfig,
        endpoint_url as endpoint_url,
    )
    from holdfast.serve.program import (
        anywhere as anywhere,
        config_in as config_in,
        here as here,
        own_command as own_command,
        typed_command as typed_command,
    )
    from holdfast.serve.replicas import command_user_tokens as command_user_tokens
    from holdfast.serve.start import (
        require_credentials_beyond_loopback as require_credentials_beyond_loopback,
        start_serving as start_serving,
        without_itself as without_itself,
    )
    from holdfast.serve.telemetry import log_faults_in_lines as log_faults_in_lines
    from holdfast.serve.worker_link import WorkerLink as WorkerLink

__getattr__, __dir__ = lazy_exports(__name__)
