//! Commands for shared receive queues.

use uwarp_verbs::{Srq, SrqAttr, SrqModify};

use crate::budget::Charge;
use crate::endpoint::receive_queue_memory;
use crate::json::{Fields, Line};
use crate::refusal::{Refusal, by};
use crate::session::Session;

/// A shared receive queue of a controller.
pub(crate) struct SharedQueue {
    pub(crate) srq: Srq,
    /// Dropped after the queue.
    charge: Charge,
}

impl Session {
    pub(crate) fn srq(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let (max_wr, sge) = (fields.number_as("max_wr", 64)?, fields.number_as("sge", 4)?);
        let attr = SrqAttr::default()
            .max_wr(max_wr)
            .max_sge(sge)
            .limit(fields.number_as("limit", 0)?);
        let number = self.srqs.free()?;
        let pd = self.pd(fields.number("pd", 0)?)?;
        let charge = self
            .common
            .memory
            .charge(receive_queue_memory(max_wr, sge))?;
        let srq = pd.create_srq(attr).map_err(by("ibv_create_srq"))?;
        self.srqs.put(number, SharedQueue { srq, charge });
        answer.number("srq", number);
        Ok(())
    }

    pub(crate) fn srq_modify(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let given = |key| {
            let value = fields.has(key).then(|| fields.number_as(key, 0));
            value.transpose()
        };
        let max_wr = given("max_wr")?;
        let change = SrqModify::default().max_wr(max_wr).limit(given("limit")?);
        let queue = self.srqs.get_mut(srq_number(fields)?)?;
        let charge = max_wr.map(|max_wr| {
            let bytes = receive_queue_memory(max_wr, queue.srq.query().max_sge);
            self.common.memory.charge(bytes)
        });
        let charge = charge.transpose()?;
        let modified = queue.srq.modify(change);
        modified.map_err(|error| Refusal::invalid("ibv_modify_srq", &error))?;
        if let Some(charge) = charge {
            queue.charge = charge;
        }
        Ok(())
    }

    pub(crate) fn srq_query(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let attr = self.srqs.get(srq_number(fields)?)?.srq.query();
        answer.number("max_wr", attr.max_wr);
        answer.number("sge", attr.max_sge);
        answer.number("limit", attr.limit);
        Ok(())
    }

    pub(crate) fn srq_destroy(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let number = srq_number(fields)?;
        let SharedQueue { srq, charge } = self.srqs.take(number)?;
        srq.destroy(Some(std::time::Duration::ZERO))
            .map_err(|(srq, error)| {
                self.srqs.put(number, SharedQueue { srq, charge });
                by("ibv_destroy_srq")(error)
            })
    }
}

/// Returns the number of the queue that a command names. If it names none, returns a number that no
/// queue has.
pub(crate) fn srq_number(fields: &Fields) -> Result<u64, Refusal> {
    fields.number("srq", u64::MAX)
}
