//! Queue pairs that are connected by their numbers: `ibv_modify_qp` to RTR and RTS, as on
//! InfiniBand.
//!
//! ```text
//!   RESET ──► INIT ──► RTR: the peer is known, and is called or awaited ──► RTS
//! ```
//!
//! RTR names the number and the GID of the peer. The GID is an IP address. Without a GRH there is
//! no GID, and the peer is on this host. The state that programs see is the one they requested
//! last, as long as there is no error: InfiniBand does not notice whether the peer is there.
#![expect(
    unsafe_code,
    reason = "unions of the C interface, all of whose fields are numbers"
)]

use core::ffi::c_int;
use core::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{PairError, PairOptions, PeerQp, Qp};

use crate::abi::{
    IBV_QP_ALT_PATH, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MIG_STATE, IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR,
    IBV_QPS_RTS, ibv_ah_attr, ibv_qp_attr, ibv_qp_state,
};
use crate::errno;
use crate::gids::GidEntry;

/// Attributes that the step from INIT to RTR needs.
const FOR_RTR: u32 = IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;
/// Attributes that the step from RTR to RTS needs.
const FOR_RTS: u32 =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
/// As [`FOR_RTR`], for an unreliable connection. It has neither Reads nor retries.
const FOR_RTR_UNRELIABLE: u32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
/// As [`FOR_RTS`], for an unreliable connection.
const FOR_RTS_UNRELIABLE: u32 = IBV_QP_SQ_PSN;
/// Largest `ibv_mtu`: 4096 bytes.
const MAX_MTU: u32 = 5;
/// Unit of `ibv_qp_attr.timeout`, which is an exponent of two.
const TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);

/// Type of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// Reliable connection (RC).
    Reliable,
    /// Unreliable connection (UC).
    Unreliable,
    /// Unreliable datagrams (UD).
    Datagrams,
}

/// Settings for all queue pairs that are connected by their numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairSettings {
    /// Time that a send waits for the peer (`UWARP_OOB_TIMEOUT`).
    pub(crate) patience: Patience,
    /// A Write completes when the peer has placed it (`UWARP_PLACED_WRITES`).
    pub(crate) placed_writes: bool,
}

/// Minimum and maximum of the time that a send waits for the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Patience {
    pub(crate) least: Duration,
    /// Without one, the timeout and the retry count of the program decide.
    pub(crate) most: Option<Duration>,
}

/// Numbers and attributes of a queue pair that can be connected by its number.
pub(crate) struct Pairing {
    gids: Arc<[GidEntry]>,
    settings: PairSettings,
    service: Service,
    state: Mutex<State>,
}

struct State {
    /// The program has given the queue pair its peer, or it receives datagrams.
    is_paired: bool,
    /// Attributes that the program has set.
    set: ibv_qp_attr,
}

