"""DeviceMesh: the world's ranks in a grid of several dimensions, with a group along each of them.

    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(x, group=mesh["tp"].get_group())

A mesh, the meshes that indexing cuts from it and those that flattening adds share one Grid, which has the groups.
"""

from __future__ import annotations

import copy
import math
import os
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arraycomm.core.arrays.dlpack import pack, wrap
from arraycomm.core.group.arguments import integer, template

from .process_groups.grid import Axes, Grid, check_names, read_mesh
from .process_groups.groups import get_rank, get_world_size
from .process_groups.init import init_process_group, is_initialized
from .process_groups.process_group import ProcessGroup

__all__ = ["DeviceMesh", "init_device_mesh"]


class DeviceMesh:
    """The world's ranks in a grid, with a group along each dimension. All ranks of the world make it with the same arguments.

    Indexing by names of dimensions gives the part of the mesh with this rank: mesh["model"].get_group() is its group along
    "model".
    Ranks outside of the mesh make it too. If there is no default group, it is made first (env://).

    Args:
        device_type: "cpu", "cuda" and so on, without an index.
        mesh: global ranks as nested lists or an integer array of any library; each rank at most once.
        mesh_dim_names: one name for each dimension.
        backend_override: {dimension or its name: backend, pg_options, or a tuple of both} for the groups of these dimensions.

    - Blocks: until every rank of the world has made it.
    - Errors: RuntimeError for a device type with an index, names that are not distinct or not one for each dimension, more ranks
      than the world has, and unknown keys of backend_override. TypeError without a mesh. ValueError for ranks that are not in the
      world or come twice, and, or PeerLost that names it, when ranks give different meshes.

    Examples:
        On each of two ranks:

        >>> mesh = dist.DeviceMesh("cpu", [[0], [1]], mesh_dim_names=("data", "model"))
        >>> mesh.shape, mesh["data"].get_local_rank() == dist.get_rank(), mesh.size("data")
        ((2, 1), True, 2)
        >>> mesh.mesh_dim_names, mesh.ndim, mesh.device_type, mesh.get_rank() == dist.get_rank()
        (('data', 'model'), 2, 'cpu', True)
        >>> mesh.mesh.tolist(), len(mesh.get_all_groups()), mesh.get_coordinate() == (dist.get_rank(), 0)
        ([[0], [1]], 2, True)
        >>> dist.DeviceMesh.from_group(mesh.get_group("data"), "cpu").shape
        (2,)
    """

    def __init__(self, device_type: str, mesh: Any = None, *, mesh_dim_names: Sequence[str] | None = None,
                 backend_override: Mapping[int | str, Any] | None = None, _init_backend: bool = True,
                 _rank: int | None = None) -> None:
        if mesh is None:
            raise TypeError("DeviceMesh needs `mesh`: the global ranks, as nested lists or an integer array")
        shape, ranks = read_mesh(mesh)
        names = check_names(device_type, shape, mesh_dim_names)
        if _init_backend:
            _prepare(device_type)
            _check_ranks(ranks)
        grid = Grid(shape, ranks, names, get_rank() if _rank is None else _rank, mesh)
        if _init_backend:
            grid.open(backend_override)
        self._device_type, self._grid, self._names = device_type, grid, names
        self._dims: tuple[Axes, ...] = tuple((axis,) for axis in range(len(shape)))

    def _part(self, dims: tuple[Axes, ...], names: tuple[str, ...] | None) -> DeviceMesh:
        """dims: the grid's axes that each dimension runs over; several where it was flattened."""
        part = copy.copy(self)
        part._dims, part._names = dims, names
        return part

    # ---- what it is ----

    @property
    def device_type(self) -> str:
        """The type of the devices: "cpu", "cuda".

        - Blocks: never, as any attribute.
        - Errors: none; it is set by the constructor.
        """
        return self._device_type

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """The dimensions' names, in order; None for a mesh without names.

        - Blocks: never, as any attribute.
        - Errors: none; it is set by the constructor.
        """
        return self._names

    @property
    def ndim(self) -> int:
        """How many dimensions the mesh has.

        - Blocks: never, as any attribute.
        - Errors: none; it is set by the constructor.
        """
        return len(self._dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """The mesh's lengths, one for each dimension.

        - Blocks: never, as any attribute.
        - Errors: none; it is set by the constructor.
        """
        return tuple(self._grid.length(axes) for axes in self._dims)

    def size(self, mesh_dim: int | str | None = None) -> int:
        """The number of ranks, of the whole mesh or along one dimension.

        - Blocks: never; nothing is sent.
        - Errors: IndexError and KeyError for a dimension that the mesh does not have, TypeError for what is neither a number nor
          a name.
        """
        if mesh_dim is None:
            return self._grid.length([axis for axes in self._dims for axis in axes])
        return self._grid.length(self._axes(mesh_dim))

    @property
    def mesh(self) -> Any:
        """The global ranks as an int32 array. Its library is that of the array from which the mesh was made.

        For another mesh it is torch's tensor if torch is loaded, and a NumPy array otherwise.

        - Blocks: never; nothing is sent.
        - Errors: RuntimeError for a part of a mesh, on a rank that is not in it.
        """
        ranks = _in_shape(self._grid.ranks_along(self._dims), self.shape)
        like, torch = self._grid.template, sys.modules.get("torch")
        if like is None and torch is not None:
            like = torch.empty(0)
        return wrap(pack(ranks), template(like))

    def __repr__(self) -> str:
        strides = tuple(self._grid.stride(axes) for axes in self._dims)
        if self._names is None:
            return f"DeviceMesh({self.shape}, {self._device_type!r}, stride={strides})"
        sizes = ", ".join(f"{name}={size}" for name, size in zip(self._names, self.shape, strict=True))
        return f"DeviceMesh(({sizes}), {self._device_type!r}, stride={strides})"

    def _key(self) -> tuple[Any, ...]:
        return self._device_type, self._names, self._dims, self._grid.shape, self._grid.ranks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __enter__(self) -> DeviceMesh:
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, exc_traceback: Any) -> None:
        """Nothing ends here: groups are closed by destroy_process_group()."""

    # ---- where this rank is ----

    def get_rank(self) -> int:
        """This process's global rank.

        - Blocks: never; nothing is sent.
        - Errors: ValueError without a default group.
        """
        return get_rank()

    def get_coordinate(self) -> tuple[int, ...] | None:
        """This rank's position, a number for each dimension; None outside of the mesh.

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        if self._grid.coordinate is None:
            return None
        return tuple(self._grid.position(axes) for axes in self._dims)

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """This rank's number in the group along `mesh_dim`; a mesh of one dimension needs no `mesh_dim`.

        - Blocks: never; nothing is sent.
        - Errors: those of get_group().
        """
        return get_rank(self.get_group(mesh_dim))

    # ---- groups ----

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """The group along a dimension, which is given by its number or name; a mesh of one dimension needs no `mesh_dim`.

        - Blocks: never; nothing is sent.
        - Errors: RuntimeError without `mesh_dim` if there are several dimensions, and without groups. IndexError for a number and
          KeyError for a name that the mesh does not have, AssertionError for another type, IndexError outside of the mesh.
        """
        if mesh_dim is not None and not isinstance(mesh_dim, (int, str)):
            raise AssertionError(f"mesh_dim must be an int or a name, got {mesh_dim!r}")
        if mesh_dim is None and self.ndim > 1:
            raise RuntimeError(f"Found the DeviceMesh have {self.ndim} dimensions. Optional kwarg `mesh_dim` needs to be "
                               "specified when device_mesh.ndim > 1. get_all_groups() gives the groups of all")
        return self._grid.group(self._axes(0 if mesh_dim is None else mesh_dim))

    def get_all_groups(self) -> list[ProcessGroup]:
        """The groups along all dimensions, in order.

        - Blocks: never; nothing is sent.
        - Errors: those of get_group().
        """
        return [self._grid.group(axes) for axes in self._dims]

    def _axes(self, mesh_dim: int | str) -> Axes:
        if not isinstance(mesh_dim, str):
            if not isinstance(mesh_dim, int):
                raise TypeError(f"a dimension is a number or a name, got {mesh_dim!r}")
            if not -self.ndim <= mesh_dim < self.ndim:
                raise IndexError(f"dimension {mesh_dim} of a DeviceMesh that has {self.ndim}")
            return self._dims[mesh_dim]
        if self._names is None:
            raise KeyError("No `mesh_dim_names` found.")
        found = self._by_name().get(mesh_dim)
        if found is None:
            raise KeyError(f"Mesh dimension {mesh_dim!r} does not exist. Available mesh dimensions are: {self._names}")
        return found

    def _by_name(self) -> dict[str, Axes]:
        """The mesh's own dimensions, and the dimensions made by flattening."""
        own = {axis for axes in self._dims for axis in axes}
        flat = {name: axes for name, axes in self._grid.flattened.items() if own.issuperset(axes)}
        return flat | dict(zip(self._names or (), self._dims, strict=True))

    # ---- parts ----

    def __getitem__(self, mesh_dim_names: str | Sequence[str]) -> DeviceMesh:
        """The part of the mesh along these dimensions that this rank is in.

        RuntimeError without names and for dimensions that overlap, KeyError for unknown names and another order than the
        mesh's, TypeError for a number.
        """
        if self._names is None:
            raise RuntimeError("Cannot slice a DeviceMesh without mesh_dim_names!")
        wanted = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else mesh_dim_names
        if not isinstance(wanted, (tuple, list)):
            raise TypeError(f"a DeviceMesh is indexed by names of its dimensions, got {mesh_dim_names!r}")
        known, names = self._by_name(), tuple(wanted)
        if not known.keys() >= set(names):
            raise KeyError(f"Invalid mesh_dim_names {names} specified. Valid mesh_dim_names are {list(known)}.")
        dims = tuple(known[name] for name in names)
        axes = [axis for dim in dims for axis in dim if self._grid.shape[axis] > 1]  # the order of an axis of size 1 is free
        if len(set(axes)) != len(axes):
            raise RuntimeError(f"Slicing overlapping dim_names {names} is not allowed.")
        if axes != sorted(axes):
            raise KeyError(f"Invalid mesh_dim_names {names} specified. Mesh dim indices should be in ascending order.")
        if self._grid.coordinate is None and sum(map(len, dims)) < len(self._grid.shape):
            raise RuntimeError(f"rank {self._grid.rank} is not in the mesh, so no part of it along {names} is its own")
        return self if names == self._names else self._part(dims, names)

    def _flatten(self, mesh_dim_name: str | None = None, backend_override: Any = None) -> DeviceMesh:
        """A mesh of one dimension over all of this one's ranks, with a group of its own; all ranks call it.

        The name (None: the dimensions' names with "_" between) can be indexed in the whole mesh afterwards.
        backend_override: as one value of the constructor's. RuntimeError without names, ValueError for a name that is taken.
        """
        if self._names is None:
            raise RuntimeError("Cannot flatten a DeviceMesh without mesh_dim_names!")
        name = "_".join(self._names) if mesh_dim_name is None else mesh_dim_name
        axes = tuple(axis for dim in self._dims for axis in dim)
        if (name,) == self._names:
            return self
        if name in (self._grid.names or ()) or self._grid.flattened.get(name, axes) != axes:
            taken = (*(self._grid.names or ()), *self._grid.flattened)
            raise ValueError(f"{name} already exists for submesh of the {self}: the names of its mesh and of what was "
                             f"flattened are {taken}. Please specify another valid mesh_dim_name.")
        self._grid.flatten(name, axes, backend_override)
        return self._part((axes,), (name,))

    @staticmethod
    def from_group(group: ProcessGroup | list[ProcessGroup], device_type: str, mesh: Any = None, *,
                   mesh_dim_names: Sequence[str] | None = None) -> DeviceMesh:
        """A mesh over groups that exist: one group gives one dimension, a list one dimension for each of its groups.

        Args:
            mesh: as of the constructor. A list needs it, and mesh_dim_names.

        - Blocks: never; nothing is sent.
        - Errors: ValueError when these are missing, or when a group is not this rank's along its dimension. TypeError for what is
          no
          ProcessGroup.
        """
        groups = [group] if not isinstance(group, (list, tuple)) else list(group)
        if not groups:
            raise ValueError("Expects at least one ProcessGroup to be passed")
        if not all(hasattr(one, "group_desc") for one in groups):
            raise TypeError(f"from_group takes a ProcessGroup of arraycomm.distributed or a list of them, got {group!r}")
        listed = isinstance(group, (list, tuple))
        if listed and mesh is None:
            raise ValueError("Must pass mesh if passing multiple ProcessGroups")
        if listed and mesh_dim_names is None:
            raise ValueError("Must pass mesh_dim_names if passing multiple ProcessGroups")
        ranks = list(groups[0].ranks) if mesh is None else mesh
        if len(read_mesh(ranks)[0]) != len(groups):
            raise ValueError(f"Expects mesh with ndim equal to number of ProcessGroups but got mesh {mesh} and "
                             f"{len(groups)} ProcessGroups")
        made = DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, _init_backend=False)
        made._grid.adopt(groups)
        return made


