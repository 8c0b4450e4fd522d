"""The generated code is current and registers no global names."""

import pathlib
import subprocess
import sys

from google.protobuf import descriptor_pb2

from seedrl_jax.replay.reverb.proto import reverb_pb2

_ROOT = pathlib.Path(__file__).parents[3]
_FOLDER = 'seedrl_jax/replay/reverb/proto'


def test_generated_code_is_that_of_the_proto(tmp_path):
  out = tmp_path / 'descriptors'
  subprocess.run(
    [
      sys.executable,
      '-m',
      'grpc_tools.protoc',
      '-I.',
      f'-o{out}',
      f'{_FOLDER}/reverb.proto',
    ],
    cwd=_ROOT,
    check=True,
  )
  files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
  current = descriptor_pb2.FileDescriptorProto.FromString(
    reverb_pb2.DESCRIPTOR.serialized_pb
  )
  # The text depends on the generator's version.
  assert len(files) == 1
  for message in files[0].message_type:
    _clear_json_names(message)
  assert files[0] == current


def _clear_json_names(message: descriptor_pb2.DescriptorProto) -> None:
  """Removes what generated code leaves out."""
  for field in message.field:
    field.ClearField('json_name')
  for nested in message.nested_type:
    _clear_json_names(nested)


def test_messages_are_in_a_package_of_our_own():
  assert reverb_pb2.DESCRIPTOR.package == 'seedrl_jax.reverb'


def test_generated_code_asks_for_no_version_of_protobuf():
  text = pathlib.Path(reverb_pb2.__file__).read_text()
  assert 'ValidateProtobufRuntimeVersion' not in text
