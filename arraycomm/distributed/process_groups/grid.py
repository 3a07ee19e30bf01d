"""The ranks of a DeviceMesh by coordinates, and the groups along its axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .groups import agree, new_group
from .process_group import ProcessGroup
from .world import default_group, state

Axes = tuple[int, ...]
_ROWS = (list, tuple, range)


class Grid:
    """shape, ranks (global ones, the last axis running fastest), names of the axes or None, and this rank's coordinate or
    None; `flattened`: names of several axes taken as one."""

    def __init__(self, shape: tuple[int, ...], ranks: tuple[int, ...], names: tuple[str, ...] | None, rank: int,
                 template: Any) -> None:
        self.shape, self.ranks, self.names, self.rank = shape, ranks, names, rank
        self.template = template if hasattr(template, "__dlpack__") else None
        self.strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        self.coordinate: tuple[int, ...] | None = None
        if rank in ranks:
            place = ranks.index(rank)
            self.coordinate = tuple(place // step % length for step, length in zip(self.strides, shape, strict=True))
        self.flattened: dict[str, Axes] = {}
        self._groups: dict[Axes, ProcessGroup] | None = None

    # ---- copies ----

    def __deepcopy__(self, memo: dict[int, Any]) -> Grid:
        """Returns itself, because groups belong to the process: a copied mesh, or a copied module with a mesh, shares them."""
        return self

    def __reduce__(self) -> Any:
        """Pickles groups by name; unpickling looks the names up."""
        names = None if self._groups is None else {axes: group.group_name for axes, group in self._groups.items()}
        return _arrived, (self.shape, self.ranks, self.names, self.rank, self.template, self.flattened, names)

    # ---- geometry ----

    def length(self, axes: Iterable[int]) -> int:
        return math.prod(self.shape[axis] for axis in axes)

    def stride(self, axes: Axes) -> int | tuple[int, ...]:
        """The rank distance of neighbours; one number per axis if they differ. An axis of size 1 has no stride."""
        axes = tuple(axis for axis in axes if self.shape[axis] > 1)
        if not axes:
            return ()
        even = all(self.strides[a] == self.strides[b] * self.shape[b] for a, b in itertools.pairwise(axes))
        return self.strides[axes[-1]] if even else tuple(self.strides[axis] for axis in axes)

    def position(self, axes: Axes) -> int:
        """This rank's position along these axes."""
        assert self.coordinate is not None  # checked by the caller
        place = 0
        for axis in axes:
            place = place * self.shape[axis] + self.coordinate[axis]
        return place

    def ranks_along(self, dims: Sequence[Axes]) -> list[int]:
        """The ranks that differ from this one along these axes only, the last axis running fastest."""
        axes = [axis for dim in dims for axis in dim]
        if self.coordinate is None and len(axes) < len(self.shape):
            raise RuntimeError(f"rank {self.rank} is not in the mesh, so this part of it has no ranks")
        start = 0 if self.coordinate is None else sum(
            place * step for axis, (place, step) in enumerate(zip(self.coordinate, self.strides, strict=True))
            if axis not in axes)
        steps = [range(0, self.shape[axis] * self.strides[axis], self.strides[axis]) for axis in axes]
        return [self.ranks[start + sum(offsets)] for offsets in itertools.product(*steps)]

    # ---- groups ----

    def open(self, override: Mapping[int | str, Any] | None) -> None:
        """Opens a group along each axis. All ranks of the world call it."""
        world, options = default_group(), _by_axis(override or {}, self.shape, self.names)
        agree(world, f"a DeviceMesh of {self.shape}, ranks {self.ranks}, names {self.names}", world.core.timeout)
        self._groups = {}
        for axis in range(len(self.shape)):
            label = f"mesh_{self.names[axis]}" if self.names else f"mesh_dim_{axis}"
            self._open((axis,), label, options.get(axis))

    def flatten(self, name: str, axes: Axes, override: Any) -> None:
        if self._groups is not None and axes not in self._groups:
            self._open(axes, f"mesh_{name}", None if override is None else _backend(override))
        self.flattened[name] = axes

    def _open(self, axes: Axes, label: str, option: tuple[str | None, Any] | None) -> None:
        assert self._groups is not None  # set by open()
        if self.coordinate is None:
            return
        members = sorted(self.ranks_along([axes]))
        world = default_group()
        if option is None and members == list(world.ranks):
            self._groups[axes] = world
            return
        backend, settings = option or (None, None)
        self._groups[axes] = new_group(members, timeout=None, backend=backend, pg_options=settings, group_desc=label,
                                       use_local_synchronization=True)

    def adopt(self, groups: Sequence[ProcessGroup]) -> None:
        """Uses existing groups, one for each axis."""
        if self.coordinate is None:
            raise ValueError(f"Invalid mesh {list(self.ranks)}: rank {self.rank}, which has the groups, is not in it")
        for axis, group in enumerate(groups):
            line = self.ranks_along([(axis,)])
            if sorted(group.ranks) != sorted(line):
                raise ValueError(f"Invalid mesh with ranks {line} along dimension {axis} for ProcessGroup with ranks "
                                 f"{list(group.ranks)}")
        self._groups = {(axis,): group for axis, group in enumerate(groups)}

    def group(self, axes: Axes) -> ProcessGroup:
        if self._groups is None:
            raise RuntimeError("DeviceMesh process groups not initialized!")
        if axes not in self._groups:
            raise IndexError(f"rank {self.rank} is not in the mesh and has no groups of it" if self.coordinate is None else
                             "no group was made along these dimensions")
        return self._groups[axes]


