#!/usr/bin/env bash
# A council votes: see README.md beside this file.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=examples/common.sh
. "$here/../common.sh"

postmaster init >/dev/null
cp -- "$repository"/registry.d/*.yml "$POSTMASTER_ROOT/registry.d/"
postmaster registry merge >/dev/null
flow=council-2026-07

heading "The orchestrator asks three members"
postmaster send --now --from orchestrator@council.internal \
    --to product-agent@council.internal --to architect@council.internal --to security-agent@council.internal \
    --type council.evaluate --subject "Proposal 7: keep rendered pages in a cache" --correlation "$flow" - <<'BODY'
Keep a rendered page for sixty seconds. Vote approve, reject or abstain.
BODY

# member ID VOTE REASON: what an agent does in its turn: read what is unread, answer it, acknowledge it.
member() {
    local letter
    for letter in $(unread "$1"); do
        postmaster read "$1" "$letter" >"$world/question"
        expect "$1 was asked about the cache" grep -q 'sixty seconds' "$world/question"
        postmaster reply "$1" "$letter" --type council.vote --body "$2: $3"
        postmaster ack "$1" "$letter"
    done
}

heading "Each member answers in its own turn"
member council.product-agent approve "a page that is a minute old will do for everyone but the editors"
member council.architect approve "if the cache is dropped on every deployment"
member council.security-agent reject "the cache must look at the session first"
postmaster route -v

heading "The orchestrator counts what is in its inbox"
approve=0 reject=0
for letter in $(unread council.orchestrator); do
    vote=$(body "$POSTMASTER_ROOT/inboxes/council.orchestrator/unread/$letter")
    case $vote in
        approve:*) approve=$((approve + 1)) ;;
        reject:*) reject=$((reject + 1)) ;;
        *) fail "a vote that is none: $vote" ;;
    esac
    postmaster ack council.orchestrator "$letter"
done
printf '%s approve, %s reject\n' "$approve" "$reject"
expect "two approve" test "$approve" = 2
expect "one rejects" test "$reject" = 1
expect "nothing is left unread" test -z "$(unread council.orchestrator)"

heading "The tally goes to the chair, whose decision reaches the orchestrator and another plugin's scribe"
postmaster send --now --from orchestrator@council.internal --to chair@council.internal --type council.tally \
    --subject "Tally of proposal 7" --correlation "$flow" --body "$approve approve, $reject reject"
postmaster ack council.chair "$(unread council.chair)"
postmaster send --now --from chair@council.internal --to orchestrator@council.internal \
    --to scribe@release-notes.internal --type council.decision --subject "Proposal 7 is approved" \
    --correlation "$flow" --body "Approved, two votes to one."
expect "the scribe has it" test "$(unread release-notes.scribe | wc -l)" = 1

heading "The whole flow, in order, from the delivery log"
postmaster log --correlation "$flow" --action delivered
delivered=$(grep '"action":"delivered"' "$POSTMASTER_ROOT/logs/delivery-log.jsonl" | grep -o '"sequence":[0-9]*' |
    sed 's/.*://' | sort -n | tr '\n' ' ')
expect "numbered 1 to 6, each copy of one message alike" test "$delivered" = "1 1 1 2 3 4 5 6 6 "
expect "every letter is accounted for" postmaster verify
