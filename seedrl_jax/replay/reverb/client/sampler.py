"""From samples that the server sends to batches laid out for training."""

import threading
from collections.abc import Callable

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb.client import (
  client_rate_limiter,
  sample_stream,
  samples,
  unroll_items,
)


class Sampler(base.TrajectorySampler):
  """Draws batches, some ahead; any thread may call it, one at a time passes."""

  def __init__(
    self,
    streams: sample_stream.SampleStreams,
    counts: client_rate_limiter.ClientRateLimiter,
    decoder: unroll_items.Decoder,
    ahead: int,
    before_request: Callable[[], None],
  ):
    """Makes a sampler; nothing is drawn before the first `sample`.

    Args:
      streams: of its own, so that batches do not mix; closed with it.
      counts: of the table.
      decoder: makes batches of samples.
      ahead: batches to draw ahead if the table's rules let them pass.
      before_request: runs before samples are asked for.
    """
    self._streams = streams
    self._counts = counts
    self._decoder = decoder
    self._ahead = ahead
    self._before_request = before_request
    self._lock = threading.Lock()
    # Samples of the next batch that came; batches under way that no caller
    # waits for; callers that ask for a batch of their own.
    self._drawn: list[samples.Sample] = []
    self._unclaimed = 0
    self._waiting = 0
    self._turn = threading.Lock()

  def sample(self, wait: bool = True) -> base.Sample:
    """See `TrajectorySampler`.

    Only the table's rules are not waited for: what they let pass has come over
    the network by then or is waited for.
    """
    self._claim(wait)
    with self._lock:
      while len(self._drawn) < self._decoder.num_items:
        self._drawn.append(self._streams.get())
      drawn, self._drawn = self._drawn, []
    times_sampled = [sample.times_sampled for sample in drawn]
    self._counts.delivered(self._decoder.batch_size, times_sampled)
    self._ask_ahead()
    return self._decoder.decode(drawn)

  def interrupt(self) -> None:
    """Ends every wait in it."""
    self._streams.interrupt()

  def close(self) -> None:
    """Ends its threads too; at once where the connection is closed."""
    self._streams.close()

  @property
  def undrawn(self) -> int:
    """Items that were asked for and have not come."""
    return self._streams.outstanding

  def _claim(self, wait: bool) -> None:
    """Returns when a batch is under way that nobody else takes."""
    with self._turn:
      if self._unclaimed:
        self._unclaimed -= 1
        return
      self._waiting += 1
    try:
      self._ask(wait)
    finally:
      with self._turn:
        self._waiting -= 1

  def _ask(self, wait: bool) -> None:
    self._counts.admit_sample(self._decoder.batch_size, wait)
    self._before_request()
    self._streams.request(self._decoder.num_items)

  def _ask_ahead(self) -> None:
    # With the lock held, and not before those who wait: the last batch that
    # can be drawn would otherwise be theirs and nobody's.
    with self._turn:
      while self._unclaimed < self._ahead and not self._waiting:
        try:
          self._ask(wait=False)
        except base.RateLimited:
          return
        self._unclaimed += 1
