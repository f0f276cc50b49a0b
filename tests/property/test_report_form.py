"""Properties of reports: what is attached comes out again, and whatever a message says, its report can be read."""

from hypothesis import given
from hypothesis import strategies as st

from postmaster import message, reports
from postmaster.directory.reporting import Failure, Original, write
from postmaster.header import Refused

_TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=80)
_LINES = st.lists(
    st.sampled_from([b"a", b"\n", b"\r\n", b"---\n", b"\xff", b"Original-Message: 1 bytes, md5 ", b"0" * 32])
)


@given(_LINES.map(b"".join), st.binary(max_size=200), st.integers(0, 3))
def test_what_is_attached_comes_out_again(before: bytes, part: bytes, more: int) -> None:
    """Byte for byte, behind a text without such a line."""
    text = before.replace(b"Original-Message", b"x")
    body = text + b"\n" + reports.attachment(part, len(part) + more)
    assert reports.attached(body) == (part, more == 0)
    assert reports.attached(body + b"!") is None
    assert reports.attached(body[:-1]) is None


@given(_TEXT, _TEXT, _TEXT, st.binary(max_size=100))
def test_a_report_on_any_message_can_be_read(flow: str, subject: str, detail: str, body: bytes) -> None:
    """It is in the flow of the message, its fields are one line each, and it has the message attached."""
    raw = _letter(flow, subject) + body
    try:
        start, end, body_start = message.split(raw)
        header = message.read_header(raw, start, end, body_start)
        envelope = message.envelope(header, message.body_id(raw[body_start:]))
    except Refused:
        return
    record = {**message.examine(header).readable, "id": envelope.id}
    failure = Failure("a@lab.internal", None, "unknown-recipient", detail)
    report = write(
        reports.BOUNCE,
        "b@lab.internal",
        "postmaster@lab.internal",
        Original(record, "dead-letter/a.md", raw, len(raw)),
        [failure],
        "What happened.",
        agent=None,
        office_name="post-office",
        now_ns=0,
    )
    start, end, body_start = message.split(report.content)
    found = message.envelope(message.read_header(report.content, start, end, body_start), report.record["id"])
    assert found.correlation_id == envelope.correlation_id and found.in_reply_to == envelope.id
    assert found.fields.keys() <= reports.FIELDS
    written = report.content[body_start:]
    assert message.body_id(written) == report.record["id"]
    assert reports.attached(written) == (raw, True)
    text = written[: -len(raw)].decode()
    assert text.count("\nStatus: ") == text.count("\nOriginal-Message: ") == 1
    assert all(len(line) <= 500 and line.isprintable() for line in text.split("\n"))


def _letter(flow: str, subject: str) -> bytes:
    def quoted(text: str) -> str:
        return '"' + "".join(f"\\U{ord(c):08x}" for c in text) + '"'

    fields = f"to: a@lab.internal\nfrom: b@lab.internal\ntype: t\nsubject: {quoted(subject)}\n"
    return f"---\n{fields}correlation_id: {quoted(flow)}\n---\n".encode()
