"""The standard library's way that scripts/bench compares with: maildir_add.py ROOT FLOWS.

`mailbox.Maildir.add` of every letter in ROOT/outbox, then the letter is unlinked. It syncs each message's data (so it
does by itself), but no directory; it reads no header, gives no number and keeps no log.
"""

import mailbox
import os
import sys


def main() -> None:
    """Deliver letter n to mailbox n % FLOWS."""
    root, flows = sys.argv[1], int(sys.argv[2])
    boxes = [mailbox.Maildir(f"{root}/inboxes/council.desk-{flow}/Maildir") for flow in range(flows)]
    for number, name in enumerate(sorted(os.listdir(f"{root}/outbox"))):
        path = f"{root}/outbox/{name}"
        with open(path, "rb") as stream:
            boxes[number % flows].add(stream.read())
        os.unlink(path)


main()
