"""What can be asked of a broker: one struct for each question, with the type of its answer.

A call is what the API takes (`penstock.broker.api`), what a client sends, and what a door checks a
key against. `base` says what a call and its route are; each module has the calls of one theme.
Publishing, receiving, settling and fetching carry columns of messages, and have doors and API
methods of their own.
"""

# ruff: isort: skip_file
# The order of the imports is that of `ROUTES`, and so of the reference.
from penstock.model.calls.base import *
from penstock.model.calls.namespaces import *
from penstock.model.calls.topics import *
from penstock.model.calls.messages import *
from penstock.model.calls.queues import *
from penstock.model.calls.transactions import *
from penstock.model.calls.schedules import *
from penstock.model.calls.dead_letters import *
from penstock.model.calls.stream_groups import *
from penstock.model.calls.webhooks import *
from penstock.model.calls.schemas import *
from penstock.model.calls.traces import *
from penstock.model.calls.audit import *
from penstock.model.calls.stats import *
