"""Loaded by every Python process that has this folder on its path: ends it by SIGKILL at a chosen point, once.

KILL_AT is ``<table> <file|commit> <before|after>``: the process that writes a data file of this table, or commits some,
is killed before or after that. KILL_ONCE is a file whose existence says that it has happened.
"""

import importlib.abc
import importlib.machinery
import os
import signal
import sys
from functools import wraps

TABLE, POINT, WHEN = os.environ["KILL_AT"].split()
PLACES = {"infra.store.data_files": "file", "infra.store.delta": "commit"}


def end(when):
    if when == WHEN:
        try:
            os.close(os.open(os.environ["KILL_ONCE"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def ending(call, table_of):
    @wraps(call)
    def wrapped(*arguments, **named):
        mine = table_of(*arguments) == TABLE
        if mine:
            end("before")
        result = call(*arguments, **named)
        if mine:
            end("after")
        return result

    return wrapped


class Loader(importlib.abc.Loader):
    def __init__(self, inner):
        self.inner = inner

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        self.inner.exec_module(module)
        if POINT == "file":
            module.write_data_file = ending(module.write_data_file, lambda corpus, name, rows: name)
        else:
            module.Table.commit_files = ending(module.Table.commit_files, lambda table, *_: table.name)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if PLACES.get(name) != POINT:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        spec.loader = Loader(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
