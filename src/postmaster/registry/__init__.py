"""The address book: declarations, the merge, the compiled lookup, the message map.

Nothing is imported here, so that an idle run can ask `registry.stamp` without paying for the rest.
"""
