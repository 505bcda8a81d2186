"""Where work is done: tasks → their results, in this machine's processes or on a cluster.

Any `concurrent.futures.Executor` will do. What a task is, and what to do with its result, is up to
the packages that have tasks.
"""
