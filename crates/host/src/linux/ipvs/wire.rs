//! Attribute numbers of `linux/ip_vs.h`.

/// `IPVS_CMD_ATTR_*`.
pub(super) mod top {
    pub(crate) const SERVICE: u16 = 1;
    pub(crate) const DEST: u16 = 2;
    pub(crate) const TIMEOUT_TCP: u16 = 4;
    pub(crate) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(crate) const TIMEOUT_UDP: u16 = 6;
}

/// `IPVS_INFO_ATTR_*`.
pub(super) mod info {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const CONN_TAB_SIZE: u16 = 2;
}

/// `IPVS_SVC_ATTR_*`.
pub(super) mod svc {
    pub(crate) const AF: u16 = 1;
    pub(crate) const PROTOCOL: u16 = 2;
    pub(crate) const ADDR: u16 = 3;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const FWMARK: u16 = 5;
    pub(crate) const SCHED_NAME: u16 = 6;
    pub(crate) const FLAGS: u16 = 7;
    pub(crate) const TIMEOUT: u16 = 8;
    pub(crate) const NETMASK: u16 = 9;
    pub(crate) const STATS: u16 = 10;
    pub(crate) const PE_NAME: u16 = 11;
    pub(crate) const STATS64: u16 = 12;
}

/// `IPVS_DEST_ATTR_*`.
pub(super) mod dest {
    pub(crate) const ADDR: u16 = 1;
    pub(crate) const PORT: u16 = 2;
    pub(crate) const FWD_METHOD: u16 = 3;
    pub(crate) const WEIGHT: u16 = 4;
    pub(crate) const U_THRESH: u16 = 5;
    pub(crate) const L_THRESH: u16 = 6;
    pub(crate) const ACTIVE_CONNS: u16 = 7;
    pub(crate) const INACT_CONNS: u16 = 8;
    pub(crate) const PERSIST_CONNS: u16 = 9;
    pub(crate) const STATS: u16 = 10;
    pub(crate) const ADDR_FAMILY: u16 = 11;
    pub(crate) const STATS64: u16 = 12;
}

/// `IPVS_STATS_ATTR_*`: the first five, common to the 32-bit and 64-bit counters.
pub(super) mod stats {
    pub(crate) const CONNS: u16 = 1;
    pub(crate) const INPKTS: u16 = 2;
    pub(crate) const OUTPKTS: u16 = 3;
    pub(crate) const INBYTES: u16 = 4;
    pub(crate) const OUTBYTES: u16 = 5;
}

/// `AF_INET`.
pub(super) const AF_INET: u16 = 2;
/// `AF_INET6`.
pub(super) const AF_INET6: u16 = 10;
/// `IP_VS_CONN_F_FWD_MASK`.
pub(super) const FWD_MASK: u32 = 0x7;
