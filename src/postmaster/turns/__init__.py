"""Turns: one message in, one turn out. An agent with `run` is a command that is started when it has mail."""
