"""NCCL's C interface: the functions' parameters, and the version that introduced each.

Pointers, handles and streams are declared as integers, as in a Buffer: the ABIs of x86-64 and AArch64 pass both alike.
tests/backends/nccl/test_declarations.py compares all of it with the header and the symbols of two releases.
"""

from __future__ import annotations

OLDEST = 21900  # versions are 10000 * major + 100 * minor + patch

STRUCTS = """
    typedef struct { char internal[128]; } ncclUniqueId;
    typedef struct {
        size_t size; unsigned int magic; unsigned int version;
        int blocking; int cgaClusterSize; int minCTAs; int maxCTAs; const char *netName; int splitShare;
        int trafficClass; const char *commName; int collnetEnable; int CTAPolicy; int shrinkShare; int nvlsCTAs;
        int nChannelsPerNetPeer; int nvlinkCentricSched; int graphUsageMode; int numRmaCtx;
    } ncclConfig_t;
"""

_MOVE = "uintptr_t src, uintptr_t dst, size_t count, int dtype"
_ON = "uintptr_t comm, uintptr_t stream"
# Function -> the first version that has it, what it returns, its parameters.
FUNCTIONS: dict[str, tuple[int, str, str]] = {
    "ncclGetVersion": (OLDEST, "int", "int *version"),
    "ncclGetErrorString": (OLDEST, "const char *", "int result"),
    "ncclGetLastError": (OLDEST, "const char *", "uintptr_t comm"),
    "ncclGetUniqueId": (OLDEST, "int", "ncclUniqueId *id"),
    "ncclCommInitRankConfig": (OLDEST, "int", "uintptr_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config"),
    "ncclCommFinalize": (OLDEST, "int", "uintptr_t comm"),
    "ncclCommDestroy": (OLDEST, "int", "uintptr_t comm"),
    "ncclCommAbort": (OLDEST, "int", "uintptr_t comm"),
    "ncclCommGetAsyncError": (OLDEST, "int", "uintptr_t comm, int *error"),
    "ncclMemAlloc": (OLDEST, "int", "uintptr_t *pointer, size_t bytes"),
    "ncclMemFree": (OLDEST, "int", "uintptr_t pointer"),
    "ncclCommRegister": (OLDEST, "int", "uintptr_t comm, uintptr_t buffer, size_t bytes, uintptr_t *handle"),
    "ncclCommDeregister": (OLDEST, "int", "uintptr_t comm, uintptr_t handle"),
    "ncclCommWindowRegister": (22700, "int", "uintptr_t comm, uintptr_t buffer, size_t bytes, uintptr_t *window, int flags"),
    "ncclCommWindowDeregister": (22700, "int", "uintptr_t comm, uintptr_t window"),
    "ncclRedOpCreatePreMulSum": (OLDEST, "int", "int *op, void *scalar, int dtype, int residence, uintptr_t comm"),
    "ncclRedOpDestroy": (OLDEST, "int", "int op, uintptr_t comm"),
    "ncclReduce": (OLDEST, "int", f"{_MOVE}, int op, int root, {_ON}"),
    "ncclBroadcast": (OLDEST, "int", f"{_MOVE}, int root, {_ON}"),
    "ncclAllReduce": (OLDEST, "int", f"{_MOVE}, int op, {_ON}"),
    "ncclReduceScatter": (OLDEST, "int", f"{_MOVE}, int op, {_ON}"),
    "ncclAllGather": (OLDEST, "int", f"{_MOVE}, {_ON}"),
    "ncclAlltoAll": (22803, "int", f"{_MOVE}, {_ON}"),
    "ncclGather": (22803, "int", f"{_MOVE}, int root, {_ON}"),
    "ncclScatter": (22803, "int", f"{_MOVE}, int root, {_ON}"),
    "ncclSend": (OLDEST, "int", "uintptr_t src, size_t count, int dtype, int peer, uintptr_t comm, uintptr_t stream"),
    "ncclRecv": (OLDEST, "int", "uintptr_t dst, size_t count, int dtype, int peer, uintptr_t comm, uintptr_t stream"),
    "ncclGroupStart": (OLDEST, "int", "void"),
    "ncclGroupEnd": (OLDEST, "int", "void"),
}

# Of enums and macros: name -> value, and the first version that has it.
CONSTANTS: dict[str, tuple[int, int]] = {
    "ncclSuccess": (0, OLDEST), "ncclUnhandledCudaError": (1, OLDEST), "ncclSystemError": (2, OLDEST),
    "ncclInternalError": (3, OLDEST), "ncclInvalidArgument": (4, OLDEST), "ncclInvalidUsage": (5, OLDEST),
    "ncclRemoteError": (6, OLDEST), "ncclInProgress": (7, OLDEST), "ncclTimeout": (8, 23000),
    "ncclSum": (0, OLDEST), "ncclProd": (1, OLDEST), "ncclMax": (2, OLDEST), "ncclMin": (3, OLDEST), "ncclAvg": (4, OLDEST),
    "ncclInt8": (0, OLDEST), "ncclUint8": (1, OLDEST), "ncclInt32": (2, OLDEST), "ncclUint32": (3, OLDEST),
    "ncclInt64": (4, OLDEST), "ncclUint64": (5, OLDEST), "ncclFloat16": (6, OLDEST), "ncclFloat32": (7, OLDEST),
    "ncclFloat64": (8, OLDEST), "ncclBfloat16": (9, OLDEST), "ncclFloat8e4m3": (10, 22400), "ncclFloat8e5m2": (11, 22400),
    "ncclScalarHostImmediate": (1, OLDEST), "NCCL_UNIQUE_ID_BYTES": (128, OLDEST),
    "NCCL_API_MAGIC": (0xCAFEBEEF, 22900), "NCCL_CONFIG_UNDEF_INT": (-(2**31), OLDEST),
    "NCCL_WIN_COLL_SYMMETRIC": (1, 22700), "NCCL_WIN_REQUIRED_ALIGNMENT": (4096, 22700),
    "NCCL_CTA_POLICY_ZERO": (2, 22800), "NCCL_CTA_POLICY_EFFICIENCY": (1, 22700),
    "NCCL_CTA_POLICY_DEFAULT": (0, 22700),
}

# Fields of ncclConfig_t, and the first version that has them. New versions only append fields.
CONFIG: dict[str, int] = {
    "blocking": OLDEST, "cgaClusterSize": OLDEST, "minCTAs": OLDEST, "maxCTAs": OLDEST, "netName": OLDEST,
    "splitShare": OLDEST, "trafficClass": 22700, "commName": 22700, "collnetEnable": 22700, "CTAPolicy": 22700,
    "shrinkShare": 22700, "nvlsCTAs": 22700, "nChannelsPerNetPeer": 22800, "nvlinkCentricSched": 22800,
    "graphUsageMode": 22900, "numRmaCtx": 22900,
}
MAGIC, UNSET = CONSTANTS["NCCL_API_MAGIC"][0], CONSTANTS["NCCL_CONFIG_UNDEF_INT"][0]


def source() -> str:
    """The declarations for cffi."""
    return STRUCTS + "".join(f"{returns} {name}({parameters});\n" for name, (_, returns, parameters) in FUNCTIONS.items())


def version_text(version: int) -> str:
    """22803 -> "2.28.3"."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
