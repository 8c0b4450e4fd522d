"""Reverb's messages; `reverb_pb2.py` is generated.

After a change of a `.proto`, in an environment of its own with
`grpcio-tools==1.62.3` (later ones write code that older protobufs refuse),
from the root of the repository:

    python -m grpc_tools.protoc -I. --python_out=. \
      seedrl_jax/replay/reverb/proto/reverb.proto
"""
