"""Names for annotations, which nobody evaluates. For what `import arraycomm` and init() load: typing itself takes longer to
load than this package."""

TYPE_CHECKING = False  # type checkers know it by its name, here and where it is imported
if TYPE_CHECKING:
    from typing import Any as Any
    from typing import Literal as Literal
    from typing import Protocol as Protocol
else:
    Any = Literal = Protocol = object
