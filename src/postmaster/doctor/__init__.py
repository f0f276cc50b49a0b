"""`postmaster doctor`: the mistakes that people make when they set an office up, each with the fix.

`facts` is what can be known of an office; `gathering` asks the disk and the system for it; the checks are functions
from facts to findings that ask nobody, and `catalogue` is the table of all of them.
"""
