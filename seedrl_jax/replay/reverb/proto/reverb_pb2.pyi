from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import (
  ClassVar as _ClassVar,
  Iterable as _Iterable,
  Mapping as _Mapping,
  Optional as _Optional,
  Union as _Union,
)

DESCRIPTOR: _descriptor.FileDescriptor

class TensorShape(_message.Message):
  __slots__ = ('dim',)
  class Dim(_message.Message):
    __slots__ = ('size',)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

  DIM_FIELD_NUMBER: _ClassVar[int]
  dim: _containers.RepeatedCompositeFieldContainer[TensorShape.Dim]
  def __init__(
    self, dim: _Optional[_Iterable[_Union[TensorShape.Dim, _Mapping]]] = ...
  ) -> None: ...

class Tensor(_message.Message):
  __slots__ = ('dtype', 'tensor_shape', 'tensor_content')
  DTYPE_FIELD_NUMBER: _ClassVar[int]
  TENSOR_SHAPE_FIELD_NUMBER: _ClassVar[int]
  TENSOR_CONTENT_FIELD_NUMBER: _ClassVar[int]
  dtype: int
  tensor_shape: TensorShape
  tensor_content: bytes
  def __init__(
    self,
    dtype: _Optional[int] = ...,
    tensor_shape: _Optional[_Union[TensorShape, _Mapping]] = ...,
    tensor_content: _Optional[bytes] = ...,
  ) -> None: ...

class SequenceRange(_message.Message):
  __slots__ = ('episode_id', 'start', 'end', 'sparse')
  EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
  START_FIELD_NUMBER: _ClassVar[int]
  END_FIELD_NUMBER: _ClassVar[int]
  SPARSE_FIELD_NUMBER: _ClassVar[int]
  episode_id: int
  start: int
  end: int
  sparse: bool
  def __init__(
    self,
    episode_id: _Optional[int] = ...,
    start: _Optional[int] = ...,
    end: _Optional[int] = ...,
    sparse: bool = ...,
  ) -> None: ...

class ChunkData(_message.Message):
  __slots__ = (
    'chunk_key',
    'sequence_range',
    'delta_encoded',
    'data',
    'data_tensors_len',
    'data_uncompressed_size',
  )
  class Data(_message.Message):
    __slots__ = ('tensors',)
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(
      self, tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...
    ) -> None: ...

  CHUNK_KEY_FIELD_NUMBER: _ClassVar[int]
  SEQUENCE_RANGE_FIELD_NUMBER: _ClassVar[int]
  DELTA_ENCODED_FIELD_NUMBER: _ClassVar[int]
  DATA_FIELD_NUMBER: _ClassVar[int]
  DATA_TENSORS_LEN_FIELD_NUMBER: _ClassVar[int]
  DATA_UNCOMPRESSED_SIZE_FIELD_NUMBER: _ClassVar[int]
  chunk_key: int
  sequence_range: SequenceRange
  delta_encoded: bool
  data: ChunkData.Data
  data_tensors_len: int
  data_uncompressed_size: int
  def __init__(
    self,
    chunk_key: _Optional[int] = ...,
    sequence_range: _Optional[_Union[SequenceRange, _Mapping]] = ...,
    delta_encoded: bool = ...,
    data: _Optional[_Union[ChunkData.Data, _Mapping]] = ...,
    data_tensors_len: _Optional[int] = ...,
    data_uncompressed_size: _Optional[int] = ...,
  ) -> None: ...

class FlatTrajectory(_message.Message):
  __slots__ = ('columns',)
  class ChunkSlice(_message.Message):
    __slots__ = ('chunk_key', 'offset', 'length', 'index')
    CHUNK_KEY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    chunk_key: int
    offset: int
    length: int
    index: int
    def __init__(
      self,
      chunk_key: _Optional[int] = ...,
      offset: _Optional[int] = ...,
      length: _Optional[int] = ...,
      index: _Optional[int] = ...,
    ) -> None: ...

  class Column(_message.Message):
    __slots__ = ('chunk_slices', 'squeeze')
    CHUNK_SLICES_FIELD_NUMBER: _ClassVar[int]
    SQUEEZE_FIELD_NUMBER: _ClassVar[int]
    chunk_slices: _containers.RepeatedCompositeFieldContainer[
      FlatTrajectory.ChunkSlice
    ]
    squeeze: bool
    def __init__(
      self,
      chunk_slices: _Optional[
        _Iterable[_Union[FlatTrajectory.ChunkSlice, _Mapping]]
      ] = ...,
      squeeze: bool = ...,
    ) -> None: ...

  COLUMNS_FIELD_NUMBER: _ClassVar[int]
  columns: _containers.RepeatedCompositeFieldContainer[FlatTrajectory.Column]
  def __init__(
    self,
    columns: _Optional[
      _Iterable[_Union[FlatTrajectory.Column, _Mapping]]
    ] = ...,
  ) -> None: ...

