//! Commands for shared receive queues.

use uwarp_verbs::{SrqAttr, SrqModify};

use crate::json::{Fields, Line};
use crate::refusal::{Refusal, by};
use crate::session::Session;

impl Session {
    pub(crate) fn srq(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let attr = SrqAttr::default()
            .max_wr(fields.number_as("max_wr", 64)?)
            .max_sge(fields.number_as("sge", 4)?)
            .limit(fields.number_as("limit", 0)?);
        let number = self.srqs.free()?;
        let pd = self.pd(fields.number("pd", 0)?)?;
        let srq = pd.create_srq(attr).map_err(by("ibv_create_srq"))?;
        self.srqs.put(number, srq);
        answer.number("srq", number);
        Ok(())
    }

    pub(crate) fn srq_modify(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let given = |key| {
            let value = fields.has(key).then(|| fields.number_as(key, 0));
            value.transpose()
        };
        let change = SrqModify::default()
            .max_wr(given("max_wr")?)
            .limit(given("limit")?);
        let modified = self.srqs.get(srq_number(fields)?)?.modify(change);
        modified.map_err(|error| Refusal::invalid("ibv_modify_srq", &error))
    }

    pub(crate) fn srq_query(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let attr = self.srqs.get(srq_number(fields)?)?.query();
        answer.number("max_wr", attr.max_wr);
        answer.number("sge", attr.max_sge);
        answer.number("limit", attr.limit);
        Ok(())
    }

    pub(crate) fn srq_destroy(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let number = srq_number(fields)?;
        let srq = self.srqs.take(number)?;
        srq.destroy(Some(std::time::Duration::ZERO))
            .map_err(|(srq, error)| {
                self.srqs.put(number, srq);
                by("ibv_destroy_srq")(error)
            })
    }
}

/// Returns the number of the queue that a command names. If it names none, returns a number that no
/// queue has.
pub(crate) fn srq_number(fields: &Fields) -> Result<u64, Refusal> {
    fields.number("srq", u64::MAX)
}
