"""The `wids` command: parse arguments, call the library, print results.

Each command has a module, `main` puts them together, and `arguments` has what they share. No
command imports another one or `main`. Nothing here does work that a Python program could not call
for itself.
"""
