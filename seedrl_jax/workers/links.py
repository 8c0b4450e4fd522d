"""Events between the processes of a run."""

import os
import select

# Seconds after which a process that waits for another one looks around. It also
# shows that the process has not hung; see `children.wait_for_end`.
LOOK_SECONDS = 0.2


class ProcessEvent:
  """Wakes one process that waits; any process that has `fd` can set it."""

  def __init__(self, fd: int | None = None):
    """Makes the event, or opens that of `fd`."""
    self.fd = os.eventfd(0) if fd is None else fd
    self._poll = select.poll()
    self._poll.register(self.fd, select.POLLIN)

  def set(self) -> None:
    os.eventfd_write(self.fd, 1)

  def wait(self) -> bool:
    """Waits up to `LOOK_SECONDS`; returns whether it was set, and clears it."""
    is_set = bool(self._poll.poll(1000 * LOOK_SECONDS))
    if is_set:
      os.eventfd_read(self.fd)
    return is_set
