"""The forms of what the tools answer, which the protocol shows to clients as JSON Schema."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Form(BaseModel):
    """What every answer has."""

    model_config = ConfigDict(populate_by_name=True)

    unread: int = Field(description="How many messages you have not acknowledged.")


class Row(BaseModel):
    """One message in a list."""

    model_config = ConfigDict(populate_by_name=True)

    file: str = Field(description="Its file name; this, or the beginning of `id`, names it in the other tools.")
    folder: str | None = None
    id: str | None = None
    sequence: int | None = Field(None, description="Its number in its flow.")
    sender: str | None = Field(None, alias="from", description="What the sender wrote; nobody has checked it.")
    to: list[str] = []
    type: str | None = None
    subject: str | None = None
    correlation_id: str | None = Field(None, description="The flow that it belongs to.")
    sent_at: str | None = None
    in_reply_to: str | None = None
    problem: str | None = Field(None, description="Why it cannot be read as a message.")
    already: bool | None = Field(None, description="It was acknowledged before.")


class Registered(Form):
    """A live instance."""

    id: str
    name: str
    address: str = Field(description="Your address: others write to you there.")
    class_: str = Field(alias="class")
    roles: list[str]
    since: str


class Fate(BaseModel):
    """What became of a message for one recipient."""

    model_config = ConfigDict(extra="allow")

    action: str = Field(description="delivered, relayed, dead-letter, rejected or deferred.")
    to: str | None = None
    agent: str | None = None
    sequence: int | None = None
    reason: str | None = None
    detail: str | None = None


class Sent(Form):
    """What was sent."""

    id: str = Field(description="Give it to mail_wait as `answer_to` to wait for the answer.")
    correlation_id: str
    file: str
    state: str = Field(description="delivered, refused (for somebody), deferred, waiting, or leaves with the turn.")
    outcomes: list[Fate] = []
    acknowledged: str | None = Field(None, description="The message that was answered, if it is acknowledged.")


class Listed(Form):
    """The mail in a mailbox, newest first."""

    agent: str
    address: str
    read: int
    waiting: int | None = Field(None, description="How many letters wait in the outbox for the router.")
    hidden: int = Field(description="How many older ones are not listed.")
    messages: list[Row]


class Opened(Form):
    """One message."""

    file: str
    folder: str
    size: int
    cut: bool = Field(description="Only the beginning of the body is given.")
    header: dict[str, Any]
    body: str | None = None
    body_base64: str | None = Field(None, description="The body, if it is not UTF-8.")
    problem: str | None = None


class Acknowledged(Form):
    """What is in read/ now."""

    messages: list[Row]


class Waited(Form):
    """What came."""

    came: bool = Field(description="False: the time is over; call again, or go on with something else.")
    messages: list[Row]


class Accepts(BaseModel):
    """One type that an agent accepts."""

    model_config = ConfigDict(populate_by_name=True)

    type: str
    senders: list[str] = Field(alias="from")


class Known(BaseModel):
    """An agent of the registry."""

    id: str
    address: str
    roles: list[str]
    is_class: bool = Field(description="Live instances of it are made with mail_register.")
    accepts: list[Accepts]


class Alive(BaseModel):
    """A live instance."""

    model_config = ConfigDict(populate_by_name=True)

    id: str
    name: str
    address: str
    class_: str = Field(alias="class")
    roles: list[str]
    unread: int | None = None
    since: str


class Directory(Form):
    """Who there is."""

    you: str | None = Field(None, description="Your address, once you have registered.")
    live: list[Alive]
    agents: list[Known]
    hidden: int


class Line(BaseModel):
    """A line of the delivery log."""

    model_config = ConfigDict(populate_by_name=True)

    time: str
    action: str
    sequence: int | None = None
    id: str | None = None
    sender: str | None = Field(None, alias="from")
    to: str | None = None
    agent: str | None = None
    type: str | None = None
    subject: str | None = None
    reason: str | None = None
    detail: str | None = None
    path: str | None = None


class Flow(Form):
    """The story of a flow."""

    correlation_id: str
    lines: list[Line]
    hidden: int = Field(description="How many earlier lines are not given; `postmaster log --correlation` has them.")
