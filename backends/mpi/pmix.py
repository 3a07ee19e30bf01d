"""A server of PMIx, by which processes of Open MPI find each other: Open MPI's own libpmix, opened in the launcher. For the
ranks of one host. Structures and numbers are those of PMIx 4 and 5 (pmix_common.h, pmix_server.h).
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial

from arraycomm.core.errors import DistBackendError
from arraycomm.core.typed import Any

_STRING, _UINT16, _UINT32, _INFO, _DATA_ARRAY, _RANK, _REGEX = 3, 13, 14, 24, 39, 40, 49
_DONE = (0, -157)  # PMIX_SUCCESS, PMIX_OPERATION_SUCCEEDED: there will be no callback


class _Bytes(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class _Array(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("size", ctypes.c_size_t), ("items", ctypes.c_void_p)]


class _Data(ctypes.Union):
    _fields_ = [("string", ctypes.c_char_p), ("uint16", ctypes.c_uint16), ("uint32", ctypes.c_uint32), ("regex", _Bytes),
                ("array", ctypes.POINTER(_Array)), ("space", ctypes.c_uint64 * 3)]


class _Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("data", _Data)]


class _Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value)]


class _Process(ctypes.Structure):
    _fields_ = [("space", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


def _info(key: str, kind: int, value: Any) -> _Info:
    made = _Info(key=key.encode())
    made.value.type = kind
    if kind == _STRING:
        made.value.data.string = value.encode()
    elif kind == _REGEX:
        made.value.data.regex = _Bytes(value, len(value) + 1)
    elif kind == _UINT16:
        made.value.data.uint16 = value
    elif kind == _DATA_ARRAY:
        items = (_Info * len(value))(*value)
        made.value.data.array = ctypes.pointer(_Array(_INFO, len(value), ctypes.cast(items, ctypes.c_void_p)))
    else:
        made.value.data.uint32 = value
    return made


_CONNECTED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Process), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def _note(began: Callable[[int], None], process: Any, server_object: Any, callback: Any, data: Any) -> int:
    began(process[0].rank)
    return -157


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def _at_once(process: Any, server_object: Any, callback: Any, data: Any) -> int:
    return -157


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t,
                  ctypes.c_void_p, ctypes.c_void_p)
def _no_control(process: Any, targets: Any, count: Any, infos: Any, number: Any, callback: Any, data: Any) -> int:
    """Without it libpmix does not even do what it can do itself: remove the files that processes tell it of."""
    return -47  # PMIX_ERR_NOT_SUPPORTED


_FENCED = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p,
                           ctypes.c_void_p)


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                  ctypes.c_size_t, _FENCED, ctypes.c_void_p)
def _fence(processes: Any, count: Any, infos: Any, number: Any, data: Any, size: Any, callback: Any, argument: Any) -> int:
    """All of this host's have come, and there are no others: what they brought is all there is."""
    callback(0, data, size, argument, None, None)
    return 0


_QUIET = {"OMPI_MCA_btl": "^tcp"}  # else every rank listens on all addresses, for who would come from another host
_CALLBACKS = 64  # members of pmix_server_module_t, and room for more
_SERVED: dict[int, Any] = {1: _at_once, 3: _fence, 19: _no_control}  # client_finalized, fence_nb, job_control


class PmixServer:
    """Answers from threads of libpmix, until it is closed. A context manager; a process has at most one in its life."""

    def __init__(self, size: int, path: str, folder: str, began: Callable[[int], None]) -> None:
        """path: libpmix. folder: for its files. began: called with the rank of each process that comes. Raises DistBackendError
        where it does not do."""
        self._size, self._folder = size, folder
        self._connected = _CONNECTED(partial(_note, began))
        self._space = f"arraycomm-{os.getpid()}".encode()
        try:
            self._library: Any = ctypes.CDLL(path)
            self._begin()
        except (OSError, AttributeError) as error:
            raise DistBackendError(f"{path} cannot serve Open MPI's processes: {error}") from error

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code not in _DONE:
            raise OSError(f"{function} gave {code}")

    def _begin(self) -> None:
        self._module = (ctypes.c_void_p * _CALLBACKS)()
        for place, function in {0: self._connected, **_SERVED}.items():
            self._module[place] = ctypes.cast(function, ctypes.c_void_p).value
        options = self._infos([_info("pmix.srvr.tmpdir", _STRING, self._folder), _info("pmix.sys.tmpdir", _STRING, self._folder)])
        self._call("PMIx_server_init", self._module, options, ctypes.c_size_t(len(options)))
        job = self._infos(self._job())
        self._call("PMIx_server_register_nspace", self._space, self._size, job, ctypes.c_size_t(len(job)), None, None)
        ids = os.getuid(), os.getgid()
        for rank in range(self._size):
            self._call("PMIx_server_register_client", ctypes.byref(self._process(rank)), *ids, None, None, None)

    @staticmethod
    def _infos(infos: Sequence[_Info]) -> Any:
        return (_Info * len(infos))(*infos)

    def _process(self, rank: int) -> _Process:
        return _Process(self._space, rank)

    def _map(self, function: str, text: str) -> bytes:
        found = ctypes.c_char_p()
        self._call(function, text.encode(), ctypes.byref(found))
        return found.value or b""

    def _job(self) -> list[_Info]:
        host, size = socket.gethostname(), self._size
        ranks = ",".join(str(rank) for rank in range(size))
        job = [_info(key, _UINT32, size) for key in ("pmix.univ.size", "pmix.job.size", "pmix.local.size", "pmix.max.size")]
        job += [_info("pmix.num.nodes", _UINT32, 1), _info("pmix.job.napps", _UINT32, 1), _info("pmix.lpeers", _STRING, ranks),
                _info("pmix.nmap", _REGEX, self._map("PMIx_generate_regex", host)),
                _info("pmix.pmap", _REGEX, self._map("PMIx_generate_ppn", ranks)),
                _info("pmix.lldr", _RANK, 0), _info("pmix.jobid", _STRING, self._space.decode()),
                _info("pmix.nsdir", _STRING, self._folder)]  # for its files in shared memory, which go with the folder
        for rank in range(size):
            job.append(_info("pmix.pdata", _DATA_ARRAY, [
                _info("pmix.rank", _RANK, rank), _info("pmix.grank", _RANK, rank), _info("pmix.apprank", _RANK, rank),
                _info("pmix.lrank", _UINT16, rank), _info("pmix.nrank", _UINT16, rank), _info("pmix.nodeid", _UINT32, 0),
                _info("pmix.appnum", _UINT32, 0), _info("pmix.hname", _STRING, host)]))
        return job

    def variables(self, rank: int) -> dict[str, str]:
        found = ctypes.POINTER(ctypes.c_char_p)()
        self._call("PMIx_server_setup_fork", ctypes.byref(self._process(rank)), ctypes.byref(found))
        texts: list[str] = []
        while text := found[len(texts)]:
            texts.append(text.decode())
        quiet = {name: value for name, value in _QUIET.items() if name not in os.environ}
        return quiet | dict(text.partition("=")[::2] for text in texts)

    def descriptors(self, rank: int) -> tuple[int, ...]:
        """What the process inherits."""
        return ()

    def __enter__(self) -> PmixServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.PMIx_server_finalize()
