"""The web application: addresses to pages, pages to HTML."""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any, Final

import jinja2
import uvicorn
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from postmaster.errors import CannotCreate, PostmasterError
from postmaster.office import Office
from postmaster.printable import printable
from postmaster.screen import links
from postmaster.screen.flow import utc
from postmaster.screen.guard import Door, Guard
from postmaster.screen.news import News
from postmaster.screen.office_view import OfficeView
from postmaster.screen.seen import Seen
from postmaster.screen.threads import map_data, timeline_data
from postmaster.screen.views import Data, NotThere, Query, Views

_HERE: Final = os.path.dirname(__file__)
_LONGEST_QUERY: Final = 200
_MOST_PAGES: Final = 10**7


def _harmless(value: Any) -> Any:
    """Make every text that a template writes harmless to look at; what is HTML already is left as it is."""
    return printable(value, keep="\u00a0\u3000") if isinstance(value, str) and not hasattr(value, "__html__") else value


def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(os.path.join(_HERE, "templates"))
    made = jinja2.Environment(
        loader=loader, autoescape=True, finalize=_harmless, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    made.globals["links"] = links
    made.filters["utc"] = utc
    return made


class Screen:
    """The pages of one office, as an ASGI application (`app`)."""

    def __init__(self, office: Office, door: Door) -> None:
        self.view = OfficeView(office)
        self.view.index.refresh()
        self.seen = Seen(office)
        self.views = Views(self.view, self.seen)
        self.news = News(office, self.view.index, self.view.inboxes)
        self._templates = _environment()
        routes = [
            Route("/", self._page(lambda request, query: {})),
            Route("/box/{agent}", self._page(self._box)),
            Route("/box/{agent}/{name}", self._page(self._message)),
            Route("/outbox", self._page(lambda request, query: {"list": self.views.outbox(query)})),
            Route("/outbox/{name:path}", self._page(self._waiting)),
            Route("/dead", self._page(lambda request, query: {"list": self.views.dead(query)})),
            Route("/dead/{name}", self._page(self._dead)),
            Route("/flows", self._page(lambda request, query: {"list": self.views.flows(query)})),
            Route("/flow", self._page(self._flow)),
            Route("/flow.json", self._flow_json),
            Route("/map", self._page(lambda request, query: {"map": map_data(self.view)})),
            Route("/map.json", lambda request: JSONResponse(map_data(self.view))),
            Route("/events", self._events),
            Route("/version", self._version),
            Mount("/static", StaticFiles(directory=os.path.join(_HERE, "static"))),
        ]
        handlers: Any = {404: self._missing, PostmasterError: self._fault}
        self.app = Guard(Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers), door)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.news.start()
        yield
        self.news.stop()
        self.seen.close()

    # -- pages

    def _page(self, find: Callable[[Request, Query], Data]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            self.view.index.refresh()
            try:
                return self._html(request, find(request, _query(request)))
            except NotThere as fault:
                return self._html(request, {"missing": str(fault)}, status=404)

        return answer

    def _html(self, request: Request, data: Data, status: int = 200) -> Response:
        depth = 2 if data.keys() & {"open", "map", "missing"} else 1 if "list" in data else 0
        page = {"list": None, "open": None, "map": None, "missing": None, "depth": depth, **data}
        page["side"] = self.views.sidebar(request.url.path)
        page["version"] = self.news.version
        html = self._templates.get_template("page.html").render(page)
        return HTMLResponse(Markup(html), status_code=status)  # noqa: S704 - made by the template, which escapes

    def _box(self, request: Request, query: Query) -> Data:
        return {"list": self.views.mailbox(self.views.find_box(request.path_params["agent"]), query)}

    def _message(self, request: Request, query: Query) -> Data:
        box = self.views.find_box(request.path_params["agent"])
        opened = self.views.message(box, request.path_params["name"], query, mark=_is_opened(request))
        return {"list": self.views.mailbox(box, query), "open": opened, "selected": request.path_params["name"]}

    def _waiting(self, request: Request, query: Query) -> Data:
        name = request.path_params["name"]
        opened = self.views.waiting_letter(name, query, mark=_is_opened(request))
        return {"list": self.views.outbox(query), "open": opened, "selected": name}

    def _dead(self, request: Request, query: Query) -> Data:
        name = request.path_params["name"]
        opened = self.views.dead_letter(name, query, mark=_is_opened(request))
        return {"list": self.views.dead(query), "open": opened, "selected": name}

    def _flow(self, request: Request, query: Query) -> Data:
        name = request.query_params.get("name", "")
        return {"open": self.views.flow(name, query), "list": self.views.flows(query), "selected": name}

    # -- data

    def _flow_json(self, request: Request) -> Response:
        self.view.index.refresh()
        return JSONResponse(timeline_data(self.view, request.query_params.get("name", "")))

    async def _events(self, _: Request) -> Response:
        return StreamingResponse(self.news.events(), media_type="text/event-stream")

    async def _version(self, _: Request) -> Response:
        return PlainTextResponse(str(self.news.version))

    def _missing(self, request: Request, _: Exception) -> Response:
        return self._html(request, {"missing": "There is no such page. The list on the left leads everywhere."}, 404)

    def _fault(self, request: Request, fault: Exception) -> Response:
        return self._html(request, {"missing": str(fault)}, 500)


def _is_opened(request: Request) -> bool:
    """Tell whether somebody looks: not a browser that fetches ahead, and not our own reload."""
    ahead = request.headers.get("sec-purpose") or request.headers.get("x-postmaster-reload")
    return request.method == "GET" and not ahead


def _query(request: Request) -> Query:
    asked = request.query_params

    def number(key: str) -> int:
        text = asked.get(key, "1")
        return min(int(text), _MOST_PAGES) if text.isascii() and text.isdigit() and len(text) < 9 else 1

    texts = {key: asked.get(key, "")[:_LONGEST_QUERY] for key in ("q", "reason", "form")}
    return Query(page=number("page"), part=number("part"), **texts)


class _Server(uvicorn.Server):
    """The server, which ends the streams of news first: it would wait for them."""

    def __init__(self, config: uvicorn.Config, news: News) -> None:
        super().__init__(config)
        self._news = news

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End, as a signal asks."""
        self._news.end()
        super().handle_exit(sig, frame)


def serve(office: Office, door: Door, port: int, on_ready: Callable[[int], None]) -> int | None:
    """Serve the pages until SIGTERM or Ctrl-C; return which signal it was.

    Args:
        port: 0 for one that is free.
        on_ready: called with the port once browsers can connect.

    Raises:
        CannotCreate: the port cannot be had.
    """
    family = socket.AF_INET6 if ":" in door.host else socket.AF_INET
    # Named as TCP, or asyncio does not turn off Nagle's algorithm, and each answer waits 40 ms for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((door.host, port))
    except OSError as fault:
        listening.close()
        raise CannotCreate(f"{door.host} port {port}: {fault.strerror or fault}; name another with --port") from fault
    screen = Screen(office, door)
    config = uvicorn.Config(
        screen.app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        lifespan="on",
    )
    listening.listen(128)
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # the server takes them, and hands them on when it has ended
        signal.signal(number, lambda sent, _: received.append(sent))
    on_ready(listening.getsockname()[1])
    sys.stdout.flush()
    _Server(config, screen.news).run(sockets=[listening])
    return received[0] if received else None
