"""The `wids` command: parse, call, print. One module for each command."""
