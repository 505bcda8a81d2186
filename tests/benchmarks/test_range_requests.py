"""The benchmark of requests by HTTP works, at toy size; it starts nginx itself."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import range_requests
from conftest import need


@pytest.mark.long
def test_all_clients_are_measured() -> None:
    need(shutil.which("nginx") and range_requests.ECHO.exists(), "nginx (Debian: nginx-light)")
    command = [sys.executable, range_requests.__file__, "--toy", "--rounds", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not result.stderr
    head, *rows = result.stdout.splitlines()
    assert head.split()[-4:] == ["wids", "obstore", "aiohttp", "urllib3"]
    assert [row.split("  ")[0] for row in rows] == [
        "plain, first batch",
        "plain",
        "TLS, first batch",
        "TLS",
        "TLS, 50 ms, first batch",
        "TLS, 50 ms",
    ]
    for row in rows[4:]:  # whoever reads one range after another takes 3 s
        clocks = list(map(float, row.split()[-7::2]))
        assert all(1e3 * range_requests.DELAY_S <= clock < 2000 for clock in clocks)
