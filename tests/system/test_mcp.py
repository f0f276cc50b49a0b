"""The tools for agents, asked by the SDK's own client over stdio: what each does, refuses, and never does."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support import POSTMASTER, Box, letter

pytest.importorskip("mcp")
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

CREW = """\
plugin: crew
agents:
  - id: crew.worker
    address: worker@crew.internal
    instances: {{max: 3}}
    nudge: [/bin/sh, -c, "echo {{agent}} >> {told}"]
    accepts: [{{type: job.*, accepts_from: ["*"]}}]
    emits: [{{type: job.done, to: boss@crew.internal}}]
  - id: crew.boss
    address: boss@crew.internal
    accepts: [{{type: job.*, accepts_from: ["*"]}}]
    emits: [{{type: job.run, to: role:builder}}]
"""


@pytest.fixture
def crew(box: Box) -> Box:
    """An office with a boss, and a class whose instances are nudged by a line in a file."""
    box.init()
    box.declare("crew", CREW.format(told=box.world / "scratch" / "told"))
    box.merge()
    return box


@asynccontextmanager
async def client(box: Box, *arguments: str, env: dict[str, str] | None = None) -> AsyncIterator[Client]:
    """Start the installed command, and talk to it as an agent program does."""
    command, *rest = POSTMASTER
    words = [*rest, "--root", str(box.root), "mcp", *arguments]
    with (box.world / "scratch" / "stderr").open("a") as errors:
        server = stdio_client(StdioServerParameters(command=command, args=words, env=env or {}), errors)
        async with Client(server) as there:
            yield there


async def ask(there: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool that must succeed; return its structured answer, of which the text says the same."""
    done = await there.call_tool(tool, arguments)
    text = done.content[0].text  # type: ignore[union-attr]
    assert not done.is_error, text
    assert done.structured_content is not None
    body, _, count = text.rpartition("\n\n")
    assert json.loads(body) == done.structured_content
    assert count == f"Unread: {done.structured_content['unread']}"
    return dict(done.structured_content)


