"""A first declaration for a plugin: commented, valid as it stands, and put where nothing is."""

import os
import re
from typing import Final

from postmaster import address, durable
from postmaster.errors import BadData, CannotCreate
from postmaster.office import Office
from postmaster.registry import compiled

_TEXT: Final = """\
# yaml-language-server: $schema=../schemas/declaration.schema.json
#
# The agents that the plugin {plugin} brings to the post office, and who may write to them. The lines that begin
# with `# ` and a key are optional: remove the `# ` to use one. `postmaster registry check` says what is wrong, and
# `postmaster registry merge` puts it into effect.
plugin: {plugin}
agents:
  # Hands out work, and hears how it went.
  - id: {plugin}.desk  # what commands call it: `postmaster inbox {plugin}.desk`
    address: desk@{domain}  # what other agents write to; in no other declaration
    # description: What it is for, in a sentence.
    # aliases: [front-desk@{domain}]  # more addresses of the same inbox
    # roles: [{plugin}-desk]  # mail to role:NAME reaches everybody who has it
    # user: ann  # the account that its letters must belong to; with it `from` is no mere claim
    accepts:
      # The types that it takes, and from whom: an address, `*@domain`, `*` (anyone here), role:NAME, class:ID.
      - type: {plugin}.done
        accepts_from: [worker@{domain}]
    # What it sends, and to whom. Nothing is refused for it; `postmaster registry flows` draws the map from it.
    emits:
      - {{type: {plugin}.job, to: worker@{domain}}}

  # Does the work.
  - id: {plugin}.worker
    address: worker@{domain}
    # inbox: inboxes/{plugin}.worker  # where its mail goes: this is the default, in the office
    # instances: many  # several that are alive at once: `postmaster register {plugin}.worker --name NAME`
    # nudge: [/usr/bin/notify-send, --, "Mail for {{name}}", "{{text}}"]  # how it is told of mail
    accepts:
      - {plugin}.job
    accepts_from: [desk@{domain}]  # said once: it holds for every type above
    emits:
      - {{type: {plugin}.done, to: desk@{domain}}}
"""


def text(plugin: str) -> str:
    """Return the declaration.

    Raises:
        BadData: a plugin cannot be called so.
    """
    domain = _domain(plugin)
    if not (_is_type(plugin) and address.is_name(f"{plugin}.worker") and address.is_mailbox(f"worker@{domain}")):
        raise BadData(
            f"{plugin!a} cannot be the name of a plugin here: write letters and digits, with - or _ inside, at most "
            "60, such as release-notes"
        )
    return _TEXT.format(plugin=plugin, domain=domain)


def _is_type(plugin: str) -> bool:
    """Tell whether messages can have types that begin with the plugin's name."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}", plugin) is not None


def _domain(plugin: str) -> str:
    return plugin.replace("_", "-").rstrip("-").lower() + ".internal"


def write(office: Office, plugin: str) -> str:
    """Write the declaration to registry.d/ and return its path. What is there already is never replaced.

    Commit point: the rename. A crash before it leaves a name that is no declaration, which the next call takes away.

    Raises:
        BadData: a plugin cannot be called so, or it has a declaration.
        CannotCreate: it cannot be written.
    """
    data = text(plugin).encode()
    path = os.path.join(office.declarations, f"{plugin}.yml")
    temporary = os.path.join(
        office.declarations, f".{plugin}.yml.tmp"
    )  # no declaration, and under the lock the only one
    try:
        with compiled.locked(office):
            durable.remove(temporary)  # of one that was killed
            durable.write_new(temporary, data, sync=True)
            try:
                durable.rename_new(temporary, path)
            except BaseException:
                durable.remove(temporary)
                raise
            durable.sync_directory(office.declarations)
    except FileExistsError as fault:
        raise BadData(f"{path} is there already, and is left as it is; edit it, or see --stdout") from fault
    except OSError as fault:
        raise CannotCreate(f"{fault.filename or path}: {fault.strerror}") from fault
    return path
