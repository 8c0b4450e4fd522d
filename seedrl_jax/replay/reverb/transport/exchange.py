"""Sends and receives over a call at once, until it ends.

Used by `insert_stream.py` and `sample_stream.py`.
"""

import threading
from collections.abc import Callable, Iterable, Sequence

from seedrl_jax.replay.reverb.transport import call as call_lib
from seedrl_jax.replay.reverb.transport import wire

# Seconds in which a connection that cannot be written to any more gives what
# had arrived before, such as the server's reason.
_GRACE = 20.0


def run(
  call: call_lib.Call,
  messages: Iterable[Sequence[wire.Buffer]],
  take: Callable[[memoryview], None],
  on_end: Callable[[], None],
  name: str,
) -> None:
  """Sends messages in this thread while another receives.

  Args:
    call: that has begun; is cancelled in the end.
    messages: each in parts; may wait for more, but must end after `on_end`.
    take: gets each response, in the receiving thread. Must not wait: nothing
      is read meanwhile, and a server gives up who does not read.
    on_end: called in the receiving thread when nothing more will come.
    name: of that thread.

  Raises:
    call.CallError: with which the call ended.
    BaseException: what `messages` or `take` raised.
  """
  failures: list[BaseException] = []

  def receive() -> None:
    try:
      while (response := call.receive()) is not None:
        take(response)
    except BaseException as e:
      failures.append(e)
    finally:
      # What is being sent may wait for room that never comes.
      call.cancel()
      on_end()

  thread = threading.Thread(target=receive, name=name, daemon=True)
  thread.start()
  try:
    for message in messages:
      call.send(message)
  except call_lib.CallError:
    # Why, the other side's last words say.
    thread.join(_GRACE)
  finally:
    if thread.is_alive():
      call.cancel()
    thread.join()
  if failures:
    raise failures[0]
