"""torch's ProcessGroupNCCL options as pg_options: the configuration of NCCL communicators.

    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.max_ctas = 4
    dist.init_process_group("nccl", pg_options=options)
"""

from __future__ import annotations

from typing import Any

# torch's name of a field -> that of ncclConfig_t.
_FIELDS = {
    "blocking": "blocking", "cga_cluster_size": "cgaClusterSize", "min_ctas": "minCTAs", "max_ctas": "maxCTAs",
    "net_name": "netName", "split_share": "splitShare", "traffic_class": "trafficClass", "comm_name": "commName",
    "collnet_enable": "collnetEnable", "cta_policy": "CTAPolicy", "shrink_share": "shrinkShare", "nvls_ctas": "nvlsCTAs",
    "n_channels_per_net_peer": "nChannelsPerNetPeer", "nvlink_centric_sched": "nvlinkCentricSched",
    "graph_usage_mode": "graphUsageMode", "num_rma_ctx": "numRmaCtx",
}
_ZERO = 2  # NCCL_CTA_POLICY_ZERO


class NCCLConfig:
    """Fields of ncclConfig_t, by torch's names; what is not set NCCL chooses. AttributeError for a name that it does not have.

    cta_policy: 0 default, 1 efficiency, 2 zero (copies by the copy engines where that is possible; NCCL 2.28).
    """

    CTA_POLICY_DEFAULT, CTA_POLICY_EFFICIENCY, CTA_POLICY_ZERO = 0, 1, _ZERO

    def __init__(self) -> None:
        self.__dict__["_set"] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FIELDS:
            raise AttributeError(f"NCCLConfig has no field {name!r}; it has {', '.join(_FIELDS)}")
        self._set[name] = value

    def __getattr__(self, name: str) -> Any:
        if name not in _FIELDS:
            raise AttributeError(f"NCCLConfig has no field {name!r}; it has {', '.join(_FIELDS)}")
        return self._set.get(name)

    def fields(self) -> dict[str, Any]:
        """The fields that were set, by NCCL's names."""
        return {_FIELDS[name]: value for name, value in self._set.items() if value is not None}


class Options:
    """is_high_priority_stream: of the stream on which asynchronous operations go. config: an NCCLConfig."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NCCLConfig()


class ProcessGroupNCCL:
    """A namespace for the options of backend "nccl", as in torch: Options and NCCLConfig.

    Groups themselves are made by init_process_group("nccl") and new_group().

    - Blocks: never; NCCL is not loaded.
    - Errors: AttributeError for a field that NCCLConfig does not have.

    Examples:
        >>> options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        >>> options.config.max_ctas = 4
    """

    Options = Options
    NCCLConfig = NCCLConfig


def configure(engine: Any, options: Any, device: Any, *, asked: bool) -> None:
    """Sets the options before the engine opens a group on this device (None: the current one). asked: NCCL was requested by
    name; otherwise it is opened with the first array on a GPU. TypeError for options of another kind."""
    engine.lazy = not asked and device is None
    if device is not None:
        engine.device = int(str(device).rpartition(":")[2])
    if options is None:
        return
    if not isinstance(options, Options):
        raise TypeError(f"pg_options of backend nccl are ProcessGroupNCCL.Options, got {type(options).__name__}")
    engine.options, engine.high_priority = options.config.fields(), bool(options.is_high_priority_stream)
