"""Who may ask, and what a browser may do with the answer: the one door in front of every page."""

import hashlib
import ipaddress
import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

COOKIE: Final = "postmaster-screen"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


def is_loopback(host: str) -> bool:
    """Tell whether a host to listen on is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Door:
    """What is asked of a request.

    Attributes:
        host: what we listen on. A page that had its own name point to us (DNS rebinding) names another in `Host`.
        token: what must be known to look; None: nothing.
    """

    host: str
    token: str | None = None

    def admits_host(self, header: str) -> bool:
        """Tell whether a Host header names us. A port does not matter: one may be forwarded."""
        name = header.lower()
        name = name.partition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]
        if name in _LOOPBACK or name.strip("[]") == self.host.lower():
            return True
        if is_loopback(self.host):
            return False
        try:
            ipaddress.ip_address(name.strip("[]"))  # an address is nobody's name
        except ValueError:
            return False
        return True

    def admits_cookie(self, header: str) -> bool:
        """Tell whether a Cookie header proves that the token is known. Takes the same time whatever is wrong."""
        if self.token is None:
            return True
        try:
            found = SimpleCookie(header).get(COOKIE)
        except CookieError:
            found = None
        return secrets.compare_digest((found.value if found else "").encode(), self.proof().encode())

    def admits_token(self, given: str) -> bool:
        """Tell whether this is the token, in constant time."""
        return self.token is not None and secrets.compare_digest(given.encode(), self.token.encode())

    def proof(self) -> str:
        """Return what the cookie holds: not the token itself."""
        return hashlib.sha256(b"postmaster screen\0" + (self.token or "").encode()).hexdigest()


class Guard:
    """ASGI middleware: asks at the door, allows looking only, and puts the rules for the browser on every answer."""

    def __init__(self, app: Any, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_rules(event: dict[str, Any]) -> None:
            if event["type"] == "http.response.start":
                headers = list(event.get("headers", ()))
                names = {name.lower() for name, _ in headers}
                headers += _HEADERS
                if b"cache-control" not in names:
                    headers.append((b"cache-control", b"no-store"))
                event = {**event, "headers": headers}
            await send(event)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, with_rules)
            return
        status, text, headers = refusal
        headers = [*headers, (b"content-type", b"text/plain; charset=utf-8")]
        await with_rules({"type": "http.response.start", "status": status, "headers": headers})
        await with_rules({"type": "http.response.body", "body": text.encode() + b"\n"})

    def _refusal(self, scope: dict[str, Any]) -> tuple[int, str, list[tuple[bytes, bytes]]] | None:
        headers: dict[bytes, str] = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if not self._door.admits_host(headers.get(b"host", "")):
            return 421, "This is not the host that the page is served for: open the address that was printed.", []
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "This page only shows: GET and HEAD.", [(b"allow", b"GET, HEAD")]
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given and self._door.admits_token(given[-1]):
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            path = "/" + scope.get("raw_path", b"/").decode("latin-1").partition("?")[0].lstrip("/\\")
            cookie = f"{COOKIE}={self._door.proof()}; Path=/; HttpOnly; SameSite=Strict"
            where = path + (f"?{rest}" if rest else "")
            return 303, "", [(b"location", where.encode("latin-1")), (b"set-cookie", cookie.encode())]
        if not self._door.admits_cookie(headers.get(b"cookie", "")):
            return 401, "Open the address with `?token=` that `postmaster screen` printed when it started.", []
        return None
