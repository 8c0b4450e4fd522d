from seedrl_jax.replay.reverb.proto import reverb_pb2 as _reverb_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import (
  ClassVar as _ClassVar,
  Mapping as _Mapping,
  Optional as _Optional,
  Union as _Union,
)

DESCRIPTOR: _descriptor.FileDescriptor

class RateLimiterCheckpoint(_message.Message):
  __slots__ = (
    'samples_per_insert',
    'min_diff',
    'max_diff',
    'min_size_to_sample',
    'sample_count',
    'insert_count',
    'delete_count',
  )
  SAMPLES_PER_INSERT_FIELD_NUMBER: _ClassVar[int]
  MIN_DIFF_FIELD_NUMBER: _ClassVar[int]
  MAX_DIFF_FIELD_NUMBER: _ClassVar[int]
  MIN_SIZE_TO_SAMPLE_FIELD_NUMBER: _ClassVar[int]
  SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
  INSERT_COUNT_FIELD_NUMBER: _ClassVar[int]
  DELETE_COUNT_FIELD_NUMBER: _ClassVar[int]
  samples_per_insert: float
  min_diff: float
  max_diff: float
  min_size_to_sample: int
  sample_count: int
  insert_count: int
  delete_count: int
  def __init__(
    self,
    samples_per_insert: _Optional[float] = ...,
    min_diff: _Optional[float] = ...,
    max_diff: _Optional[float] = ...,
    min_size_to_sample: _Optional[int] = ...,
    sample_count: _Optional[int] = ...,
    insert_count: _Optional[int] = ...,
    delete_count: _Optional[int] = ...,
  ) -> None: ...

class TableCheckpoint(_message.Message):
  __slots__ = (
    'table_name',
    'rate_limiter',
    'sampler',
    'remover',
    'max_size',
    'max_times_sampled',
  )
  TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
  RATE_LIMITER_FIELD_NUMBER: _ClassVar[int]
  SAMPLER_FIELD_NUMBER: _ClassVar[int]
  REMOVER_FIELD_NUMBER: _ClassVar[int]
  MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
  MAX_TIMES_SAMPLED_FIELD_NUMBER: _ClassVar[int]
  table_name: str
  rate_limiter: RateLimiterCheckpoint
  sampler: _reverb_pb2.KeyDistributionOptions
  remover: _reverb_pb2.KeyDistributionOptions
  max_size: int
  max_times_sampled: int
  def __init__(
    self,
    table_name: _Optional[str] = ...,
    rate_limiter: _Optional[_Union[RateLimiterCheckpoint, _Mapping]] = ...,
    sampler: _Optional[
      _Union[_reverb_pb2.KeyDistributionOptions, _Mapping]
    ] = ...,
    remover: _Optional[
      _Union[_reverb_pb2.KeyDistributionOptions, _Mapping]
    ] = ...,
    max_size: _Optional[int] = ...,
    max_times_sampled: _Optional[int] = ...,
  ) -> None: ...
