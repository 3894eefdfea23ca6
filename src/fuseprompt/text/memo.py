"""Results that last as long as the object that holds them: computed once for the same inputs.

A retokenisation table has one (`RetokenizationTable.memo`), in which transfers keep what they
derive from a model and not from a problem, so that the next group of problems finds it. A tokenizer
has one for what follows from its vocabulary. Nothing is global: when the holder goes, its memo
goes. Read next: `fuseprompt.text.retokenize`.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar, cast, final

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Memo:
    """Remembers results by a name and by the objects that they were made from."""

    _known: dict[Hashable, tuple[tuple[object, ...], object]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def recall(self, name: Hashable, sources: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return a result, made at the first call.

        Args:
            name: What the result is, with the settings that it depends on.
            sources: Objects that it was made from, told apart by identity. They are kept alive, so
                that no other object can take the place of one.
            make: Makes the result.

        Returns:
            What `make` returned at the first call with this name and these sources.
        """
        key = (name, *map(id, sources))
        if key not in self._known:
            self._known[key] = (sources, make())
        return cast(T, self._known[key][1])
