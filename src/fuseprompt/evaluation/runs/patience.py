"""How long a search may take before its worker is taken to hang.

Nobody can know beforehand what a group takes on a device, so there is no limit unless one is given;
without one, a search that takes far longer than all before it is reported once. Nothing is ended
here. Read next: `fuseprompt.evaluation.runs.dispatch`, which ends it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from fuseprompt.evaluation.runs.plan import Job

#: A search is reported that takes so many times what the longest took before it ...
_FAR_LONGER: Final = 5.0

#: ... and at least so many seconds: short ones vary by more.
_WORTH_A_NOTE: Final = 60.0

#: Seconds that count at most between two looks, which are about a second apart: if it was more,
#: this process was stopped (Ctrl-Z), and its workers perhaps with it.
_LONGEST_TURN: Final = 5.0

#: Ids that a note names at most.
_MOST_IDS: Final = 3


@final
class Patience:
    """Watches what is being searched.

    Args:
        timeout: Seconds after which a search has taken too long, or None for never.
        on_note: Told in a sentence of every search that has taken too long, and once of one that
            takes far longer than all before if there is no limit.
    """

    def __init__(
        self, timeout: float | None = None, on_note: Callable[[str], None] | None = None
    ) -> None:
        self._timeout = timeout
        self._on_note = on_note
        self._may_advise = timeout is None
        self._seconds: dict[int, float] = {}
        self._longest: float | None = None
        self._last = time.monotonic()

    @property
    def reason(self) -> str:
        """Why a search that took too long was ended, for its record."""
        return f"the search took longer than --group-timeout {self._timeout:g} s; it was ended"

    def look(self, searching: Mapping[int, Sequence[Job]]) -> list[int]:
        """Return the tasks that have taken too long; to be called about once a second.

        Args:
            searching: Jobs of every task that a worker is at now, by number of the task.

        Returns:
            Numbers of tasks.
        """
        now = time.monotonic()
        turn = min(now - self._last, _LONGEST_TURN)
        self._last = now
        before = {number: seconds + turn for number, seconds in self._seconds.items()}
        ended = [seconds for number, seconds in before.items() if number not in searching]
        if ended:
            self._longest = max(self._longest or 0.0, *ended)
        self._seconds = {number: before.get(number, 0.0) for number in searching}
        late = [
            n for n, s in self._seconds.items() if self._timeout is not None and s > self._timeout
        ]
        for number, seconds in self._seconds.items():
            if number in late:
                self._tell(f"{_name(searching[number])}: {self.reason}")
            elif self._may_advise and self._is_far_longer(seconds):
                self._may_advise = False
                self._tell(
                    f"the search for {_name(searching[number])} has taken {seconds:,.0f} s so far, "
                    f"the longest before it {self._longest:,.1f} s. If its worker hangs, stop the "
                    "run and go on with --resume --group-timeout SECONDS, which ends workers that "
                    "take so long."
                )
        return late

    def _is_far_longer(self, seconds: float) -> bool:
        if self._longest is None:
            return False
        return seconds >= max(_WORTH_A_NOTE, _FAR_LONGER * self._longest)

    def _tell(self, note: str) -> None:
        if self._on_note is not None:
            self._on_note(note)


def _name(jobs: Sequence[Job]) -> str:
    more = "" if len(jobs) <= _MOST_IDS else f" and {len(jobs) - _MOST_IDS} more"
    return ", ".join(job.id for job in jobs[:_MOST_IDS]) + more
