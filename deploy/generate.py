"""Write what is deployed and made from the program: ``python deploy/generate.py [--check]``.

The compose files' bootstrap config is rendered here, so that its timeout is the program's own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.gateway.defaults import EXT_AUTH_PORT, GATEWAY_VERSION
from holdfast.gateway.model import ExtAuth, Gateway
from holdfast.gateway.render import render, to_yaml
from holdfast.gateway.versions import family_of

BOOTSTRAP = Path(__file__).parent / "compose" / "agentgateway.yaml"

HEAD = f"""\
# The config that the bridge adds the targets' routes to, for AgentGateway {GATEWAY_VERSION}. Routes of your own belong
# here, and win. The rest is made by `python deploy/generate.py`; a test fails if it is out of date.
"""


def bootstrap() -> str:
    """The config without any target."""
    wanted = Gateway(ext_auth=ExtAuth(host=f"ext-authz:{EXT_AUTH_PORT}"))
    return HEAD + to_yaml(render(wanted, family_of(GATEWAY_VERSION).family))


def main() -> int:
    """Write the file, or with ``--check`` say whether it is fresh."""
    if "--check" in sys.argv:
        return 0 if BOOTSTRAP.read_text() == bootstrap() else 1
    BOOTSTRAP.write_text(bootstrap())
    return 0


if __name__ == "__main__":
    sys.exit(main())
