"""docs/reference/message.md: the fields of a header, from the module that reads them."""

from typing import Final

from written import Gap, code, table

from postmaster import message
from postmaster.names import UNFINISHED
from postmaster.settings import Settings

HEAD: Final = """
# Fields of a message

From `src/postmaster/message.py`, which reads every header. What a message is, and how one is put into the outbox:
[formats/message.md](../formats/message.md). Fields of the delivery log:
[formats/delivery-log.md](../formats/delivery-log.md).

"""

# field -> (form, what it is)
FIELDS: Final = {
    "to": ("an address or a list of them: `local@domain`, `role:NAME`, `agent:ID`", "who gets it"),
    "from": ("`local@domain`: 64 and 255 characters at most", "who sends it"),
    "type": ("text, by habit dotted", "what kind of message it is; the recipient's `accepts` names those it takes"),
    "subject": ("text", "what it is about, for people"),
    "correlation_id": ("text", "the flow it belongs to; numbers count within it"),
    "sent_at": (
        "RFC 3339; without an offset it is UTC",
        "when it was sent; without it the file's time orders the message",
    ),
    "in_reply_to": ("text", "the `id` of the message that it answers, of the same flow"),
    "id": ("32 hexadecimal digits", "the MD5 of the body"),
    "sequence": ("a whole number from 1", "its number within its flow"),
}


def page() -> str:
    """Return the page."""
    known = ("to", *message.TEXTS, *message.OURS)
    if set(known) != set(FIELDS):
        odd = sorted(set(known) ^ set(FIELDS))
        raise Gap(f"FIELDS in scripts/docs.d/message_fields.py and src/postmaster/message.py differ: {', '.join(odd)}")
    order = [*message.REQUIRED, *(name for name in known if name not in message.REQUIRED)]
    return HEAD + table(["field", "written by", "", "form", "at most", "what it is"], map(_row, order)) + _limits()


def _row(name: str) -> list[str]:
    form, what = FIELDS[name]
    if name in message.OURS:
        return [code(name), "Postmaster", "always", form, "", what + "; a sender's own is removed"]
    limit = f"{message.MAX_TEXT} characters"
    if name == "to":
        limit = f"{message.MAX_RECIPIENTS} recipients"
    control = (
        "" if name in message.IDENTIFIERS or name == "to" else "; may hold control characters, which are shown escaped"
    )
    return [
        code(name),
        "the sender",
        "required" if name in message.REQUIRED else "optional",
        form + control,
        limit,
        what,
    ]


def _limits() -> str:
    rows = [
        ["the header", f"{message.MAX_HEADER_BYTES // 1024} KiB", "`malformed-header`"],
        ["a text of the header", f"{message.MAX_TEXT} characters", "`invalid-header`"],
        ["recipients in `to`", f"{message.MAX_RECIPIENTS}, each counted once", "`invalid-header`"],
        [
            "the whole message",
            f"{Settings().max_message_bytes >> 20} MiB, unless `max_message_bytes` says otherwise",
            "`too-large`",
        ],
    ]
    return (
        "\nAny other key passes through untouched. Every value is text exactly as typed.\n\n## Limits\n\n"
        + table(["what", "at most", "else"], rows)
        + f"\nNames in the outbox that begin with `.` or end in {_endings()} are not mail yet.\n"
    )


def _endings() -> str:
    endings = [code(one) for one in UNFINISHED]
    return ", ".join(endings[:-1]) + " or " + endings[-1]
