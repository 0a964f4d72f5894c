"""Schemas: JSON Schema, Avro and Protobuf; what they accept, and which change is compatible."""
