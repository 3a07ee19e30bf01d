"""Names for annotations, which are never evaluated. For modules that `import arraycomm` and init() load: typing itself takes
longer to load than this package."""

TYPE_CHECKING = False  # type checkers treat this name as True
if TYPE_CHECKING:
    from typing import Any as Any
    from typing import Generic as Generic
    from typing import Literal as Literal
    from typing import Protocol as Protocol
else:
    Any = Literal = Protocol = object

    class Generic:
        __slots__ = ()

        def __class_getitem__(cls, _: object) -> type:
            return cls
