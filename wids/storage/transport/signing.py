"""Sign URLs for S3: version 4 of its signatures, in the query.

Only the method, the host, the path and the query are signed, so one URL is for any range of an
object. Nothing else is needed than keys: no package, no thread, no request.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import NamedTuple
from urllib.parse import quote

from wids.storage.transport.connections import split_url


class AwsKeys(NamedTuple):
    """Credentials of AWS.

    Attributes:
        access_key_id: The name of the key.
        secret_access_key: The key.
        session_token: What temporary credentials have besides; or None.
    """

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return "AwsKeys(…)"


def signed(url: str, keys: AwsKeys, region: str, date_s: float, life_s: int, **more: str) -> str:
    """Return a URL that may be requested by GET for a while.

    Args:
        url: The object, percent-encoded and without a query.
        keys: Credentials.
        region: That of the bucket.
        date_s: The Unix time from which it is good.
        life_s: For how many seconds.
        more: Parameters that are signed too, with underscores for hyphens.
    """
    address, path = split_url(url)
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(date_s))
    scope = [date[:8], region, "s3", "aws4_request"]
    parameters = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": "/".join([keys.access_key_id, *scope]),
        "X-Amz-Date": date,
        "X-Amz-Expires": str(life_s),
        "X-Amz-SignedHeaders": "host",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    if keys.session_token:
        parameters["X-Amz-Security-Token"] = keys.session_token
    query = "&".join(f"{name}={quote(parameters[name], '~')}" for name in sorted(parameters))
    request = f"GET\n{path}\n{query}\nhost:{address.host_header}\n\nhost\nUNSIGNED-PAYLOAD"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{keys.secret_access_key}".encode()
    for text in (*scope, "\n".join(["AWS4-HMAC-SHA256", date, "/".join(scope), digest])):
        key = hmac.digest(key, text.encode(), "sha256")
    return f"{url}?{query}&X-Amz-Signature={key.hex()}"
