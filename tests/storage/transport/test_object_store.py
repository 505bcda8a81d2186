"""Objects that obstore reads: from a real server of S3, and from nginx as a store."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from conftest import in_child, optional, raises, sample_members, write_tar
from events import LONG_S, wait_for
from loopback import Fault, Page, Request, Server
from objects import KEYS, new_certificate, object_server, part_of
from s3 import Bucket
from servers import free_port
from torch.utils.data import DataLoader

import wids
from wids.cli.main import main
from wids.errors import FetchError, MismatchError, NotFoundError, WidsError
from wids.storage import upload
from wids.storage.download import Download, Expected
from wids.storage.fetch import Fetcher
from wids.storage.ranges import read_all
from wids.storage.transport import store_credentials, store_settings
from wids.storage.transport.admission import admission
from wids.storage.transport.bucket import _asked_region
from wids.storage.transport.object_store import ObjectStores
from wids.storage.transport.request_limit import FIRST_AWAITED
from wids.storage.transport.retry import Attempts, CancelledError, cancelled_by
from wids.storage.transport.store_settings import ObjectLocation
from wids.storage.transport.stream import PastEndError, TransientError

DATA = os.urandom(1 << 20) * 9
URL = "s3://bucket/a.tar"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a store with one bucket and one object."""
    (tmp_path / "www" / "bucket").mkdir(parents=True)
    (tmp_path / "www" / "bucket" / "a.tar").write_bytes(DATA)
    with object_server(tmp_path) as address:
        yield address


def stores(site: str, **options: Any) -> ObjectStores:
    return ObjectStores({**KEYS, "endpoint_url": site, **options})


def test_parts_lengths_and_whole_objects(site: str) -> None:
    """A part has exactly its bytes, a strong tag and the length of the object."""
    transport = stores(site)
    for start, stop in ((0, 1), (7, 99), (5, 6 << 20), (len(DATA) - 3, None), (0, None)):
        stream, data = part_of(transport, URL, start, stop)
        assert data == DATA[start:stop]
        assert (stream.start, stream.total_nbytes) == (start, len(DATA))
        assert stream.tag is not None
        assert stream.tag.startswith('"')
    assert Fetcher(transport.options).head(URL) == (len(DATA), stream.tag)
    with raises(PastEndError, URL):
        part_of(transport, URL, len(DATA), None)


