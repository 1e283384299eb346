//! The command `query`: properties of the device, and features that only this agent has.

use uwarp_verbs::{PortState, Revision};

use crate::json::{Fields, Line};
use crate::refusal::Refusal;
use crate::session::Session;

/// Value of `IBV_TRANSPORT_IWARP` in libibverbs.
const IWARP: u32 = 1;

impl Session {
    pub(crate) fn query(&mut self, _: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let device = &self.common.device;
        let attr = device.query();
        let port = device
            .query_port(1)
            .map_err(|error| Refusal::invalid("ibv_query_port", &error))?;
        let state = match port.state {
            PortState::Active => "PORT_ACTIVE",
            PortState::Down => "PORT_DOWN",
        };
        answer.text("device", device.name());
        answer.number("transport", IWARP);
        answer.number("vendor", attr.vendor_id);
        answer.number("part", attr.vendor_part_id);
        answer.text("firmware", attr.fw_ver);
        answer.text("port", state);
        answer.number("mtu", 128u32 << port.active_mtu);
        answer.number("max_qp", attr.max_qp);
        answer.number("max_qp_wr", attr.max_qp_wr);
        answer.number("max_sge", attr.max_sge);
        answer.number("max_sge_rd", attr.max_sge_rd);
        answer.number("max_srq", attr.max_srq);
        answer.number("max_srq_wr", attr.max_srq_wr);
        answer.number("max_cqe", attr.max_cqe);
        answer.number("max_ird", attr.max_qp_rd_atom);
        answer.number("max_ord", attr.max_qp_init_rd_atom);
        answer.number("max_mw", attr.max_mw);
        answer.number("atomics", attr.atomic_cap as u32);
        answer.number("caps", attr.device_cap_flags);
        self.features(answer);
        Ok(())
    }

    fn features(&self, answer: &mut Line) {
        let settings = self.common.device.settings();
        let enhanced = settings.revision == Revision::Two;
        answer.flag("markers", settings.markers);
        answer.flag("crc", settings.crc);
        answer.number("mpa", settings.revision.code());
        answer.flag("rfc7306", true);
        answer.number("private_data_max", if enhanced { 508u32 } else { 512 });
        answer.number("ird_max", settings.limits.max_ird);
        answer.number("ord_max", settings.limits.max_ord);
        answer.flag("windows", true);
        answer.flag("scoped_regions", true);
        answer.flag("peer_to_peer", enhanced);
        answer.number("imm_bytes", 8u32);
        if let Some(port) = self.common.rdma_port {
            answer.number("rdma_port", port);
        }
    }
}
