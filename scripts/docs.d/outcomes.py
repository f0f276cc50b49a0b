"""docs/reference/reasons.md: every reason for which mail is not delivered, and every exit code."""

import re
from pathlib import Path
from typing import Final

import commands
from written import Gap, cell, code, prose, table

from postmaster import errors, reasons

OPERATIONS: Final = Path(__file__).resolve().parents[2] / "docs" / "operations.md"

HEAD: Final = """
# Reasons and exit codes

Every reason for which a letter is not delivered, from `src/postmaster/reasons.py`, and every exit code. The same words
stand in the log (`reason`), in the reason file beside a dead letter, and in what `send` says. To find your way from a
symptom to its reason: [a pipeline that stands still](../howto/stalled-pipeline.md).

"""

# reason -> what it usually comes from
CAUSES: Final = {
    "not-a-regular-file": "a program put a link in place of a copy; a whole directory was put there.",
    "too-large": "a log or a diff was pasted into the body.",
    "malformed-header": "a subject with `: ` in it and no quotes; a header that is not closed; no `---` in line 1.",
    "invalid-header": "a required field is misspelt or empty; `from` is a name, no address; `sent_at` is no time.",
    "sender-not-authentic": "the letter was written by another account than the `user` of its sender, or into the drop "
    "folder of another agent. With `require_owner`, a sender without a `user`.",
    "origin-mismatch": "a hub serves more domains than `domains` names; or somebody there writes in another's name.",
    "signature-mismatch": "the other office has not set `sign` yet, or its new key is not in the file of `verify`.",
    "account-unknown": "`user` is misspelt, or the service that knows the accounts is down.",
    "unknown-recipient": "a typing mistake; a declaration that was not merged; an instance that is not registered "
    "yet, or archived.",
    "type-not-accepted": "a typing mistake in `type`; a type that only another agent takes.",
    "sender-not-accepted": "the sender is new, and `accepts_from` does not name it; it comes from another office, "
    "which `*` does not admit.",
    "instance-terminated": "the flow went on after its instance was archived.",
    "duplicate": "a script that ran twice, with the same text and the same `sent_at`.",
    "inbox-unavailable": "a disk that is not mounted; permissions; a symbolic link in the place of `unread/`.",
    "disk-full": "no room, no inodes, or a quota.",
    "io-error": "a failing disk; a file system that became read-only; a letter that the router may not read.",
    "expired": "an inbox that nobody mended for five days.",
    "turn-failed": "the agent's command ends with another code than 0, or takes longer than `turn_timeout`.",
    "recipient-archived": "an instance was archived with mail in its `unread/`.",
}

KINDS: Final = {
    reasons.DEAD_LETTER: "The letter is in `dead-letter/`. See it with `postmaster dead-letter list --reason {name}`.",
    reasons.REJECTED: "The letter is in `dead-letter/`. See it with `postmaster dead-letter list --reason {name}`.",
    reasons.DEFERRED: "The letter waits in the outbox. See it with `postmaster log --reason {name}`.",
    reasons.RETURNED: "The message stays where it is; its sender is sent a report. See it with "
    "`postmaster log --reason {name}`.",
}


def page() -> str:
    """Return the page."""
    if set(CAUSES) != set(reasons.REASONS):
        odd = sorted(set(CAUSES) ^ set(reasons.REASONS))
        raise Gap(f"CAUSES in scripts/docs.d/outcomes.py and src/postmaster/reasons.py differ: {', '.join(odd)}")
    index = table(
        ["reason", "in the log", "RFC 3463", "what it means"],
        (
            [f"[{code(one.name)}](#{one.name})", code(one.action), one.status, cell(one.meaning)]
            for one in reasons.REASONS.values()
        ),
    )
    sections = "".join(_reason(one) for one in reasons.REASONS.values())
    return HEAD + "## Reasons\n\n" + index + sections + _exit_codes()


def _reason(one: reasons.Reason) -> str:
    paragraphs = (
        f"{_sentence(one.meaning)} {KINDS[one.action].format(name=one.name)}",
        f"Usual causes: {CAUSES[one.name]}",
        f"What to do: {one.remedy}.",
    )
    return f"\n### {one.name}\n\n" + "\n\n".join(prose(text) for text in paragraphs) + "\n"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _exit_codes() -> str:
    """Return the table of exit codes: those of docs/operations.md, with the words of each command."""
    known = {
        int(number): (meaning, what)
        for number, meaning, what in re.findall(
            r"^\| (\d+) \| (.*?) \| ?(.*?) ?\|$", OPERATIONS.read_text("utf-8"), re.M
        )
    }
    every = commands.described()
    said: dict[int, list[str]] = {}
    for command in every:
        for number, meaning in command.codes():
            said.setdefault(number, []).append(f"- `{command.name}`: {meaning}")
    used = set(said) | {fault.exit_code for fault in _faults(errors.PostmasterError)}
    if used - set(known):
        odd = ", ".join(map(str, sorted(used - set(known))))
        raise Gap(f"the table of exit codes in docs/operations.md lacks {odd}, which a command says in its help")
    rows = [
        [f"[{number}](#exit-code-{number})" if number in said and number else str(number), meaning, what]
        for number, (meaning, what) in sorted(known.items())
    ]
    rows = [[text.replace("](carrier.md", "](../carrier.md") for text in row] for row in rows]
    parts = [
        "\n## Exit codes\n\nThose of sysexits.h. A script can go by them; the words on stderr may change.\n\n",
        table(["code", "meaning", "what to do"], rows),
    ]
    for number in sorted(set(said) - {0}):
        lines = "\n".join(prose(line).replace("\n", "\n  ") for line in said[number])
        parts.append(f"\n### Exit code {number}\n\n{lines}\n")
    return "".join(parts)


def _faults(root: type[errors.PostmasterError]) -> list[type[errors.PostmasterError]]:
    return [root, *(found for below in root.__subclasses__() for found in _faults(below))]
