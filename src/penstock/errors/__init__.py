"""Every error that Penstock raises, under one root.

A caller decides by class, `code` or `retriable`; a person reads the message. The codes are stable:
they are also what goes over the wire. Each module has the errors of one theme, and all are named
as members of `penstock.errors`, in tracebacks too.
"""

from penstock.errors.base import *
from penstock.errors.cluster import *
from penstock.errors.delivery import *
from penstock.errors.groups import *
from penstock.errors.logs import *
from penstock.errors.programs import *
from penstock.errors.schemas import *
from penstock.errors.server import *
from penstock.errors.storage import *
from penstock.errors.topics import *

for _error in list(vars().values()):
    if isinstance(_error, type) and issubclass(_error, PenstockError):
        _error.__module__ = __name__
del _error
