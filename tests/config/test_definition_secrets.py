"""Which arguments of a definition are secrets."""

from __future__ import annotations

import pytest

from holdfast.config.read import config_from_mapping
from holdfast.core.redact import Redactor

SCRIPT = """import json, sys
for line in sys.stdin:
    print(json.dumps({"id": 1, "error": {"code": -32601, "message": "it went wrong, could not read that 4711x"}}))
"""


@pytest.mark.requirement("SEC-12", "MSG-6")
def test_a_script_in_an_argument_masks_none_of_the_words_that_a_reason_shares_with_it() -> None:
    token = "q7Zt4Rk9Lw2Xv8Bn5Mj3Hs6D"
    config = config_from_mapping({"mcpServers": {"a": {"command": "sh", "args": ["-c", f"{SCRIPT} -k {token}"]}}})
    (server,) = config.servers.values()
    mask = Redactor(getattr(server, "secrets", ())).mask
    reason = "it went wrong, could not read that: sys.stdin of the server"
    assert mask(reason) == reason
    assert token not in mask(f"rejected {token}")