async def refused(there: Client, tool: str, **arguments: Any) -> str:
    """Call a tool that must fail; return what it says."""
    done = await there.call_tool(tool, arguments)
    text: str = done.content[0].text  # type: ignore[union-attr]
    assert done.is_error, text
    assert "Traceback" not in text
    return text


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a conversation that ends within a minute."""
    asyncio.run(asyncio.wait_for(body(), 60))


def test_two_agents_talk(crew: Box) -> None:
    """One sends; the other is nudged, reads and answers; the first gets the answer by waiting."""

    async def talk() -> None:
        async with client(crew, "--as", "boss@crew.internal") as boss, client(crew) as worker:
            claimed = await ask(worker, "mail_register", agent_class="crew.worker", name="ann", roles=["builder"])
            assert (claimed["address"], claimed["roles"]) == ("ann@crew.internal", ["builder"])
            sent = await ask(
                boss, "mail_send", to=["role:builder"], type="job.run", subject="Build", body="Please build.\n"
            )
            assert (sent["state"], sent["outcomes"][0]["agent"]) == ("delivered", "crew.worker+ann")
            assert (crew.world / "scratch" / "told").read_text() == "crew.worker+ann\n"
            answer = asyncio.create_task(ask(boss, "mail_wait", seconds=20, answer_to=sent["id"]))
            there = await ask(worker, "mail_wait", seconds=20)
            assert there["came"] and there["unread"] == 1
            opened = await ask(worker, "mail_read", message=there["messages"][0]["id"][:8])
            assert (opened["body"], opened["unread"]) == ("Please build.\n", 1)
            done = await ask(worker, "mail_reply", message=opened["file"], body="Built.\n", acknowledge=True)
            assert done["state"] == "delivered" and done["acknowledged"] == opened["file"] and done["unread"] == 0
            came = await answer
            assert [row["from"] for row in came["messages"]] == ["ann@crew.internal"]
            assert came["messages"][0]["in_reply_to"] == sent["id"]
            story = await ask(boss, "mail_flow", correlation_id=sent["correlation_id"])
            assert [line["action"] for line in story["lines"]] == ["delivered", "delivered", "read"]
            acked = await ask(boss, "mail_ack", messages=[came["messages"][0]["file"]])
            assert acked["unread"] == 0 and not acked["messages"][0]["already"]
            assert (await ask(boss, "mail_ack", messages=[came["messages"][0]["file"]]))["messages"][0]["already"]
            assert (await ask(boss, "mail_list"))["messages"] == []
            assert len((await ask(boss, "mail_list", include_read=True))["messages"]) == 1

    run(talk)
    assert crew.run("verify").returncode == 0
    assert (crew.world / "scratch" / "stderr").read_text() == ""


def test_waiting_does_not_hold_up_the_rest(crew: Box) -> None:
    async def talk() -> None:
        async with client(crew, "--as", "crew.boss") as boss:
            waiting = asyncio.create_task(ask(boss, "mail_wait", seconds=30))
            await asyncio.sleep(0.2)
            assert (await ask(boss, "mail_list"))["unread"] == 0
            assert not waiting.done()
            crew.drop("m.md", letter(to="boss@crew.internal"))
            crew.route()
            assert (await waiting)["came"]
            assert not (await ask(boss, "mail_wait", seconds=0, answer_to="f" * 32))["came"]

    run(talk)


def test_who_has_no_mailbox_is_told_how_to_get_one(crew: Box) -> None:
    """Before registering nothing can be read or sent; a second name, a taken one and a full class are refused."""

    async def talk() -> None:
        async with client(crew) as one, client(crew) as two:
            calls: dict[str, dict[str, Any]] = {
                "mail_list": {},
                "mail_read": {"message": "abcd"},
                "mail_ack": {"messages": ["abcd"]},
                "mail_wait": {"seconds": 0},
                "mail_send": {"to": ["boss@crew.internal"], "type": "job.run", "subject": "s", "body": "b"},
                "mail_reply": {"message": "abcd", "body": "b"},
            }
            for tool, arguments in calls.items():
                text = await refused(one, tool, **arguments)
                assert "mail_register" in text and text.endswith("\n\nUnread: 0")
            seen = await ask(one, "mail_directory")
            assert [(who["id"], who["is_class"]) for who in seen["agents"]] == [
                ("crew.boss", False),
                ("crew.worker", True),
            ]
            await ask(one, "mail_register", agent_class="worker@crew.internal", name="ann")
            assert "already" in await refused(one, "mail_register", agent_class="crew.worker")
            assert "ann" in await refused(two, "mail_register", agent_class="crew.worker", name="ANN")
            assert "crew.boss" in await refused(two, "mail_register", agent_class="crew.boss")
            assert (await ask(one, "mail_directory"))["live"][0]["name"] == "ann"

    run(talk)


def test_mail_of_others_cannot_be_reached(crew: Box) -> None:
    """Neither by name, nor by path, nor as a resource."""
    crew.drop("m.md", letter(to="boss@crew.internal", body="for the boss alone\n"))
    crew.route()
    name = crew.unread("crew.boss")[0].name

    async def talk() -> None:
        async with client(crew) as there:
            await ask(there, "mail_register", agent_class="crew.worker", name="eve")
            for one in (name, f"../../crew.boss/unread/{name}", f"/etc/passwd{chr(0)}", "..", "", "a\nb", "\ud7ff"):
                assert "eve" in await refused(there, "mail_read", message=one) or "file name" in await refused(
                    there, "mail_read", message=one
                )
                await refused(there, "mail_ack", messages=[one])
            with pytest.raises(Exception, match=r"(?i)eve|resource"):
                await there.read_resource(f"mail://message/{name}")
            assert (await ask(there, "mail_list"))["unread"] == 0

    run(talk)
    assert [mail.name for mail in crew.unread("crew.boss")] == [name]


def test_bad_input_ends_in_words(crew: Box) -> None:
    """Whatever is asked for, the server says what is wrong and goes on."""

    async def talk() -> None:
        async with client(crew, "--as", "crew.boss") as boss:
            good = {"to": ["worker@crew.internal"], "type": "job.run", "subject": "s", "body": "b"}
            wrong: list[tuple[dict[str, Any], str]] = [
                ({"to": []}, "nobody"),
                ({"to": ["nobody@crew.internal"]}, "unknown-recipient"),
                ({"to": ["a@b\nfrom: x@y"]}, "to"),
                ({"type": "other.type"}, "type-not-accepted"),
                ({"body": "x" * (11 << 20)}, "too-large"),
                ({"correlation_id": "x" * 2000}, "correlation_id"),
                ({"body": 7}, "body"),
                ({"to": "no list"}, "to"),
            ]
            for change, word in wrong:
                assert word in await refused(boss, "mail_send", **{**good, **change})
            assert "limit" in await refused(boss, "mail_list", limit=0)
            assert "seconds" in await refused(boss, "mail_wait", seconds=3600)
            assert "no flow" in await refused(boss, "mail_flow", correlation_id="never")
            assert "no_such_tool" in await refused(boss, "no_such_tool")
            odd = await ask(boss, "mail_send", **{**good, "body": "nul \0, \x1b[31m, ünï\r\n---\nend"})
            assert odd["state"] == "delivered"
            (crew.root / "agent-registry.yml").rename(crew.root / "away")
            assert "agent-registry.yml" in await refused(boss, "mail_list")
            (crew.root / "away").rename(crew.root / "agent-registry.yml")
            assert (await ask(boss, "mail_list"))["unread"] == 0

    run(talk)
    assert crew.unread("crew.worker")[0].body == "nul \0, \x1b[31m, ünï\r\n---\nend".encode()


def test_resources_prompt_and_schemas(crew: Box) -> None:
    """A message, a flow and the map can be read; the prompt is the mail rule; every tool says its forms."""
    crew.drop("m.md", letter(to="boss@crew.internal", correlation_id="flow/1 ?", body="hello\n"))
    crew.route()

    async def talk() -> None:
        async with client(crew, "--as", "crew.boss") as boss:
            name = crew.unread("crew.boss")[0].name
            read = await boss.read_resource(f"mail://message/{name}")
            assert read.contents[0].text.endswith("---\nhello\n")  # type: ignore[union-attr]
            flow = await boss.read_resource("mail://flow/flow%2F1%20%3F")
            assert json.loads(flow.contents[0].text)["lines"][0]["action"] == "delivered"  # type: ignore[union-attr]
            found = await boss.read_resource("mail://registry/map")
            assert [who["id"] for who in json.loads(found.contents[0].text)["agents"]]  # type: ignore[union-attr]
            prompt = await boss.get_prompt("mail_rule")
            assert prompt.messages[0].content.text == crew.run("rule", "crew.boss").stdout  # type: ignore[union-attr]
            tools = {tool.name: tool for tool in (await boss.list_tools()).tools}
            assert sorted(tools) == sorted(f"mail_{word}" for word in _TOOLS)
            for tool in tools.values():
                assert tool.description and tool.annotations is not None
                assert tool.output_schema is not None and "unread" in tool.output_schema["required"]
                for said in tool.input_schema.get("properties", {}).values():
                    assert said["description"]

    run(talk)


_TOOLS = ("register", "send", "reply", "list", "read", "ack", "wait", "directory", "flow")


def test_the_page_names_every_tool() -> None:
    page = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()
    for word in _TOOLS:
        assert f"| `mail_{word}` |" in page


def test_in_a_turn_the_server_knows_whose_it_is(crew: Box) -> None:
    """What it sends leaves with the acknowledgement of the turn."""
    script = crew.world / "scratch" / "turn.py"
    script.write_text(
        "import asyncio, sys\n"
        "from mcp import StdioServerParameters\n"
        "from mcp.client.client import Client\n"
        "from mcp.client.stdio import stdio_client\n"
        "import os\n"
        "async def main():\n"
        f"    words = {[*POSTMASTER[1:], '--root', str(crew.root), 'mcp']!r}\n"
        f"    server = StdioServerParameters(command={POSTMASTER[0]!r}, args=words, env=dict(os.environ))\n"
        "    async with Client(stdio_client(server)) as there:\n"
        "        listed = (await there.call_tool('mail_list', {})).structured_content['messages']\n"
        "        said = {'message': listed[0]['file'], 'body': 'done', 'type': 'job.done'}\n"
        "        sent = (await there.call_tool('mail_reply', said)).structured_content\n"
        "        assert sent['state'].startswith('leaves'), sent\n"
        "asyncio.run(main())\n"
        "sys.exit(int(os.environ['CODE']))\n"
    )
    crew.drop("m.md", letter(to="worker@crew.internal", from_="boss@crew.internal"))
    crew.route()
    for code in ("3", "0"):
        done = crew.run("turn", "crew.worker", "--", sys.executable, str(script), env={"CODE": code}, timeout=60)
        assert done.returncode == (75 if code == "3" else 0), done.stderr
        crew.route()
        assert len(crew.unread("crew.boss")) == (1 if code == "0" else 0)


def test_a_start_that_cannot_be(crew: Box) -> None:
    """A wrong --as, and an archived agent."""
    done = crew.run("mcp", "--as", "nobody@crew.internal")
    assert done.returncode == 65 and "nobody@crew.internal" in done.stderr and done.stdout == ""
    crew.run("register", "crew.worker", "--name", "old")
    crew.run("archive", "old")
    assert crew.run("mcp", "--as", "crew.worker+old").returncode == 65
