#!/usr/bin/env bash
# A plugin author writes a declaration: see README.md beside this file.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=examples/common.sh
. "$here/../common.sh"

postmaster init >/dev/null
declarations=$POSTMASTER_ROOT/registry.d
cp -- "$repository"/registry.d/council.yml "$repository"/registry.d/release-notes.yml \
    "$repository"/registry.d/build-pipeline.yml "$declarations/"
postmaster registry merge >/dev/null
before=$(cksum <"$POSTMASTER_ROOT/agent-registry.yml")

heading "A first try: postmaster registry check names every mistake at once, with its line"
cp -- "$here/declaration-with-mistakes.yml" "$declarations/translation.yml"
status=0
postmaster registry check 2>"$world/problems" || status=$?
cat "$world/problems"
expect "check ends with 78, a configuration error" test "$status" = 78
expect "the misspelt key is found, with the right one" grep -q 'translation.yml:8:.*did you mean accepts_from' "$world/problems"
expect "a type without senders is not open to all by accident" grep -q 'translation.yml:9:' "$world/problems"
expect "a type with a space in it is found" grep -q 'translation.yml:17:' "$world/problems"
expect "the collision names the file of the other agent" \
    grep -q 'translation.yml:15:.*registry.d/council.yml' "$world/problems"

heading "A merge refuses all of it; the registry in use stays as it was"
if postmaster registry merge 2>/dev/null; then fail "a merge with problems went through"; fi
expect "agent-registry.yml is unchanged" test "$before" = "$(cksum <"$POSTMASTER_ROOT/agent-registry.yml")"

heading "Mended, but for one wrong address: it is valid, yet part of the map leads nowhere"
sed 's/to: translator@/to: translater@/' "$here/declaration.yml" >"$declarations/translation.yml"
status=0
postmaster registry check --strict >"$world/findings" || status=$?
cat "$world/findings"
expect "check --strict ends with 1" test "$status" = 1
expect "it suggests the right address" grep -q 'did you mean translator@translation.internal' "$world/findings"

heading "All mended: check, merge, and the map"
cp -- "$here/declaration.yml" "$declarations/translation.yml"
postmaster registry check --strict
postmaster registry merge | tee "$world/merge"
expect "the new agents are added" grep -q 'added translation.desk' "$world/merge"
expect "and have their inboxes" test -d "$POSTMASTER_ROOT/inboxes/translation.translator/unread"
postmaster registry flows >"$world/map"
sed -n '/^translation/,/^$/p' "$world/map"
expect "the map shows the new connection" \
    grep -q 'translation.job -> translator@translation.internal (translation.translator)' "$world/map"
expect "merging again changes nothing" grep -q unchanged <(postmaster registry merge)
