#!/usr/bin/env bash
# A panel of three: see README.md beside this file.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=examples/common.sh
. "$here/../common.sh"

PATH=$here:$(dirname -- "$POSTMASTER"):$PATH
flow=proposal-8

postmaster init >/dev/null
cp -- "$here/panel.yml" "$POSTMASTER_ROOT/registry.d/"
postmaster registry merge >/dev/null
expect "the map leads nowhere astray" postmaster registry check --strict

heading "A person asks, and goes home"
postmaster send --from human@panel.internal --to coordinator@panel.internal --type panel.question \
    --subject "Proposal 8" --correlation "$flow" \
    --body "Keep rendered pages for 60 seconds. To undo it, remove one line of the settings."
postmaster cycle --max-seconds 120

# The instance of the coordinator that serves this question.
coordinator=$(basename -- "$POSTMASTER_ROOT"/inboxes/panel.coordinator+*)
wakes=$POSTMASTER_ROOT/turns/$coordinator/disk/wakes

heading "The coordinator was woken four times, and said nothing twice"
cat -n -- "$wakes"
expect "four wakes" test "$(wc -l <"$wakes")" = 4
expect "two of them said nothing" test "$(grep -c 'said nothing' "$wakes")" = 2
expect "all its mail is acknowledged" test "$(ls "$POSTMASTER_ROOT/inboxes/$coordinator/read" | wc -l)" = 4
turns=$(grep '"action":"turn-done"' "$POSTMASTER_ROOT/logs/delivery-log.jsonl" | grep -c "\"agent\":\"$coordinator\"")
expect "the log has its four turns" test "$turns" = 4

heading "The panelists cannot speak to each other"
refused=0
postmaster send --from skeptic@panel.internal --to optimist@panel.internal --type panel.ask --subject "Between us" \
    --correlation "$flow" --body "Say no." 2>"$world/refusal" || refused=$?
cat -- "$world/refusal"
expect "refused (exit code 65)" test "$refused" = 65
expect "the reason is that the sender is not accepted" grep -q sender-not-accepted "$world/refusal"

heading "What the person finds"
answer=$(unread panel.human)
body "$POSTMASTER_ROOT/inboxes/panel.human/unread/$answer"
expect "one answer" test "$(unread panel.human | wc -l)" = 1
expect "with three verdicts" test "$(body "$POSTMASTER_ROOT/inboxes/panel.human/unread/$answer" | grep -c ': yes\|: no')" = 3

heading "The story, from the log"
postmaster log --correlation "$flow"
expect "every letter is accounted for" postmaster verify