class PrioritizedItem(_message.Message):
  __slots__ = ('key', 'table', 'priority', 'times_sampled', 'flat_trajectory')
  KEY_FIELD_NUMBER: _ClassVar[int]
  TABLE_FIELD_NUMBER: _ClassVar[int]
  PRIORITY_FIELD_NUMBER: _ClassVar[int]
  TIMES_SAMPLED_FIELD_NUMBER: _ClassVar[int]
  FLAT_TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
  key: int
  table: str
  priority: float
  times_sampled: int
  flat_trajectory: FlatTrajectory
  def __init__(
    self,
    key: _Optional[int] = ...,
    table: _Optional[str] = ...,
    priority: _Optional[float] = ...,
    times_sampled: _Optional[int] = ...,
    flat_trajectory: _Optional[_Union[FlatTrajectory, _Mapping]] = ...,
  ) -> None: ...

class InsertStreamRequest(_message.Message):
  __slots__ = ('chunks', 'items', 'keep_chunk_keys')
  CHUNKS_FIELD_NUMBER: _ClassVar[int]
  ITEMS_FIELD_NUMBER: _ClassVar[int]
  KEEP_CHUNK_KEYS_FIELD_NUMBER: _ClassVar[int]
  chunks: _containers.RepeatedCompositeFieldContainer[ChunkData]
  items: _containers.RepeatedCompositeFieldContainer[PrioritizedItem]
  keep_chunk_keys: _containers.RepeatedScalarFieldContainer[int]
  def __init__(
    self,
    chunks: _Optional[_Iterable[_Union[ChunkData, _Mapping]]] = ...,
    items: _Optional[_Iterable[_Union[PrioritizedItem, _Mapping]]] = ...,
    keep_chunk_keys: _Optional[_Iterable[int]] = ...,
  ) -> None: ...

class InsertStreamResponse(_message.Message):
  __slots__ = ('keys',)
  KEYS_FIELD_NUMBER: _ClassVar[int]
  keys: _containers.RepeatedScalarFieldContainer[int]
  def __init__(self, keys: _Optional[_Iterable[int]] = ...) -> None: ...

class SampleStreamRequest(_message.Message):
  __slots__ = ('table', 'num_samples', 'rate_limiter_timeout')
  class Timeout(_message.Message):
    __slots__ = ('milliseconds',)
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    milliseconds: int
    def __init__(self, milliseconds: _Optional[int] = ...) -> None: ...

  TABLE_FIELD_NUMBER: _ClassVar[int]
  NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
  RATE_LIMITER_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
  table: str
  num_samples: int
  rate_limiter_timeout: SampleStreamRequest.Timeout
  def __init__(
    self,
    table: _Optional[str] = ...,
    num_samples: _Optional[int] = ...,
    rate_limiter_timeout: _Optional[
      _Union[SampleStreamRequest.Timeout, _Mapping]
    ] = ...,
  ) -> None: ...

class SampleInfo(_message.Message):
  __slots__ = ('item', 'probability', 'table_size', 'rate_limited')
  ITEM_FIELD_NUMBER: _ClassVar[int]
  PROBABILITY_FIELD_NUMBER: _ClassVar[int]
  TABLE_SIZE_FIELD_NUMBER: _ClassVar[int]
  RATE_LIMITED_FIELD_NUMBER: _ClassVar[int]
  item: PrioritizedItem
  probability: float
  table_size: int
  rate_limited: bool
  def __init__(
    self,
    item: _Optional[_Union[PrioritizedItem, _Mapping]] = ...,
    probability: _Optional[float] = ...,
    table_size: _Optional[int] = ...,
    rate_limited: bool = ...,
  ) -> None: ...

