# Sourced by every run.sh: an office in a temporary directory that is removed at the end, and what the stories use.
# shellcheck shell=bash
#
# The `postmaster` command is $POSTMASTER, else the one in PATH, else the checkout's own.

examples=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
repository=$(dirname -- "$examples")
: "${POSTMASTER:=$(command -v postmaster || printf '%s' "$repository/.venv/bin/postmaster")}"
if [ ! -x "$POSTMASTER" ]; then
    printf 'no postmaster command: set POSTMASTER, or run scripts/demo once\n' >&2
    exit 69
fi

world=$(mktemp -d "${TMPDIR:-/tmp}/postmaster-example.XXXXXX")
trap 'rm -rf -- "$world"' EXIT
trap 'printf "%s: line %s failed\n" "$0" "$LINENO" >&2' ERR
export POSTMASTER_ROOT=$world/office
postmaster() { "$POSTMASTER" "$@"; }

heading() { printf '\n-- %s\n' "$*"; }
fail() {
    printf 'NOT AS EXPECTED: %s\n' "$*" >&2
    exit 1
}

# expect WHAT COMMAND...: the story ends here if the command fails.
expect() {
    local what=$1
    shift
    "$@" >/dev/null || fail "$what"
    printf 'ok: %s\n' "$what"
}

# unread AGENT: the names of the messages in its inbox, oldest first. An inbox is a directory; ls is enough to read it.
unread() { ls "$POSTMASTER_ROOT/inboxes/$1/unread"; }

# body FILE: what stands after the header.
body() { sed '1,/^---$/d' "$1"; }
