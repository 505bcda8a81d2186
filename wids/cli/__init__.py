"""The `wids` command: parse arguments, call the library, print results.

Each command has a module. No command imports another one, and none does work that a Python
program could not call itself.

Read first: `main` (the commands), `shared` (what commands share), and `create_command` (one of
them).
"""