/// Reason why a step is refused: the error number, and words for the user.
pub(super) type Refusal = (c_int, &'static str);

impl Pairing {
    pub(crate) fn new(gids: Arc<[GidEntry]>, settings: PairSettings, service: Service) -> Self {
        Pairing {
            gids,
            settings,
            service,
            state: Mutex::new(State {
                is_paired: false,
                // SAFETY: all bytes may be zero: the structure has only numbers.
                set: unsafe { mem::zeroed() },
            }),
        }
    }

    /// Records that a queue pair for datagrams receives.
    pub(super) fn opened(&self) {
        self.state.lock().is_paired = true;
    }

    /// Returns true if the queue pair has a peer that was named by its number.
    pub(super) fn is_paired(&self) -> bool {
        self.state.lock().is_paired
    }

    /// Returns the attributes that the program has set; the others are zero.
    pub(super) fn attributes(&self) -> ibv_qp_attr {
        self.state.lock().set
    }

    /// Records the attributes of a change that was carried out.
    pub(super) fn record(&self, attr: &ibv_qp_attr, mask: u32) {
        let mut state = self.state.lock();
        if mask & IBV_QP_STATE != 0 && attr.qp_state == IBV_QPS_RESET {
            state.is_paired = false;
            // SAFETY: as above.
            state.set = unsafe { mem::zeroed() };
            return;
        }
        merge(&mut state.set, attr, mask);
    }

    /// Takes the step to RTR, which gives the queue pair its peer. `now`: state that the program
    /// requested last.
    pub(super) fn to_rtr(
        &self,
        qp: &Qp,
        now: ibv_qp_state,
        attr: &ibv_qp_attr,
        mask: u32,
    ) -> Result<(), Refusal> {
        if now != IBV_QPS_INIT {
            return Err((libc::EINVAL, "RTR follows INIT"));
        }
        let (needs, words) = match self.service {
            Service::Reliable => (
                FOR_RTR,
                "the mask for RTR must contain IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, \
                 IBV_QP_RQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC and IBV_QP_MIN_RNR_TIMER",
            ),
            Service::Unreliable | Service::Datagrams => (
                FOR_RTR_UNRELIABLE,
                "the mask for RTR must contain IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN and \
                 IBV_QP_RQ_PSN",
            ),
        };
        if mask & needs != needs {
            return Err((libc::EINVAL, words));
        }
        if !(1..=MAX_MTU).contains(&attr.path_mtu) {
            return Err((libc::EINVAL, "the path MTU is no value of enum ibv_mtu"));
        }
        let (local, addr) = path(&self.gids, &attr.ah_attr)?;
        let options = PairOptions::default()
            .local(local)
            .ird(attr.max_dest_rd_atomic.into())
            .patience(Some(self.settings.patience.least))
            .placed_writes(Some(self.settings.placed_writes));
        let peer = PeerQp::new(addr, attr.dest_qp_num);
        qp.pair(peer, &options).map_err(|error| match error {
            PairError::Device(error) => (
                errno::of_device(&error),
                "the port of its number cannot listen",
            ),
            PairError::Llp(LlpError::Misuse { .. }) => (
                libc::EOPNOTSUPP,
                "only on the kernel's TCP a queue pair can be connected to itself",
            ),
            PairError::Llp(_) => (libc::ENOMEM, "it cannot be connected to itself"),
            PairError::Inherited(_) => (libc::EIO, "it belongs to the parent process"),
            _ => (libc::EINVAL, "it is in use"),
        })?;
        self.state.lock().is_paired = true;
        Ok(())
    }

    /// Takes the step to RTS, which tells how long a send waits for the peer.
    pub(super) fn to_rts(
        &self,
        qp: &Qp,
        now: ibv_qp_state,
        attr: &ibv_qp_attr,
        mask: u32,
    ) -> Result<(), Refusal> {
        match now {
            IBV_QPS_RTR if self.service != Service::Reliable => match mask & FOR_RTS_UNRELIABLE {
                FOR_RTS_UNRELIABLE => Ok(()),
                _ => Err((libc::EINVAL, "the mask for RTS must contain IBV_QP_SQ_PSN")),
            },
            IBV_QPS_RTR if mask & FOR_RTS == FOR_RTS => {
                let limits = self.settings.patience;
                qp.set_patience(limits.of(attr.timeout, attr.retry_cnt));
                Ok(())
            }
            IBV_QPS_RTR => {
                let words = "the mask for RTS must contain IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, \
                    IBV_QP_RNR_RETRY, IBV_QP_SQ_PSN and IBV_QP_MAX_QP_RD_ATOMIC";
                Err((libc::EINVAL, words))
            }
            IBV_QPS_RTS => Ok(()),
            _ => Err((libc::EINVAL, "RTS follows RTR")),
        }
    }
}

/// Returns the local address of a path, and the address of the peer.
pub(crate) fn path(
    gids: &[GidEntry],
    path: &ibv_ah_attr,
) -> Result<(Option<SocketAddr>, IpAddr), Refusal> {
    if path.port_num != 1 {
        return Err((libc::EINVAL, "the port of the path is not 1"));
    }
    if path.is_global == 0 {
        return Ok((None, Ipv4Addr::LOCALHOST.into()));
    }
    let own = gids.get(usize::from(path.grh.sgid_index));
    let own = own.ok_or((libc::EINVAL, "the GID table has no entry sgid_index"))?;
    // SAFETY: every field of the union is made of numbers.
    let peer = Ipv6Addr::from(unsafe { path.grh.dgid.raw }).to_canonical();
    if peer.is_unspecified() || peer.is_multicast() {
        return Err((libc::EINVAL, "the GID of the peer is no unicast address"));
    }
    let local = match Ipv6Addr::from(own.gid.0).to_canonical() {
        IpAddr::V4(addr) => SocketAddr::new(addr.into(), 0),
        IpAddr::V6(addr) => {
            let scope = match addr.is_unicast_link_local() {
                true => own.interface,
                false => 0,
            };
            SocketAddrV6::new(addr, 0, 0, scope).into()
        }
    };
    // The program may have chosen an entry of the other family; the network then chooses the
    // address.
    let is_usable = local.is_ipv4() == peer.is_ipv4();
    Ok((is_usable.then_some(local), peer))
}

impl Patience {
    /// Returns the time that a send waits for the peer: four times what InfiniBand would repeat it
    /// for, within the limits. Timeout 0 means without end.
    fn of(self, timeout: u8, retry_cnt: u8) -> Option<Duration> {
        if timeout == 0 {
            return None;
        }
        let once = TIMEOUT_UNIT.saturating_mul(1 << timeout.min(31));
        let whole = once.saturating_mul(4 * (u32::from(retry_cnt) + 1));
        let long = whole.max(self.least);
        Some(self.most.map_or(long, |most| long.min(most)))
    }
}

fn merge(set: &mut ibv_qp_attr, attr: &ibv_qp_attr, mask: u32) {
    let has = |bit| mask & bit != 0;
    let mut take = |bit, copy: &dyn Fn(&mut ibv_qp_attr)| {
        if has(bit) {
            copy(set);
        }
    };
    take(IBV_QP_PKEY_INDEX, &|set| set.pkey_index = attr.pkey_index);
    take(IBV_QP_PORT, &|set| set.port_num = attr.port_num);
    take(IBV_QP_QKEY, &|set| set.qkey = attr.qkey);
    take(IBV_QP_AV, &|set| set.ah_attr = attr.ah_attr);
    take(IBV_QP_PATH_MTU, &|set| set.path_mtu = attr.path_mtu);
    take(IBV_QP_TIMEOUT, &|set| set.timeout = attr.timeout);
    take(IBV_QP_RETRY_CNT, &|set| set.retry_cnt = attr.retry_cnt);
    take(IBV_QP_RNR_RETRY, &|set| set.rnr_retry = attr.rnr_retry);
    take(IBV_QP_RQ_PSN, &|set| set.rq_psn = attr.rq_psn);
    take(IBV_QP_SQ_PSN, &|set| set.sq_psn = attr.sq_psn);
    take(IBV_QP_MAX_QP_RD_ATOMIC, &|set| {
        set.max_rd_atomic = attr.max_rd_atomic;
    });
    take(IBV_QP_MAX_DEST_RD_ATOMIC, &|set| {
        set.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    });
    take(IBV_QP_MIN_RNR_TIMER, &|set| {
        set.min_rnr_timer = attr.min_rnr_timer;
    });
    take(IBV_QP_DEST_QPN, &|set| set.dest_qp_num = attr.dest_qp_num);
    take(IBV_QP_PATH_MIG_STATE, &|set| {
        set.path_mig_state = attr.path_mig_state;
    });
    take(IBV_QP_ALT_PATH, &|set| {
        set.alt_ah_attr = attr.alt_ah_attr;
        set.alt_pkey_index = attr.alt_pkey_index;
        set.alt_port_num = attr.alt_port_num;
        set.alt_timeout = attr.alt_timeout;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_waits_four_times_as_long_as_infiniband_would_repeat_it_and_never_too_short() {
        let least = Duration::from_secs(5);
        let patience = Patience { least, most: None };
        assert_eq!(patience.of(0, 7), None);
        assert_eq!(patience.of(14, 7), Some(least));
        // 4.096 us * 2^18 * 8 * 4.
        let repeated = Duration::from_nanos(4096 * (1 << 18) * 32);
        assert_eq!(patience.of(18, 7), Some(repeated));
        assert!(patience.of(255, 255).unwrap() > Duration::from_secs(1 << 20));
    }

    #[test]
    fn a_maximum_limits_how_long_a_send_waits_but_not_one_that_waits_without_end() {
        let [least, most] = [5, 20].map(Duration::from_secs);
        let limited = Some(most);
        let patience = Patience {
            least,
            most: limited,
        };
        assert_eq!(patience.of(14, 7), Some(least));
        assert_eq!(patience.of(18, 7), limited);
        assert_eq!(patience.of(255, 255), limited);
        assert_eq!(patience.of(0, 7), None);
    }

    fn pairing() -> Pairing {
        let entry = |addr: &str, interface| GidEntry {
            gid: uwarp_verbs::Gid(addr.parse::<Ipv6Addr>().unwrap().octets()),
            interface,
        };
        let gids = [
            entry("::ffff:192.0.2.1", 2),
            entry("2001:db8::1", 2),
            entry("fe80::1", 3),
        ];
        let settings = PairSettings {
            patience: Patience {
                least: Duration::from_secs(5),
                most: None,
            },
            placed_writes: true,
        };
        Pairing::new(gids.into(), settings, Service::Reliable)
    }

    fn path(dgid: &str, sgid_index: u8) -> ibv_ah_attr {
        // SAFETY: all bytes may be zero: the structure has only numbers.
        let mut path: ibv_ah_attr = unsafe { mem::zeroed() };
        path.port_num = 1;
        path.is_global = 1;
        path.grh.sgid_index = sgid_index;
        path.grh.dgid.raw = dgid.parse::<Ipv6Addr>().unwrap().octets();
        path
    }

    #[test]
    fn a_gid_is_an_address_of_either_family_and_no_gid_is_this_host() {
        let pairing = pairing();
        let found = |dgid, index| super::path(&pairing.gids, &path(dgid, index)).unwrap();
        let v4 = "192.0.2.9".parse().unwrap();
        assert_eq!(
            found("::ffff:192.0.2.9", 0),
            (Some("192.0.2.1:0".parse().unwrap()), v4)
        );
        // No TCP connection has addresses of two families.
        assert_eq!(found("::ffff:192.0.2.9", 1), (None, v4));
        let v6 = "2001:db8::9".parse().unwrap();
        assert_eq!(
            found("2001:db8::9", 1),
            (Some("[2001:db8::1]:0".parse().unwrap()), v6)
        );
        let near = Some("[fe80::1%3]:0".parse().unwrap());
        assert_eq!(found("fe80::9", 2), (near, "fe80::9".parse().unwrap()));
        let mut here = path("::", 9);
        here.is_global = 0;
        assert_eq!(
            super::path(&pairing.gids, &here).unwrap(),
            (None, Ipv4Addr::LOCALHOST.into())
        );
    }

    #[test]
    fn a_path_to_no_host_or_from_no_gid_is_refused() {
        let pairing = pairing();
        for (dgid, index) in [
            ("::", 0),
            ("ff02::1", 0),
            ("::ffff:0.0.0.0", 0),
            ("2001:db8::9", 3),
        ] {
            assert_eq!(
                super::path(&pairing.gids, &path(dgid, index))
                    .unwrap_err()
                    .0,
                libc::EINVAL,
                "{dgid}"
            );
        }
        let mut elsewhere = path("2001:db8::9", 1);
        elsewhere.port_num = 2;
        assert!(super::path(&pairing.gids, &elsewhere).is_err());
    }

    #[test]
    fn attributes_that_were_set_are_given_back_until_a_reset() {
        let pairing = pairing();
        // SAFETY: as above.
        let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
        (attr.rq_psn, attr.sq_psn, attr.timeout) = (7, 8, 14);
        pairing.record(&attr, IBV_QP_RQ_PSN | IBV_QP_TIMEOUT);
        let set = pairing.attributes();
        assert_eq!((set.rq_psn, set.sq_psn, set.timeout), (7, 0, 14));
        attr.qp_state = IBV_QPS_RESET;
        pairing.record(&attr, IBV_QP_STATE);
        assert_eq!(pairing.attributes().rq_psn, 0);
    }
}
