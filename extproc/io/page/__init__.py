"""The live page on the admin port: what the fleet is believed to be, where requests went and why, what waits.

The page is plain files (static/); everything it shows comes from this gateway as JSON, and as it changes as
server-sent events. Records have no prompt text, so the page has none.
"""
