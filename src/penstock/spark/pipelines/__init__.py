"""Ready pipelines: archive, replay, dead letters, roll-ups, and compaction of lake tables.

Each is a function that takes a Spark session, does its work, and returns what it did. State is in
the tables and folders they write to, so each can be stopped, or killed, and run again.
"""

from penstock.spark.lake import found_lake
from penstock.spark.options import lake_folder
from penstock.spark.pipelines.archive import archive, as_target, topics_of
from penstock.spark.pipelines.compact import compact
from penstock.spark.pipelines.dead_letters import dead_letters
from penstock.spark.pipelines.lake_read import read_lake
from penstock.spark.pipelines.replay import replay
from penstock.spark.pipelines.rollup import rollup
from penstock.spark.pipelines.session import session

__all__ = [
    "archive",
    "as_target",
    "compact",
    "dead_letters",
    "found_lake",
    "lake_folder",
    "read_lake",
    "replay",
    "rollup",
    "session",
    "topics_of",
]
