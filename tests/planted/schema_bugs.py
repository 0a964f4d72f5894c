"""Bugs of the registry of schemas, and of what is checked at publish."""

from __future__ import annotations

from tests.planted.bug import Bug

SCHEMAS = "tests/integration/broker/test_schemas.py"
KILLED = "tests/integration/broker/test_schemas_killed.py"
REGISTRY = "tests/unit/schema/test_registry.py"
HOSTILE = "tests/unit/schema/test_hostile.py"
COMPATIBILITY = "tests/unit/schema/test_compatibility.py"

SCHEMA_BUGS = [
    Bug(
        "a schema is believed before it is stored",
        "broker/schemas.py",
        "        journal.append(msgspec.json.encode(entry)).result()\n"
        "        self.state.apply(entry)\n",
        "        self.state.apply(entry)\n",
        KILLED,
    ),
    Bug(
        "a checkpoint forgets which ids were given",
        "schema/registry.py",
        "                self.next_id = entry.next_id\n",
        "",
        REGISTRY,
    ),
    Bug(
        "the first messages of a batch are stored before the others are checked",
        "broker/publish_calls.py",
        '        if topic.settings.schema_check == "none":\n            return self._append(',
        '        if topic.settings.schema_check == "none" or len(batch) > 1:\n'
        "            return self._append(",
        SCHEMAS,
    ),
    Bug(
        "delayed messages are not checked",
        "broker/publish_calls.py",
        "        admitted = self._admit(topic, batch, dedup_ids, dedup_window_ms, call)\n"
        "        if admitted.rows is not None:\n",
        "        admitted = Admitted(batch, None, ())\n        if admitted.rows is not None:\n",
        SCHEMAS,
    ),
    Bug(
        "a message may name a schema of another subject",
        "broker/admission.py",
        "else state.version_of(name.namespace, subject, id_)\n",
        "else newest\n",
        SCHEMAS,
    ),
    Bug(
        "a letter that never was in its topic is lost when it is redriven",
        "broker/dead_letters.py",
        "letter for letter in page if letter.reason == SCHEMA_REASON]\n",
        "letter for letter in page if letter.reason is None]\n",
        SCHEMAS,
    ),
    Bug(
        "a namespace sees the schemas of others",
        "schema/registry.py",
        "        if schema is None or not any(self.places(id_, namespace, deleted=True)):\n",
        "        if schema is None:\n",
        SCHEMAS,
    ),
    Bug(
        "a transitive level compares with the last version only",
        "broker/schemas.py",
        "        if not levels_of(level)[2]:\n",
        "        if True:\n",
        SCHEMAS,
    ),
    Bug(
        "what a reader needs of an open object counts as written",
        "schema/json_compat.py",
        '        rest = node.get("additionalProperties", True)\n        if rest is not True:\n',
        '        rest = node.get("additionalProperties", True)\n        if rest is None:\n',
        COMPATIBILITY,
    ),
    Bug(
        "patterns of a schema may take any time",
        "schema/json_schema.py",
        "pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES_MAX),\n",
        "pattern_options=jsonschema_rs.FancyRegexOptions(),\n",
        HOSTILE,
    ),
    Bug(
        "a few bytes of Avro may stand for any number of items",
        "schema/avro_walk.py",
        'if node["type"] == "array" and self._sizes(node["items"])[0] == 0:\n',
        "if False:\n",
        HOSTILE,
    ),
]
