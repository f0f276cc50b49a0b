"""The one table of reasons: what the log, the reason files and `send` say when mail is not delivered. Pure.

Status codes are RFC 3463 (`class.subject.detail`): 5 is permanent, 4 is tried again, 2 is success.
"""

from dataclasses import dataclass
from typing import Final

DELIVERED: Final = "delivered"
DEAD_LETTER: Final = "dead-letter"
REJECTED: Final = "rejected"
DEFERRED: Final = "deferred"
BOUNCED: Final = "bounced"  # a report of refused mail was made
RELAYED: Final = "relayed"  # it waits for the carrier, which takes it to another office
RECEIPT: Final = "receipt"  # a letter from here was read in another office
RETURNED: Final = "returned"  # unread mail was given back to its sender
TURN_FAILED: Final = "turn-failed"  # the one reason for which mail dies after it was delivered
REFUSED: Final = (DEAD_LETTER, REJECTED)

DELIVERED_STATUS: Final = "2.1.5"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a message was not delivered.

    Attributes:
        name: the word in the log's `reason`.
        action: the log's `action` that goes with it.
        status: RFC 3463 status code.
        meaning: one sentence for a person who has never met it.
        remedy: what to do next.
    """

    name: str
    action: str
    status: str
    meaning: str
    remedy: str


_RETRY: Final = "then `postmaster dead-letter retry NAME`"

_TABLE: Final = (
    Reason(
        "not-a-regular-file",
        DEAD_LETTER,
        "5.6.0",
        "what lay in the outbox is a link, a directory, a pipe, a socket or a device, not a file of mail",
        "put the message itself in the outbox: write it under a name starting with `.`, then rename it",
    ),
    Reason(
        "too-large",
        DEAD_LETTER,
        "5.2.3",
        "the message is larger than this office carries",
        "send a shorter message that names the file, or raise `max_message_bytes` in post-office.yml, " + _RETRY,
    ),
    Reason(
        "malformed-header",
        DEAD_LETTER,
        "5.6.0",
        "the header cannot be read as the mapping between two `---` lines that a message starts with",
        "mend the line named in the detail (a value with `: `, `#`, `&`, `*` or `!` needs quotes), " + _RETRY,
    ),
    Reason(
        "invalid-header",
        DEAD_LETTER,
        "5.6.0",
        "a header field is missing or has a value that it cannot have",
        "mend the field named in the detail, " + _RETRY,
    ),
    Reason(
        "sender-not-authentic",
        REJECTED,
        "5.7.1",
        "the letter was not handed in by the agent that its `from` names, or claims to be the office's own",
        "send it as the agent that it is from: by the account that is its `user`, in its own drop folder; or correct "
        "`from` (not `postmaster@`), the type (not `postmaster.`...), or `user` in the declaration, merge, " + _RETRY,
    ),
    Reason(
        "origin-mismatch",
        DEAD_LETTER,
        "5.7.1",
        "another office brought a letter whose sender does not belong to it",
        "if that office may speak for the sender's domain, add the domain to its `domains` in post-office.yml, "
        + _RETRY,
    ),
    Reason(
        "signature-mismatch",
        DEAD_LETTER,
        "5.7.7",
        "another office brought a letter without a good signature, which `verify` asks for in post-office.yml",
        "if the letter is right, have it sent again, signed (`sign` there, its key in the file of `verify` here); or "
        "take `verify` out of the remote, " + _RETRY,
    ),
    Reason(
        "account-unknown",
        DEFERRED,
        "4.3.5",
        "the account that the sender's declaration names as `user` does not exist on this machine",
        "make the account, or correct `user` in the declaration and run `postmaster registry merge`; the next run "
        "tries again",
    ),
    Reason(
        "unknown-recipient",
        DEAD_LETTER,
        "5.1.1",
        "nobody in the registry, and no live instance, has this address",
        "correct `to`, add the agent to a declaration and run `postmaster registry merge`, or `postmaster register` a "
        "live instance, " + _RETRY,
    ),
    Reason(
        "type-not-accepted",
        REJECTED,
        "5.7.1",
        "the recipient accepts no mail of this type",
        "send a type it accepts (`postmaster registry show AGENT` lists them), or add the type to its `accepts`, "
        "merge, " + _RETRY,
    ),
    Reason(
        "sender-not-accepted",
        REJECTED,
        "5.7.1",
        "the recipient accepts this type, but not from this sender",
        "let the recipient's owner add the sender to `accepts_from` of this type and merge, " + _RETRY,
    ),
    Reason(
        "instance-terminated",
        REJECTED,
        "5.2.1",
        "the instance that serves this flow was archived: it takes no more mail",
        "send it in another flow (another `correlation_id`), which another instance serves",
    ),
    Reason(
        "duplicate",
        DEAD_LETTER,
        "5.5.0",
        "the recipient was given this very message before: same body, same header fields",
        "nothing, if the first one was meant; else change `sent_at` or the text, or "
        "`postmaster dead-letter retry --allow-duplicate NAME`",
    ),
    Reason(
        "inbox-unavailable",
        DEFERRED,
        "4.2.1",
        "the recipient's inbox is missing or closed",
        "mend the inbox named in the detail; the next run delivers what waits",
    ),
    Reason(
        "disk-full",
        DEFERRED,
        "4.3.1",
        "there is no room to write the message",
        "make room (or raise the quota); the next run delivers what waits",
    ),
    Reason(
        "io-error",
        DEFERRED,
        "4.3.0",
        "the disk or the system refused",
        "see the detail for the system's words; the next run tries again",
    ),
    Reason(
        "expired",
        DEAD_LETTER,
        "4.4.7",
        "the message could not be delivered for longer than `expire_after`",
        "mend what the earlier `deferred` lines of this message name, " + _RETRY,
    ),
    Reason(
        TURN_FAILED,
        DEAD_LETTER,
        "5.3.0",
        "the recipient's turns with this message failed as often as its `max_attempts` allows",
        "mend what the detail tells of, then `postmaster dead-letter retry --allow-duplicate NAME`",
    ),
    Reason(
        "recipient-archived",
        RETURNED,
        "5.2.1",
        "the recipient was archived before it had read the message",
        "send it to who does its work now (`postmaster directory` lists who is alive)",
    ),
)

REASONS: Final = {reason.name: reason for reason in _TABLE}


def remedy(name: str) -> str:
    """Return what to do about the reason called `name`."""
    return REASONS[name].remedy


def action_of(name: str) -> str | None:
    """Return the action that goes with the reason called `name`, or None if there is no such reason."""
    return REASONS[name].action if name in REASONS else None