def test_a_key_with_an_empty_part(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read without a driver; its folder cannot be listed, and the error says so."""
    monkeypatch.setattr("wids.storage.transport.object_store._has_driver", lambda _: False)
    body = write_tar(tmp_path / "a.tar", sample_members(0, 3)).read_bytes()
    bucket.system.call_s3("put_object", Bucket=bucket.name, Key="x//a.tar", Body=body)
    options: Any = {"storage_options": bucket.options}
    with wids.ShardListDataset(f"{bucket.url}/x//a.tar", **options) as dataset:
        assert dataset[2][".txt"] == "text 2"
    for name in ("x//", "x//*.tar"):
        with raises(FetchError, f"{bucket.url}/x//: ", 'without "//"', "with braces"):
            wids.ShardListDataset(f"{bucket.url}/{name}", **options)


def test_an_empty_object(bucket: Bucket, site: str, tmp_path: Path) -> None:
    """It has no first byte, whether the store refuses the range or ignores it."""
    (tmp_path / "www" / "bucket" / "empty").write_bytes(b"")
    stream, data = part_of(stores(site), "s3://bucket/empty", 0, 1)
    assert (data, stream.total_nbytes) == (b"", 0)
    bucket.system.pipe(f"{bucket.name}/empty", b"")
    with raises(PastEndError, f"{bucket.url}/empty"):
        part_of(ObjectStores(bucket.options), f"{bucket.url}/empty", 0, 1)
    assert Fetcher(bucket.options).nbytes(f"{bucket.url}/empty") == 0
    assert Fetcher(bucket.options).read_start(f"{bucket.url}/empty", 9).data == b""


def test_a_store_that_sends_whole_objects(tmp_path: Path) -> None:
    """A store without ranges sends all of the object; a part is an error that says so."""
    (tmp_path / "www" / "bucket").mkdir(parents=True)
    (tmp_path / "www" / "bucket" / "a.tar").write_bytes(DATA)
    with object_server(tmp_path, more="max_ranges 0;") as address:
        fetcher = Fetcher(stores(address).options)
        with raises(FetchError, URL, "sends whole files only"):
            fetcher.range_reader(URL, len(DATA))(5, 9)
        assert fetcher.read(URL, len(DATA)) == DATA


def test_a_large_object_arrives_in_pieces(site: str) -> None:
    """A whole object is never in memory at once, and a stream that is dropped reads no further."""
    transport = stores(site, read_timeout="9s")  # an option of obstore
    with transport.open(URL, 0, None, None) as stream:
        sizes = [len(chunk) for chunk in stream.chunks]
    assert sum(sizes) == len(DATA)
    assert max(sizes) <= 2 << 20
    with transport.open(URL, 0, None, None) as stream:
        assert len(next(stream.chunks)) <= 2 << 20


def test_a_large_object_arrives_in_parts(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download requests several parts at a time, also in a forked child.

    How many depends on the speed of the store: at least three for each.
    """
    monkeypatch.setattr(Download, "part_nbytes", len(DATA) // 2 - 1)  # at most
    fetcher = Fetcher({**KEYS, "endpoint_url": site})

    def saves() -> bool:
        file = io.BytesIO()
        fetcher.save(URL, file, Expected(len(DATA), sha256=hashlib.sha256(DATA).hexdigest()))
        return file.getvalue() == DATA

    assert saves()
    assert in_child(saves)
    log = tmp_path / "access.log"
    wait_for(lambda: log.read_text().count('" 206 ') >= 6, "the last line of the log")
    assert '" 200 ' not in log.read_text()


def test_what_obstore_reads_arrives_as_one_stream(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download by obstore is one request, however large the object is."""
    monkeypatch.setattr(Download, "part_nbytes", len(DATA) // 4)
    file = io.BytesIO()
    fetcher = Fetcher({**KEYS, "endpoint_url": site, "read_timeout": "9s"})
    fetcher.save(URL, file, Expected(len(DATA), sha256=hashlib.sha256(DATA).hexdigest()))
    assert file.getvalue() == DATA
    log = tmp_path / "access.log"
    wait_for(lambda: "GET" in log.read_text(), "the line of the log")
    assert log.read_text().count("GET") == log.read_text().count('" 200 ') == 1


def test_an_object_that_is_replaced_between_two_parts(site: str, tmp_path: Path) -> None:
    """The store compares the tag, and the second part is an error (CACHE-30)."""
    reader = Fetcher({**KEYS, "endpoint_url": site}).range_reader(URL, len(DATA))
    assert reader(0, 100) == DATA[:100]
    other = tmp_path / "www" / "bucket" / "b.tar"
    other.write_bytes(bytes(len(DATA)))
    os.utime(other, (1, 1))
    other.replace(tmp_path / "www" / "bucket" / "a.tar")
    with raises(MismatchError, URL, "was replaced while it was being read"):
        reader(100, 200)


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[wids.ShardListDataset]:
    """A dataset in a store, whose samples are read by range."""
    (tmp_path / "www" / "bucket").mkdir(parents=True)
    for number in range(2):
        path = tmp_path / "www" / "bucket" / f"train-{number}.tar"
        write_tar(path, sample_members(number * 10, number * 10 + 10))
    with object_server(tmp_path) as address:
        files = f"{tmp_path}/www/bucket/train-{{0..1}}.tar"
        spec = f"{tmp_path}/www/bucket/train.json"
        assert main(["create", files, "-o", spec, "--base", "s3://bucket/", "-j", "1"]) == 0
        options = {**KEYS, "endpoint_url": address}
        with wids.ShardListDataset(
            "s3://bucket/train.json", access="range", storage_options=options
        ) as dataset:
            yield dataset


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_after_the_parent_has_read(
    dataset: wids.ShardListDataset, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers read what the parent has read, without obstore in either."""
    monkeypatch.setattr(store_settings, "new_store", None)
    assert dataset[3][".txt"] == "text 3"
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context=method, timeout=60
    )
    assert [sample[".txt"] for sample in loader] == [f"text {number}" for number in range(20)]
    assert dataset[19][".txt"] == "text 19"


def test_a_forked_child_reads_ranges_together(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's batch of a bucket has one thread, and errors name the object of each range."""
    fetcher = Fetcher({**KEYS, "endpoint_url": site})
    reader = fetcher.range_reader(URL, len(DATA))
    other = fetcher.range_reader("s3://bucket/none", len(DATA))
    assert reader(3, 9) == DATA[3:9]

    def reads() -> bool:
        monkeypatch.setattr("wids.storage.ranges.in_threads", lambda tasks, _: not tasks)
        spans = [(start, start + 999) for start in range(0, 40_000, 1000)]
        found = read_all([(reader, *span) for span in spans], lambda _, arrived: bytes(arrived))
        assert found == [DATA[start:stop] for start, stop in spans]
        (error,) = read_all([(other, 0, 1)], lambda _, arrived: arrived)
        assert isinstance(error, NotFoundError)
        assert "s3://bucket/none" in str(error)
        assert site not in str(error)
        return True

    assert in_child(reads)


@pytest.mark.parametrize("obstore_is_new", [False, True])
def test_a_forked_child_reads_by_signed_urls(site: str, *, obstore_is_new: bool) -> None:
    """In a child every kind of reading works, with the same tags, and errors name the object."""
    transport = stores(site)
    if not obstore_is_new:
        part_of(transport, URL, 0, 9)
    code = stores(site) if obstore_is_new else transport

    def reads() -> bool:
        stream, data = part_of(code, URL, 5, 99)
        assert data == DATA[5:99]
        assert Fetcher(code.options).head(URL) == (len(DATA), stream.tag)
        with raises(NotFoundError, "s3://bucket/none"):
            part_of(code, "s3://bucket/none", 0, 1)
        return True

    assert in_child(reads)


def test_a_forked_child_does_not_list_with_obstore(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs obstore in a forked child is an error at once, where no driver can do it."""
    transport = stores(site)
    with pytest.raises(FetchError):
        transport.entries("s3://bucket/x/")  # obstore runs in the parent
    monkeypatch.setattr("wids.storage.transport.object_store._has_driver", lambda _: False)

    def lists() -> bool:
        with raises(FetchError, "s3://bucket/x/", "forked", "forkserver"):
            transport.entries("s3://bucket/x/")
        return True

    assert in_child(lists)


def test_keys_that_only_the_network_has_are_an_error_in_a_child(
    site: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A child that can find no keys says so at once, and names the remedies."""
    transport = stores(site)
    with pytest.raises(FetchError):
        transport.entries("s3://bucket/x/")  # obstore runs in the parent
    monkeypatch.setattr("wids.storage.transport.store_credentials._by_botocore", lambda _: None)
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/none")

    def reads() -> bool:
        with raises(FetchError, URL, "can use obstore", "install botocore", "forkserver"):
            part_of(ObjectStores({"endpoint_url": site}), URL, 0, 9)
        return True

    assert in_child(reads)
    assert _part(transport) == DATA[3:9]


def test_ctrl_c_ends_a_wait_for_a_silent_store() -> None:
    """A store that accepts a connection and stays silent keeps nobody waiting after Ctrl-C."""
    optional("obstore")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        site = f"http://127.0.0.1:{listener.getsockname()[1]}"
        code = f"""
from wids.storage.fetch import Fetcher
from wids.storage.ranges import read_all
Fetcher({{**{KEYS!r}, "endpoint_url": "{site}"}}).read("{URL}", 10)
"""
        process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        listener.settimeout(LONG_S)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(3) == b"GET"
            process.send_signal(signal.SIGINT)
            sent_s = time.monotonic()
            _, errors = process.communicate(timeout=LONG_S)
    assert time.monotonic() - sent_s < 10  # the time-out is 15 s
    assert "KeyboardInterrupt" in errors
    assert "Fatal" not in errors
    assert process.returncode not in (0, -signal.SIGABRT)


def test_threads_share_a_store(site: str) -> None:
    """Sixteen threads read parts at the same time, all of them right."""
    reader = Fetcher({**KEYS, "endpoint_url": site}).range_reader(URL, len(DATA))
    wrong: list[int] = []

    def read(number: int) -> None:
        starts = range(number, 1000, 97)
        wrong.extend(at for at in starts if reader(at, at + 5000) != DATA[at : at + 5000])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


ERROR = "add_header x-amz-bucket-region eu-west-1 always; default_type text/xml;"


@pytest.mark.parametrize(
    ("status", "code", "kind", "parts"),
    [
        (503, "SlowDown", TransientError, ["503 SlowDown"]),
        (429, "TooManyRequests", TransientError, ["429"]),
        (500, "InternalError", TransientError, ["500 InternalError"]),
        (400, "Strange", TransientError, ["400 Strange"]),
        (403, "AccessDenied", PermissionError, ["403 AccessDenied", "anon=True", "requester_pays"]),
        (401, "Unauthorized", PermissionError, ["401", "pass key and secret"]),
        (404, "NoSuchBucket", NotFoundError, ["expected the bucket s3://bucket to exist"]),
        (404, "NoSuchKey", NotFoundError, ["not found; check the URL", "storage_options"]),
    ],
)
def test_an_error_names_bucket_key_and_remedy(
    tmp_path: Path, status: int, code: str, kind: type[Exception], parts: list[str]
) -> None:
    """Each refusal is the right error: of wids, with the object, no secret (SEC-4, SEC-61)."""
    more = f"location / {{ {ERROR} return {status} '<Error><Code>{code}</Code></Error>'; }}"
    with object_server(tmp_path, more=more) as address, raises(kind, URL, *parts) as caught:
        part_of(stores(address), URL, 0, 9)
    assert isinstance(caught.value, WidsError)
    assert "not-a-secret" not in str(caught.value)
    assert "Debug source" not in str(caught.value)
    if isinstance(caught.value, TransientError):
        assert caught.value.is_answer
        assert caught.value.is_outage == (status != 400)
        assert caught.value.is_refusal == (status in (429, 503))


def test_a_busy_store_gets_fewer_requests(tmp_path: Path) -> None:
    """SlowDown lowers the limit of admission control, as 503 does by HTTP."""
    more = "location / { return 503 '<Error><Code>SlowDown</Code></Error>'; }"
    with object_server(tmp_path, more=more) as address:
        with raises(FetchError, "503 SlowDown"):
            Fetcher({**KEYS, "endpoint_url": address, "retry_s": 0}).read("s3://slow/a.tar", 9)
    assert admission().server("s3://slow", is_awaited=True).limit.value < FIRST_AWAITED


def test_a_connection_that_fails_is_an_outage() -> None:
    """The error says so, and another attempt may succeed."""
    optional("obstore")
    port = free_port()
    with raises(TransientError, URL, "ConnectionRefused") as caught:
        part_of(stores(f"http://127.0.0.1:{port}"), URL, 0, 9)
    assert (caught.value.is_outage, caught.value.is_answer) == (True, False)  # type: ignore[attr-defined]


@dataclass
class StrictPage(Page):
    """An object of a store that compares region and time of signatures.

    Attributes:
        region: Its region.
        ahead_s: How far the clock of the store is ahead.
        wants_headers: Whether signatures in addresses are forbidden.
    """

    region: str = "eu-west-1"
    ahead_s: float = 0.0
    wants_headers: bool = False

    def answer(
        self, request: Request, fault: Fault | None
    ) -> tuple[int, bytes, int, int, dict[str, str]]:
        refusal = self.refusal(dict(parse_qsl(request.path.partition("?")[2])))
        if refusal is not None and not ("authorization" in request.headers and self.wants_headers):
            status, code = refusal
            document = f"<Error><Code>{code}</Code><Region>{self.region}</Region></Error>"
            fault = Fault(status, body=document.encode())
        elif request.headers.get("if-match", self.tag) != self.tag:
            fault = Fault(412)
        return super().answer(request, fault)

    def refusal(self, query: dict[str, str]) -> tuple[int, str] | None:
        """Return why a request is refused, or None."""
        if self.wants_headers or "X-Amz-Signature" not in query:
            return 403, "AccessDenied"
        if query["X-Amz-Credential"].split("/")[2] != self.region:
            return 400, "AuthorizationQueryParametersError"
        date = datetime.strptime(query["X-Amz-Date"] + "+0000", "%Y%m%dT%H%M%SZ%z")
        age_s = time.time() + self.ahead_s - date.timestamp()
        return None if 0 <= age_s < int(query["X-Amz-Expires"]) else (403, "AccessDenied")


@pytest.fixture
def strict(server: Server, monkeypatch: pytest.MonkeyPatch) -> StrictPage:
    """The object of a strict store."""
    optional("obstore")
    page = StrictPage(DATA)
    server.pages["/bucket/a.tar"] = page
    monkeypatch.setattr(
        server.http.RequestHandlerClass,
        "date_time_string",
        lambda *_: formatdate(time.time() + page.ahead_s, usegmt=True),
        raising=False,
    )
    return page


def read_both(fetcher: Fetcher, server: Server) -> list[int]:
    """Read parts one at a time and together; return how many requests that took."""
    reader, counts = fetcher.range_reader(URL, len(DATA)), []
    for spans in ([(3, 9)], [(at, at + 99) for at in range(0, 1 << 20, 1 << 16)]):
        num_before = len(server.log)
        found = read_all([(reader, *span) for span in spans], lambda _, arrived: bytes(arrived))
        assert found == [DATA[start:stop] for start, stop in spans]
        counts.append(len(server.log) - num_before)
    return counts


@pytest.mark.parametrize("hours", [-2, 2])
def test_clocks_that_differ(server: Server, strict: StrictPage, hours: int) -> None:
    """A signature of the future or of the past is made again once, by the clock of the store."""
    fetcher = Fetcher({**KEYS, "endpoint_url": server.url})
    assert read_both(fetcher, server) == [1, 16]
    assert len(set(server.requests)) == 1  # signed once for all parts
    strict.ahead_s = hours * 3600
    assert read_both(fetcher, server) == [2, 16]  # once more
    assert len(set(server.requests)) == 2


@pytest.mark.usefixtures("strict")
def test_a_machine_that_was_suspended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its monotonic clock stood still, and the signature has expired."""
    fetcher = Fetcher({**KEYS, "endpoint_url": server.url})
    assert read_both(fetcher, server) == [1, 16]
    now_s = time.time
    monkeypatch.setattr(time, "time", lambda: now_s() + 7200)
    assert read_both(fetcher, server) == [1, 16]
    assert len(set(server.requests)) == 2


def test_a_policy_that_forbids_signatures_in_addresses(server: Server, strict: StrictPage) -> None:
    """Then obstore reads, by headers; where nobody may read, that is an error."""
    strict.wants_headers = True
    fetcher = Fetcher({**KEYS, "endpoint_url": server.url})
    assert read_both(fetcher, server) == [2, 16]
    server.page("/bucket/b.tar", b"", always=Fault(403))
    with raises(PermissionError, "s3://bucket/b.tar", "403"):
        fetcher.head("s3://bucket/b.tar")
    assert "X-Amz" not in "".join(server.requests[2:])


def test_a_store_without_tags(server: Server) -> None:
    """A date is a version too, but none that If-Match takes."""
    optional("obstore")

    class Dated(Page):
        def answer(self, request: Request, fault: Fault | None) -> Any:
            fault = Fault(412) if "if-match" in request.headers else fault
            status, body, start, stop, headers = super().answer(request, fault)
            return status, body, start, stop, {**headers, "Last-Modified": formatdate(1)}

    server.pages["/bucket/a.tar"] = Dated(DATA, has_tag=False)
    assert read_both(Fetcher({**KEYS, "endpoint_url": server.url}), server) == [1, 16]


@pytest.mark.usefixtures("strict")
def test_an_object_that_is_replaced_while_its_first_part_arrives(server: Server) -> None:
    """The part is read again; the store still counts as one that sends parts."""
    new = bytes(len(DATA))

    class Replaced(StrictPage):
        def next_fault(self, request: Request) -> Fault | None:
            fault = super().next_fault(request)
            if "if-match" in request.headers:
                self.body = new
            return fault

    server.pages["/bucket/a.tar"] = Replaced(DATA, faults=[Fault(after_nbytes=5)])
    fetcher = Fetcher({**KEYS, "endpoint_url": server.url})
    reader = fetcher.range_reader("s3://bucket/a.tar", len(DATA))
    assert reader(100, 109) == new[:9]
    assert fetcher.sends_parts("s3://bucket/a.tar")


def test_a_store_that_says_when_to_ask_again(
    server: Server, strict: StrictPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Retry-After is heard."""
    waited_s, failed = list[float | None](), Attempts.failed

    def noted(attempts: Attempts, error: TransientError, *args: Any) -> float:
        waited_s.append(error.wait_s)
        return 0.0 * failed(attempts, error, *args)

    monkeypatch.setattr(Attempts, "failed", noted)
    strict.faults = [Fault(503, headers={"Retry-After": "7"})]
    assert read_both(Fetcher({**KEYS, "endpoint_url": server.url}), server) == [2, 16]
    assert waited_s == [7]


def test_keys_that_a_store_does_not_know(server: Server, strict: StrictPage) -> None:
    """The error says what to pass, at once and without the keys."""
    strict.refusal = lambda _: (403, "InvalidAccessKeyId")  # type: ignore[method-assign]
    wrong = {"endpoint_url": server.url, "key": "wrong-key", "secret": "wrong-secret"}
    with raises(FetchError, URL, "found: 403", "WIDS_STORAGE_OPTIONS") as caught:
        wids.build_spec([URL], storage_options=wrong)
    assert "wrong-" not in str(caught.value)
    assert "tried" not in str(caught.value)


def test_what_only_obstore_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that it has to find, options of its client, and some names (docs)."""
    optional("obstore")
    monkeypatch.setattr(store_credentials, "_by_botocore", lambda _: None)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/none")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert ObjectStores({"anon": False}).by_http(URL) is None
    assert stores("http://s").by_http(URL) is not None
    assert stores("http://s").by_http("s3://data--use1-az4--x-s3/a.tar") is None
    assert stores("http://s").by_http("s3://bucket/a/../b.tar") is None
    assert stores("http://s", proxy_url="http://p").by_http(URL) is None
    assert stores("http://s", server_side_encryption="sse-c").by_http(URL) is None
    role = {"role_arn": "arn:aws:iam::1:role/r", "web_identity_token_file": "/none"}
    assert ObjectStores(role).by_http(URL) is None


def test_keys_that_are_renewed(
    server: Server, strict: StrictPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address is signed again with the next keys, and has the session and who pays."""
    names = iter("AAB")
    provide = lambda: {"access_key_id": next(names), "secret_access_key": "s", "token": "t/+"}  # noqa: E731
    monkeypatch.setattr(store_credentials, "of_aws", lambda *_: ({}, provide))
    transport = stores(server.url, requester_pays=True)
    queries = [
        dict(parse_qsl(transport.by_http(URL).address(URL).partition("?")[2]))  # type: ignore[union-attr]
        for _ in range(3)
    ]
    assert [query["X-Amz-Credential"][0] for query in queries] == ["A", "A", "B"]
    assert queries[0] == queries[1]
    assert queries[0]["X-Amz-Security-Token"] == "t/+"
    assert queries[0]["x-amz-request-payer"] == "requester"
    assert strict.refusal(queries[2]) is None


def test_a_redirect_does_not_take_a_signature_along(server: Server, strict: StrictPage) -> None:
    """Another server gets the request without what this one was sent."""
    other = Server()
    other.page("/a.tar", DATA)
    strict.answer = lambda request, _: (  # type: ignore[method-assign]
        *(307, b"", 0, 0),
        {"Location": f"{other.url}/a.tar?v=1&{request.path.partition('?')[2]}"},
    )
    try:
        read_both(Fetcher({**KEYS, "endpoint_url": server.url}), server)
        assert set(other.requests) == {"/a.tar?v=1"}
    finally:
        other.close()


@pytest.mark.parametrize("answer", ["redirect", "malformed", "parameters"])
def test_the_region_of_a_bucket_is_found(server: Server, strict: StrictPage, answer: str) -> None:
    """A request for another region is repeated for the one that the store states."""
    strict.region = "us-west-2"
    if answer != "parameters":
        code = {"redirect": "PermanentRedirect", "malformed": "AuthorizationHeaderMalformed"}
        strict.refusal = lambda query: (  # type: ignore[method-assign]
            None if "us-west-2" in query["X-Amz-Credential"] else (301, code[answer])
        )
    assert read_both(Fetcher({**KEYS, "endpoint_url": server.url}), server) == [2, 16]


def test_a_question_for_a_region_can_be_cancelled() -> None:
    """Then the read was cancelled, and not its region wrong."""
    is_over = threading.Event()
    is_over.set()
    with socket.create_server(("127.0.0.1", 0)) as silent, cancelled_by(is_over):
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with raises(CancelledError, "cancelled"):
            _asked_region(ObjectLocation("s3", "bucket", "", "a.tar"), endpoint)


def test_names_with_odd_characters(bucket: Bucket) -> None:
    """Keys are taken as they are written, in reading, listing and writing."""
    names = ["a b.tar", "a%20b.tar", "a+b.tar", "a#b.tar", "ä.tar", "(1)=&@.tar"]
    transport = ObjectStores(bucket.options)
    for name in names:
        with upload.publishing(f"{bucket.url}/x/{name}", storage_options=bucket.options) as file:
            file.write(name.encode())
    assert bucket.names() == sorted(f"x/{name}" for name in names)
    assert sorted(entry.name for entry in transport.entries(f"{bucket.url}/x/")) == sorted(names)
    for name in names:
        assert part_of(transport, f"{bucket.url}/x/{name}", 0, None)[1] == name.encode()

    def reads() -> bool:
        for name in names:
            assert part_of(transport, f"{bucket.url}/x/{name}", 0, None)[1] == name.encode()
        return True

    assert in_child(reads)


def test_listings(bucket: Bucket) -> None:
    """A folder has its files with their lengths and its folders, and no more than these."""
    for name in ("x/", "x/a.tar", "x/y/b.tar", "xy/c.tar", "d.tar"):
        bucket.system.pipe(f"{bucket.name}/{name}", name.encode())
    transport = ObjectStores(bucket.options)
    found = {(e.name, e.nbytes, e.is_folder) for e in transport.entries(f"{bucket.url}/x/")}
    assert found == {("a.tar", 7, False), ("y", None, True)}
    assert {entry.name for entry in transport.entries(bucket.url)} == {"x", "xy", "d.tar"}
    with raises(NotFoundError, f"{bucket.url}/z/: no such folder"):
        transport.entries(f"{bucket.url}/z/")
    with raises(NotFoundError, "s3://no-such-bucket/z/"):
        transport.entries("s3://no-such-bucket/z/")


def test_an_option_without_a_counterpart(bucket: Bucket) -> None:
    """It is an error that says so, unless the fsspec driver is asked for."""
    optional("obstore")
    bucket.system.pipe(f"{bucket.name}/a.tar", DATA)
    url = f"{bucket.url}/a.tar"
    options = {**bucket.options, "version_aware": True}
    with raises(FetchError, url, "found 'version_aware'", 'driver="fsspec"'):
        Fetcher(options).nbytes(url)
    fetcher = Fetcher({**options, "driver": "fsspec"})
    assert fetcher.range_reader(url, len(DATA))(3, 9) == DATA[3:9]
    assert fetcher.nbytes(url) == len(DATA)
    with raises(FetchError, url, "expected obstore or fsspec, found 'boto'"):
        part_of(ObjectStores({**options, "driver": "boto"}), url, 0, 9)
    assert ObjectStores({**bucket.options, "driver": "fsspec"}).driver(url) is not None
    assert ObjectStores(bucket.options).driver(url) is None


@pytest.mark.parametrize("has_driver", [pytest.param(True, marks=pytest.mark.long), False])
def test_without_obstore(bucket: Bucket, *, has_driver: bool) -> None:
    """The fsspec driver reads, if it is installed; else the error names the extra."""
    bucket.system.pipe(f"{bucket.name}/a.tar", b"0123456789")
    missing = "" if has_driver else "sys.modules['s3fs'] = None; "
    code = f"""
import sys; sys.modules['obstore'] = None; {missing}
from wids.errors import FetchError
from wids.storage import fetch
try:
    print(fetch.Fetcher().read({bucket.url + "/a.tar"!r}, 10))
except FetchError as error:
    print(error)
"""
    environment = {**os.environ, **bucket.environment()}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert ("b'0123456789'" if has_driver else "pip install 'wids[s3]'") in done.stdout


def test_a_private_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate of one's own is trusted if an option or a variable names it, and else not."""
    (tmp_path / "www" / "bucket").mkdir(parents=True)
    (tmp_path / "www" / "bucket" / "a.tar").write_bytes(DATA)
    certificate = new_certificate(tmp_path)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    with object_server(tmp_path, certificate=certificate) as address:
        with raises(FetchError, URL, "expected a certificate that is trusted") as caught:
            part_of(stores(address), URL, 0, 9)
        assert not isinstance(caught.value, TransientError)
        verify = {**KEYS["client_kwargs"], "verify": f"{tmp_path}/only.pem"}  # type: ignore[dict-item]
        for transport in (
            stores(address, client_kwargs=verify),
            stores(address, client_kwargs={**verify, "verify": False}),
        ):
            assert _part(transport) == DATA[3:9]
        monkeypatch.setenv("AWS_CA_BUNDLE", f"{tmp_path}/only.pem")
        transport = stores(address)
        assert _part(transport) == DATA[3:9]
        assert in_child(lambda: _part(transport) == DATA[3:9])


def test_a_proxy(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go through the proxy that the environment or an option names."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, site)
    assert _part(stores("http://store.invalid")) == DATA[3:9]
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name)
    assert _part(stores("http://store.invalid", proxy_url=site)) == DATA[3:9]


@pytest.mark.long
def test_spawned_processes_get_a_store_of_their_own(site: str) -> None:
    """The transport can be pickled after it was used."""
    transport = stores(site)
    _part(transport)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_part, (transport,)) == DATA[3:9]


def _part(transport: ObjectStores) -> bytes:
    return part_of(transport, URL, 3, 9)[1]