def _arrived(shape: tuple[int, ...], ranks: tuple[int, ...], names: tuple[str, ...] | None, rank: int, template: Any,
             flattened: dict[str, Axes], groups: Mapping[Axes, str] | None) -> Grid:
    """Unpickles a Grid from Grid.__reduce__(), with this process's rank and groups; without groups if some are not open here."""
    here = rank if state.default is None else state.default.rank()
    grid = Grid(shape, ranks, names, here, template)
    grid.flattened = dict(flattened)
    if groups is not None and here == rank and all(name in state.groups for name in groups.values()):
        grid._groups = {axes: state.groups[name] for axes, name in groups.items()}
    return grid


# ---- arguments ----

def read_mesh(mesh: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(shape, ranks) of nested lists or of an array. TypeError or ValueError unless it is a grid of integers."""
    if hasattr(mesh, "__dlpack__") and hasattr(mesh, "tolist"):
        mesh = mesh.tolist()
    shape, ranks = _leaves(mesh)
    if len(set(ranks)) != len(ranks):
        twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
        raise ValueError(f"each rank may be in a mesh once; there twice or more: {twice}")
    return shape, tuple(ranks)


def _leaves(level: Any) -> tuple[tuple[int, ...], list[int]]:
    if not isinstance(level, _ROWS):
        if isinstance(level, bool) or not hasattr(level, "__index__") and (not isinstance(level, float) or level % 1):
            raise TypeError(f"a mesh holds global ranks, which are integers; got {level!r}")
        return (), [int(level)]
    if not level:
        raise ValueError("a mesh needs at least one rank along each dimension")
    shapes, leaves = zip(*map(_leaves, level), strict=True)
    if len(set(shapes)) > 1:
        raise ValueError("the rows of a mesh must be equally long")
    return (len(level), *shapes[0]), list(itertools.chain.from_iterable(leaves))


def check_names(device_type: str, shape: Sequence[int], names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names as a tuple. RuntimeError as DeviceMesh's."""
    if not isinstance(device_type, str) or not device_type.isalpha():
        raise RuntimeError(f"Device type with index is not supported but got {device_type}: give its type alone, \"cpu\" or "
                           "\"cuda\"; each process has its own device of that type")
    if names is None:
        return None
    given = (names,) if isinstance(names, str) else tuple(names)
    if len(set(given)) != len(given):
        raise RuntimeError(f"Each mesh_dim_name must be unique. Found repeated mesh_dim_name in mesh_dim_names {given}")
    if len(given) != len(shape):
        raise RuntimeError("mesh_shape and mesh_dim_names should have same length! Found len(mesh_dim_names): "
                           f"{len(given)} and len(mesh_shape):{len(shape)}.")
    return given


def _backend(value: Any) -> tuple[str | None, Any]:
    """(backend, pg_options) of a dimension's value in backend_override."""
    if isinstance(value, str):
        return value, None
    return value if isinstance(value, tuple) and len(value) == 2 else (None, value)


def _by_axis(override: Mapping[int | str, Any], shape: Sequence[int],
             names: tuple[str, ...] | None) -> dict[int, tuple[str | None, Any]]:
    found: dict[int, tuple[str | None, Any]] = {}
    known: dict[int | str, int] = {axis: axis for axis in range(len(shape))}
    known.update((name, axis) for axis, name in enumerate(names or ()))
    wrong = [key for key in override if key not in known]
    if wrong:
        raise RuntimeError(f"Found invalid keys in backend_override: got {wrong}, expected integers in range "
                           f"[0, {len(shape)}) or one of {names}")
    for key, value in override.items():
        if known[key] in found:
            raise RuntimeError(f"Found redundant dim index {known[key]} and name {key} in backend_override")
        found[known[key]] = _backend(value)
    return found
