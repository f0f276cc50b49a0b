#!/usr/bin/env bash
# A pipeline whose test step fails: see README.md beside this file.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=examples/common.sh
. "$here/../common.sh"

postmaster init >/dev/null
cp -- "$repository"/registry.d/*.yml "$POSTMASTER_ROOT/registry.d/"
postmaster registry merge >/dev/null
outbox=$POSTMASTER_ROOT/outbox
flow=release-1.4.0

# drop NAME: an agent without tools hands in a letter: written under a name with a dot, then renamed.
drop() { cat >"$outbox/.$1" && mv -- "$outbox/.$1" "$outbox/$1"; }

heading "The planner asks for a build; the builder builds, and hands over to the tester"
postmaster send --now --from planner@pipeline.internal --to builder@pipeline.internal --type pipeline.build \
    --subject "Build release 1.4.0" --correlation "$flow" --body "Build the tag v1.4.0."
postmaster ack pipeline.builder "$(unread pipeline.builder)"
postmaster send --now --from builder@pipeline.internal --to tester@pipeline.internal --type pipeline.test \
    --subject "Test release 1.4.0" --correlation "$flow" --body "Built from 0e12345."
postmaster ack pipeline.tester "$(unread pipeline.tester)"

heading "The test step fails. It reports to the planner and to whoever is on call"
drop failed.md <<LETTER
---
to: [planner@pipeline.internal, oncall@pipeline.internal]
from: tester@pipeline.internal
type: pipeline.failed
subject: "Tests failed: 3 of 412"
correlation_id: $flow
---
test_session_cookie, test_logout and test_cache_is_private fail since 0e12345.
LETTER

heading "The builder is impatient and tries to deploy all the same"
drop deploy.md <<LETTER
---
to: deployer@pipeline.internal
from: builder@pipeline.internal
type: pipeline.deploy
subject: Deploy release 1.4.0 anyway
correlation_id: $flow
---
The failing tests do not matter.
LETTER
postmaster route -v

expect "the planner has the report" grep -q 'test_session_cookie' \
    "$POSTMASTER_ROOT/inboxes/pipeline.planner/unread/$(unread pipeline.planner)"
expect "the deployer was never asked" test -z "$(unread pipeline.deployer)"

heading "The log tells what happened to the flow, and what did not arrive"
postmaster log --correlation "$flow"
postmaster log --action dead-letter --correlation "$flow" >"$world/dead"
expect "nobody has the address of whoever is on call" grep -q 'oncall@pipeline.internal' "$world/dead"
postmaster dead-letter list

heading "The registry is mended, and the report sent on: to the one who missed it"
cp -- "$here/oncall.yml" "$POSTMASTER_ROOT/registry.d/"
postmaster registry merge
postmaster dead-letter retry --reason unknown-recipient
postmaster route -v
expect "whoever is on call has the report" test "$(unread pipeline.oncall | wc -l)" = 1
expect "the planner still has it once" test "$(unread pipeline.planner | wc -l)" = 1
expect "the deployment is still refused" grep -q 'sender-not-accepted' <(postmaster dead-letter list)
expect "every letter is accounted for" postmaster verify
