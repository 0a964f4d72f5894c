"""gRPC: `penstock.v1` on a port of its own, in the process and on the event loop of the server.

`descriptors.binpb` holds the compiled .proto files of this folder. It loads under every protobuf
from 4.25 on, where generated code refuses a library that is older than its compiler.
"""
