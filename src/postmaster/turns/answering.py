"""The final message of a turn: what the command printed, sent to the default thread as a letter like any other."""

import time

from postmaster import submission, times
from postmaster.composition import Draft, reply_subject
from postmaster.directory import open_view
from postmaster.errors import UsageProblem
from postmaster.office import Office
from postmaster.reading import Message
from postmaster.settings import load_settings
from postmaster.turns.instances import Instance


def stage_final_message(office: Office, instance: Instance, woken_by: Message, text: bytes, stage: str) -> None:
    """Stage a final message: to who asked in the flow that the instance serves, in that flow.

    It answers the message that woke the instance if that was the asker's, in that flow; else the first one.

    Raises:
        BadData: it would not be delivered.
        CannotCreate, DiskFault: the disk refused.
    """
    origin = instance.origin
    assert origin is not None
    now_ns = time.time_ns()
    settings = load_settings(office)
    is_asked_there = woken_by.text("correlation_id") == origin.correlation_id
    answers = woken_by.text("id") if is_asked_there and woken_by.text("from") == origin.asker else origin.message_id
    with open_view(office) as view:
        asker, agent = view.find(origin.asker), view.agent(instance.id)
        emits = (view.entry(instance.id) or {}).get("emits", [])
        if agent is None:
            raise UsageProblem(f"{instance.id} is not in the registry any more")
        draft = Draft(
            to=(origin.asker,),
            sender=instance.address,
            type=submission.reply_type(agent, emits, asker, origin.asker),
            subject=reply_subject(woken_by.text("subject") or ""),
            correlation_id=origin.correlation_id,
            sent_at=times.timestamp(now_ns),
            in_reply_to=answers,
            body=text,
        )
        submission.send(office, draft, view, settings, may_repeat=False, stage=stage)
