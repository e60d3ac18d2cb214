"""Wire messages, generated from protos/ by protos/compile.py; not to be edited."""