class SampleStreamResponse(_message.Message):
  __slots__ = ('entries',)
  class SampleEntry(_message.Message):
    __slots__ = ('info', 'data', 'end_of_sequence')
    INFO_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_OF_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    info: SampleInfo
    data: _containers.RepeatedCompositeFieldContainer[ChunkData]
    end_of_sequence: bool
    def __init__(
      self,
      info: _Optional[_Union[SampleInfo, _Mapping]] = ...,
      data: _Optional[_Iterable[_Union[ChunkData, _Mapping]]] = ...,
      end_of_sequence: bool = ...,
    ) -> None: ...

  ENTRIES_FIELD_NUMBER: _ClassVar[int]
  entries: _containers.RepeatedCompositeFieldContainer[
    SampleStreamResponse.SampleEntry
  ]
  def __init__(
    self,
    entries: _Optional[
      _Iterable[_Union[SampleStreamResponse.SampleEntry, _Mapping]]
    ] = ...,
  ) -> None: ...

class MutatePrioritiesRequest(_message.Message):
  __slots__ = ('table', 'updates', 'delete_keys')
  class KeyWithPriority(_message.Message):
    __slots__ = ('key', 'priority')
    KEY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    key: int
    priority: float
    def __init__(
      self, key: _Optional[int] = ..., priority: _Optional[float] = ...
    ) -> None: ...

  TABLE_FIELD_NUMBER: _ClassVar[int]
  UPDATES_FIELD_NUMBER: _ClassVar[int]
  DELETE_KEYS_FIELD_NUMBER: _ClassVar[int]
  table: str
  updates: _containers.RepeatedCompositeFieldContainer[
    MutatePrioritiesRequest.KeyWithPriority
  ]
  delete_keys: _containers.RepeatedScalarFieldContainer[int]
  def __init__(
    self,
    table: _Optional[str] = ...,
    updates: _Optional[
      _Iterable[_Union[MutatePrioritiesRequest.KeyWithPriority, _Mapping]]
    ] = ...,
    delete_keys: _Optional[_Iterable[int]] = ...,
  ) -> None: ...

class ResetRequest(_message.Message):
  __slots__ = ('table',)
  TABLE_FIELD_NUMBER: _ClassVar[int]
  table: str
  def __init__(self, table: _Optional[str] = ...) -> None: ...

class CheckpointResponse(_message.Message):
  __slots__ = ('checkpoint_path',)
  CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
  checkpoint_path: str
  def __init__(self, checkpoint_path: _Optional[str] = ...) -> None: ...

class KeyDistributionOptions(_message.Message):
  __slots__ = ('fifo', 'uniform', 'prioritized', 'heap', 'lifo')
  class Prioritized(_message.Message):
    __slots__ = ('priority_exponent',)
    PRIORITY_EXPONENT_FIELD_NUMBER: _ClassVar[int]
    priority_exponent: float
    def __init__(self, priority_exponent: _Optional[float] = ...) -> None: ...

  class Heap(_message.Message):
    __slots__ = ('min_heap',)
    MIN_HEAP_FIELD_NUMBER: _ClassVar[int]
    min_heap: bool
    def __init__(self, min_heap: bool = ...) -> None: ...

  FIFO_FIELD_NUMBER: _ClassVar[int]
  UNIFORM_FIELD_NUMBER: _ClassVar[int]
  PRIORITIZED_FIELD_NUMBER: _ClassVar[int]
  HEAP_FIELD_NUMBER: _ClassVar[int]
  LIFO_FIELD_NUMBER: _ClassVar[int]
  fifo: bool
  uniform: bool
  prioritized: KeyDistributionOptions.Prioritized
  heap: KeyDistributionOptions.Heap
  lifo: bool
  def __init__(
    self,
    fifo: bool = ...,
    uniform: bool = ...,
    prioritized: _Optional[
      _Union[KeyDistributionOptions.Prioritized, _Mapping]
    ] = ...,
    heap: _Optional[_Union[KeyDistributionOptions.Heap, _Mapping]] = ...,
    lifo: bool = ...,
  ) -> None: ...