def init_device_mesh(device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None,
                     backend_override: Mapping[int | str, Any] | None = None) -> DeviceMesh:
    """A DeviceMesh of this shape over the ranks 0, 1, 2 and so on; the last dimension changes fastest.

    The parameters are those of DeviceMesh.

    - Blocks: until every rank of the world has called it.
    - Errors: TypeError for a shape that is not a sequence of positive integers. The others are those of DeviceMesh.

    Examples:
        On each of two ranks:

        >>> mesh = dist.init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "model"))
        >>> mesh["data"].size(), mesh.get_coordinate() == (dist.get_rank(), 0)
        (2, True)
    """
    shape = tuple(integer("a length of mesh_shape", length) for length in mesh_shape)
    if not all(length > 0 for length in shape):
        raise TypeError(f"mesh_shape must hold integers above 0, got {shape}")
    check_names(device_type, shape, mesh_dim_names)
    ranks = _in_shape(range(math.prod(shape)), shape).tolist()
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, backend_override=backend_override)


def _in_shape(ranks: Iterable[int], shape: tuple[int, ...]) -> memoryview:
    return memoryview(array("i", ranks)).cast("B").cast("i", shape)


def _check_ranks(ranks: Sequence[int]) -> None:
    world = get_world_size()
    if len(ranks) > world:
        raise RuntimeError(f"Mesh should not be bigger than default world size {world}, but found {len(ranks)} ranks!")
    wrong = [rank for rank in ranks if not 0 <= rank < world]
    if wrong:
        raise ValueError(f"the mesh has ranks {wrong}, and the world those from 0 to {world - 1}")


def _prepare(device_type: str) -> None:
    """Makes the default group, and sets torch's current device if torch is in use and the program has set none."""
    if not is_initialized():
        init_process_group()
    torch = sys.modules.get("torch")
    devices = None if device_type == "cpu" else getattr(torch, device_type, None)
    if devices is None or not devices.is_available() or devices.is_initialized():
        return
    devices.set_device(int(os.environ.get("LOCAL_RANK", get_rank() % devices.device_count())))
