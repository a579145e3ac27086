"""Requests made from /openapi.json: valid ones, and ones that break the schema in some place."""

import os
import threading
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import content_type_conformance, load_all_checks, response_schema_conformance

import dygmamba as dm
from live_server import running

TORTURE = bool(os.environ.get("DYGMAMBA_TORTURE"))
EXAMPLES = 760 if TORTURE else 13  # for each of the routes with parameters or a body
DESIGNED = {503, 507}


def count_resources() -> tuple[int, int]:
    """Threads and open files of this process, in which the server runs."""
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.timeout(1800)
def test_no_request_breaks_the_server(mail, tmp_path):
    """For all requests: no 5xx but those of the design, no traceback, problem documents for errors, nothing left."""
    load_all_checks()
    count, sizes, live = 0, [], dm.live(mail, tmp_path / "state", late="90000d")
    with running(lambda: live) as url, requests.Session() as session:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
        for operation in schema.get_all_operations():

            @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
            @given(case=operation.ok().as_strategy())
            def send(case):
                nonlocal count
                count += 1
                response = case.call(session=session)
                assert response.status_code < 500 or response.status_code in DESIGNED, response.text
                assert b"Traceback" not in response.content
                if response.status_code >= 400:
                    assert response.headers["content-type"][0] == "application/problem+json"
                    assert response.json()["code"]
                case.validate_response(
                    response, checks=[content_type_conformance, response_schema_conformance]
                )

            send()
            sizes.append(count_resources())
        assert count >= (5_000 if TORTURE else 80)
        assert requests.get(f"{url}/v2/health/ready", timeout=10).status_code == 200
    assert max(sizes) <= (
        sizes[0][0] + 12,
        sizes[0][1] + 12,
    )  # threads of the pools start when they are first used