class RateLimiterCallStats(_message.Message):
  __slots__ = ('completed',)
  COMPLETED_FIELD_NUMBER: _ClassVar[int]
  completed: int
  def __init__(self, completed: _Optional[int] = ...) -> None: ...

class RateLimiterInfo(_message.Message):
  __slots__ = (
    'samples_per_insert',
    'min_diff',
    'max_diff',
    'min_size_to_sample',
    'insert_stats',
    'sample_stats',
  )
  SAMPLES_PER_INSERT_FIELD_NUMBER: _ClassVar[int]
  MIN_DIFF_FIELD_NUMBER: _ClassVar[int]
  MAX_DIFF_FIELD_NUMBER: _ClassVar[int]
  MIN_SIZE_TO_SAMPLE_FIELD_NUMBER: _ClassVar[int]
  INSERT_STATS_FIELD_NUMBER: _ClassVar[int]
  SAMPLE_STATS_FIELD_NUMBER: _ClassVar[int]
  samples_per_insert: float
  min_diff: float
  max_diff: float
  min_size_to_sample: int
  insert_stats: RateLimiterCallStats
  sample_stats: RateLimiterCallStats
  def __init__(
    self,
    samples_per_insert: _Optional[float] = ...,
    min_diff: _Optional[float] = ...,
    max_diff: _Optional[float] = ...,
    min_size_to_sample: _Optional[int] = ...,
    insert_stats: _Optional[_Union[RateLimiterCallStats, _Mapping]] = ...,
    sample_stats: _Optional[_Union[RateLimiterCallStats, _Mapping]] = ...,
  ) -> None: ...

class TableInfo(_message.Message):
  __slots__ = (
    'sampler_options',
    'remover_options',
    'max_size',
    'max_times_sampled',
    'rate_limiter_info',
    'signature',
    'current_size',
    'name',
    'num_episodes',
    'num_deleted_episodes',
    'num_unique_samples',
  )
  SAMPLER_OPTIONS_FIELD_NUMBER: _ClassVar[int]
  REMOVER_OPTIONS_FIELD_NUMBER: _ClassVar[int]
  MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
  MAX_TIMES_SAMPLED_FIELD_NUMBER: _ClassVar[int]
  RATE_LIMITER_INFO_FIELD_NUMBER: _ClassVar[int]
  SIGNATURE_FIELD_NUMBER: _ClassVar[int]
  CURRENT_SIZE_FIELD_NUMBER: _ClassVar[int]
  NAME_FIELD_NUMBER: _ClassVar[int]
  NUM_EPISODES_FIELD_NUMBER: _ClassVar[int]
  NUM_DELETED_EPISODES_FIELD_NUMBER: _ClassVar[int]
  NUM_UNIQUE_SAMPLES_FIELD_NUMBER: _ClassVar[int]
  sampler_options: KeyDistributionOptions
  remover_options: KeyDistributionOptions
  max_size: int
  max_times_sampled: int
  rate_limiter_info: RateLimiterInfo
  signature: bytes
  current_size: int
  name: str
  num_episodes: int
  num_deleted_episodes: int
  num_unique_samples: int
  def __init__(
    self,
    sampler_options: _Optional[_Union[KeyDistributionOptions, _Mapping]] = ...,
    remover_options: _Optional[_Union[KeyDistributionOptions, _Mapping]] = ...,
    max_size: _Optional[int] = ...,
    max_times_sampled: _Optional[int] = ...,
    rate_limiter_info: _Optional[_Union[RateLimiterInfo, _Mapping]] = ...,
    signature: _Optional[bytes] = ...,
    current_size: _Optional[int] = ...,
    name: _Optional[str] = ...,
    num_episodes: _Optional[int] = ...,
    num_deleted_episodes: _Optional[int] = ...,
    num_unique_samples: _Optional[int] = ...,
  ) -> None: ...

class ServerInfoResponse(_message.Message):
  __slots__ = ('table_info',)
  TABLE_INFO_FIELD_NUMBER: _ClassVar[int]
  table_info: _containers.RepeatedCompositeFieldContainer[TableInfo]
  def __init__(
    self, table_info: _Optional[_Iterable[_Union[TableInfo, _Mapping]]] = ...
  ) -> None: ...

class Empty(_message.Message):
  __slots__ = ()
  def __init__(self) -> None: ...
