"""The mail page: a view of the office for people, in a browser. It looks, and changes nothing of the office.

`server` makes the web application of `views`, which say in plain data what there is (from `office_view`) and hand it to
the templates. Everything comes from what the commands use: reading, excerpts, dead_letters, the delivery log, flows.
"""
