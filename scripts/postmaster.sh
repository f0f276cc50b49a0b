#!/bin/sh
# Route the mail of one office, for cron or by hand:
#
#   postmaster.sh [--root DIR] [options of `postmaster route`]
#
# The office is --root, else $POSTMASTER_ROOT, else ~/.dna/post-office. The command is $POSTMASTER, else the one in
# the .venv of this checkout, else the one on $PATH, else ~/.local/bin/postmaster. Problems (what the router says on
# stderr, and an exit code that is not 0) go to stderr and, with the time, to logs/router.log of the office
# ($POSTMASTER_LOG names another file). Ends with the router's exit code; 78 if there is no command.
#
# The router's own lock sees to it that no two work at once: nothing here can be left over by a crash.
set -u

PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}
export PATH

# cron gives $HOME, `env -i` does not; the account always has one.
if [ -z "${HOME:-}" ]; then
    user=$(id -un) || user=
    case $user in
        '' | *[!A-Za-z0-9._-]*) HOME= ;;
        *) eval "HOME=~$user" ;;
    esac
fi

case ${1:-} in
    --root)
        [ $# -ge 2 ] || { echo "postmaster.sh: --root needs a directory" >&2; exit 64; }
        root=$2
        shift 2
        ;;
    --root=*)
        root=${1#--root=}
        shift
        ;;
    *) root=${POSTMASTER_ROOT:-$HOME/.dna/post-office} ;;
esac
log=${POSTMASTER_LOG:-$root/logs/router.log}

# Append each line of $1 to the log with the time in front; no log (there is no office): nothing.
note() {
    now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
    [ -d "$(dirname -- "$log")" ] || return 0
    printf '%s\n' "$1" | while IFS= read -r line; do
        printf '%s exit %s: %s\n' "$now" "$2" "$line"
    done >>"$log" || echo "postmaster.sh: $log: cannot be written" >&2
}

find_command() {
    here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." 2>/dev/null && pwd)
    if [ -n "${POSTMASTER:-}" ]; then
        echo "$POSTMASTER"
        return
    fi
    if [ -x "$here/.venv/bin/postmaster" ]; then
        echo "$here/.venv/bin/postmaster"
        return
    fi
    found=$(command -v postmaster) || found=
    for candidate in "$found" "$HOME/.local/bin/postmaster"; do
        # A PostgreSQL server may have the same name.
        if [ -n "$candidate" ] && [ -x "$candidate" ]; then
            case $("$candidate" --version 2>/dev/null) in
                'postmaster, version'*)
                    echo "$candidate"
                    return
                    ;;
            esac
        fi
    done
}

postmaster=$(find_command)
if [ -z "$postmaster" ] || ! command -v "$postmaster" >/dev/null; then
    said="no postmaster command${postmaster:+ ($postmaster)}: install it, or name it in \$POSTMASTER"
    echo "postmaster.sh: $said" >&2
    note "$said" 78
    exit 78
fi

# Only stderr is kept; stdout goes where it would go.
{
    said=$("$postmaster" --root "$root" route "$@" 2>&1 >&3 3>&-)
    code=$?
} 3>&1

if [ -n "$said" ]; then
    printf '%s\n' "$said" >&2
    note "$said" "$code"
elif [ "$code" -ne 0 ]; then
    note "it said nothing" "$code"
fi
exit "$code"
