"""The files of the page, and the endpoints that serve them.

The files are read once. Their entity tags are digests, so a browser that has a file asks for it again with an answer of
304. The policies in the headers permit scripts, styles and requests of this server only, no frames, and no conversion
of text to HTML or script.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import attrs

from broker.blocking import blocking
from broker.core.errors import Reason
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import CACHE, Request, Response, is_current, not_modified
from broker.rest.problem import Problem

FOLDER = Path(__file__).parent / "page" / "static"
INDEX = "index.html"

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types by suffix; files of other types are not served."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The Content-Security-Policy (https://www.w3.org/TR/CSP3/). The page makes all elements itself and inserts texts as
text nodes; trusted types turn every other way of inserting into an error."""

# The transport adds X-Content-Type-Options and Cross-Origin-Resource-Policy to every answer.
HEADERS = (
    CACHE,
    ("Content-Security-Policy", POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)


@attrs.frozen(eq=False)
class File:
    """A file of the page: its bytes, its media type, and its entity tag."""

    data: bytes
    content_type: str
    tag: str

    def response(self, request: Request) -> Response:
        """Return the file, or 304 for a current copy."""
        if is_current(request, self.tag):
            return not_modified(self.tag)
        return Response(200, self.data, self.content_type, [("ETag", self.tag), *HEADERS])


@cache
@blocking
def files() -> dict[str, File]:
    """Return all files by name."""
    return {path.name: _file(path) for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}


@blocking
def _file(path: Path) -> File:
    data = path.read_bytes()
    return File(data, TYPES[path.suffix], f'"{sha256(data).hexdigest()[:32]}"')


@cache
def endpoints() -> Sequence[Endpoint]:
    """Return the endpoints of the page. They need no right: the files have no data of the farm."""
    found = files()

    def page(call: Call) -> Response:
        return found[INDEX].response(call.request)

    def asset(call: Call) -> Response:
        file = found.get(call.path["file"])
        if file is None:
            raise Problem(404, "the page has no such file", Reason.UNKNOWN_TARGET)
        return file.response(call.request)

    statuses = {304: "the client's copy is current"}
    return [
        Endpoint(
            "GET",
            "/",
            "get_page",
            "Returns the page for operators.",
            page,
            operation=None,
            tag="page",
            statuses=statuses,
        ),
        Endpoint(
            "GET",
            "/assets/{file}",
            "get_page_file",
            "Returns a file of the page.",
            asset,
            operation=None,
            tag="page",
            statuses=statuses,
        ),
    ]
