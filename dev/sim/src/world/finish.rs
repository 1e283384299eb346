//! Ends of connections, and the checks that follow.

use std::collections::VecDeque;

use uwarp_verbs::{DeviceUsage, QpModify, QpState};

use super::completed::placed;
use super::verdict::describe;
use super::{Event, PATIENCE, Stage, World};
use crate::end::{End, both};

impl World {
    /// Closes a connection whose programs are done, or finishes a connection whose ends are both
    /// over. Returns true if the connection was closed or finished.
    pub(crate) fn check_end(&mut self, number: usize) -> Result<bool, String> {
        let connection = &mut self.connections[number];
        if connection.stage == Stage::Over {
            return Ok(false);
        }
        let state = |end: &End| end.qp.as_ref().map(uwarp_verbs::Qp::state);
        let states = connection.ends.each_ref().map(state);
        let ended = |end: &End| end.qp.as_ref().is_some_and(|qp| qp.end_reason().is_some());
        if connection.ending.is_none() && connection.ends.iter().any(ended) {
            connection.ending = Some(self.clock.elapsed());
        }
        let over = |state: &Option<QpState>| matches!(state, None | Some(QpState::Error));
        let [first, second] = &states;
        // A QP that never began to connect or to accept stays Idle. All others detect the end of
        // the connection.
        let nobody = !connection.accepted && *second == Some(QpState::Idle);
        let never = *first == Some(QpState::Idle)
            && connection.may_fail()
            && (connection.stage == Stage::Closing || over(second) || connection.id.is_none());
        if (over(first) || never) && (over(second) || nobody) {
            return self.finish(number).map(|()| true);
        }
        let done = connection.ends.iter().all(|end| end.is_done() && end.open);
        if connection.stage == Stage::Open && done && connection.refusals.is_empty() {
            connection.stage = Stage::Closing;
            let end = usize::from(self.random.bool());
            self.log.event(self.clock.elapsed(), || {
                format!("connection {number} end {end}: disconnects")
            });
            if let Some(qp) = &connection.ends[end].qp {
                qp.disconnect();
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Handles a connection that is not over after `PATIENCE`. If a host does not poll its CQ, ends
    /// the connection and waits once more. Otherwise, or if this is the second time (`again`),
    /// returns an error.
    pub(crate) fn patience_over(
        &mut self,
        number: usize,
        round: u32,
        again: bool,
    ) -> Result<(), String> {
        let connection = &mut self.connections[number];
        if connection.stage == Stage::Over || connection.round != round {
            return Ok(());
        }
        let states = connection.ends.each_ref().map(|end| {
            let sends = end.sends.iter().filter(|sent| sent.signaled).count();
            let qp = end.qp.as_ref();
            (
                qp.map(uwarp_verbs::Qp::state),
                sends,
                end.expected.len(),
                end.operations,
            )
        });
        let stage = connection.stage;
        // An unpolled CQ does not excuse a connection that has begun to end (`ending`), because the
        // connection's own timeouts should have ended it.
        let polled =
            |end: &End| (self.hosts[end.host].as_ref()).is_some_and(|host| !host.plan.overflow);
        let polled = connection.ends.iter().all(polled);
        if polled || connection.ending.is_some() || again {
            return Err(format!(
                "connection {number} does not end; {stage:?}; invalid requests: {:?}; for each end (state, requests, expected messages, operations): {states:?}",
                connection.refusals
            ));
        }
        connection.stage = Stage::Closing;
        for end in &connection.ends {
            if let Some(qp) = &end.qp {
                if self.random.bool() {
                    qp.abort();
                } else {
                    qp.disconnect();
                }
            }
        }
        let again = Event::Over {
            connection: number,
            round,
            again: true,
        };
        self.at(self.clock.elapsed() + PATIENCE, again);
        Ok(())
    }

    /// Handles a connection with both ends over. Checks that every request has completed and that
    /// memory matches the model, then begins the next round.
    pub(crate) fn finish(&mut self, number: usize) -> Result<(), String> {
        let hosts = self.connections[number].plan.hosts;
        for end in &self.connections[number].ends {
            if let Some(qp) = end.qp.as_ref().filter(|qp| qp.state() == QpState::Idle) {
                // This QP was never connected, so its receives are not flushed yet.
                let _ = qp.modify(&QpModify::new().state(QpState::Error));
                let _ = qp.reset();
            }
        }
        for host in hosts {
            while self.poll(host, 16)? > 0 {}
        }
        for host in hosts {
            self.handle_cm(host)?;
        }
        let now = self.clock.elapsed();
        let connection = &mut self.connections[number];
        let reasons = (connection.ends.each_ref())
            .map(|end| end.qp.as_ref().and_then(uwarp_verbs::Qp::end_reason));
        self.log.event(now, || {
            let [first, second] = describe(&reasons);
            format!(
                "connection {number} is over\n{:21}end 0: {first}\n{:21}end 1: {second}",
                "", ""
            )
        });
        let may_fail = connection.may_fail();
        let lasted = now - connection.ending.unwrap_or(now);
        self.judge(number, &reasons)?;
        self.count(number, &reasons);
        self.check_end_time(number, lasted)?;
        let connection = &mut self.connections[number];
        for end in 0..2 {
            let (me, peer) = both(&mut connection.ends, end);
            let polled = (self.hosts[me.host].as_ref()).is_some_and(|host| !host.plan.overflow);
            check_settled(me, peer, polled, may_fail)
                .map_err(|error| format!("connection {number} end {end}: {error}"))?;
        }
        self.check_memory(number)?;
        self.next_round(number)
    }

    pub(crate) fn check_memory(&self, number: usize) -> Result<(), String> {
        for (index, end) in self.connections[number].ends.iter().enumerate() {
            let whose = format!("connection {number} end {index}");
            let overflow = self.hosts[end.host]
                .as_ref()
                .is_none_or(|host| host.plan.overflow);
            if let Some(memory) = &end.memory {
                memory.source.check(&whose)?;
                memory.target.check(&whose)?;
                for lent in &memory.lent {
                    lent.memory.check(&whose)?;
                }
                memory.sink.check(&whose)?;
                // Without completions the expected content of receives is unknown.
                if let Some(receives) = memory.receives.as_ref().filter(|_| !overflow) {
                    receives.check(&whose)?;
                }
            }
            let resources = self.hosts[end.host]
                .as_ref()
                .and_then(|host| host.resources.as_ref());
            if let Some(shared) = resources.and_then(|resources| resources.shared.as_ref())
                && !overflow
                && self.connections.len() == 1
            {
                shared.memory.check(&whose)?;
            }
        }
        Ok(())
    }

    pub(crate) fn next_round(&mut self, number: usize) -> Result<(), String> {
        let connection = &mut self.connections[number];
        connection.round += 1;
        connection.id = None;
        connection.accepted = false;
        connection.ending = None;
        connection.refusals.clear();
        connection.causes.clear();
        let plan = connection.plan;
        let dead = plan.hosts.iter().any(|host| {
            let host = self.hosts[*host].as_ref();
            host.is_none_or(|host| host.plan.overflow)
        });
        for end in &mut connection.ends {
            self.qps.remove(&(end.host, end.qp_num));
        }
        if connection.round >= plan.rounds || dead {
            connection.stage = Stage::Over;
            for end in &mut connection.ends {
                (end.qp, end.memory) = (None, None);
                end.expected = VecDeque::new();
            }
            return Ok(());
        }
        connection.stage = Stage::Opening;
        for end in 0..2 {
            let used = self.connections[number].ends[end].qp.take();
            let used = used.filter(|_| self.random.bool());
            if let Some(qp) = used.as_ref().filter(|qp| qp.state() == QpState::Error)
                && !qp.reset()
            {
                return Err(format!(
                    "connection {number} end {end}: a QP in state Error cannot be reset"
                ));
            }
            if let Some(memory) = &self.connections[number].ends[end].memory {
                for lent in memory.lent.iter().filter(|lent| lent.is_of_qp()) {
                    lent.check_dead()?;
                }
            }
            self.connections[number].ends[end] = self.end(plan, end, used)?;
        }
        self.begin(number)
    }

    /// Drops all resources at the end of a run, and checks that no connection or object is left.
    pub(crate) fn tear_down(mut self) -> Result<(), String> {
        self.connections.clear();
        for host in self.hosts.iter_mut().flatten() {
            host.resources = None;
        }
        self.switch.calm();
        let (end, nothing) = (self.clock.elapsed() + PATIENCE, DeviceUsage::default());
        loop {
            let next = self.settle()?;
            let hosts = || self.hosts.iter().flatten();
            let left: usize = hosts().map(|host| host.network.connections()).sum();
            let kept = hosts().map(|host| host.device.usage());
            let kept: Vec<_> = kept.filter(|usage| *usage != nothing).collect();
            if left == 0 && kept.is_empty() {
                break;
            }
            match next {
                Some(next) if next < end => self.clock.set(self.clock.start() + next),
                _ => {
                    return Err(format!(
                        "{left} TCP connections never end; still in use: {kept:?}"
                    ));
                }
            }
        }
        for (number, host) in self.hosts.iter().enumerate() {
            let Some(host) = host else {
                continue;
            };
            // The limit equals the number of domains, so these allocations succeed only if the old
            // domains are gone.
            let domains = (0..host.plan.domains).map(|_| host.device.alloc_pd());
            let domains: Result<Vec<_>, _> = domains.collect();
            let cq = host.device.create_cq(1);
            domains.map_err(|error| format!("host {number} leaks a protection domain: {error}"))?;
            cq.map_err(|error| format!("host {number} leaks a CQ: {error}"))?;
        }
        Ok(())
    }
}

/// Checks that every request of an end has completed, and that its Writes and atomics have taken
/// effect.
fn check_settled(me: &mut End, peer: &mut End, polled: bool, may_fail: bool) -> Result<(), String> {
    let left = me.sends.iter().find(|sent| sent.signaled);
    if let Some(left) = left.filter(|_| polled) {
        return Err(format!("{left:?} never completes"));
    }
    if polled && !me.receives.is_empty() {
        return Err(format!("{:?} never completes", me.receives.front()));
    }
    if !may_fail {
        let all = me.writes.len();
        placed(me, peer, all)?;
    }
    check_word(me, peer)?;
    let Some(qp) = &me.qp else {
        return Ok(());
    };
    if qp.end_reason().is_some() && me.end_events == 0 {
        return Err("no event reported its end".to_owned());
    }
    let attr = qp.query();
    if attr.ird_used + attr.ord_used > 0 {
        return Err(format!("Reads are still counted as in flight: {attr:?}"));
    }
    Ok(())
}

/// Checks that the word of `to` has a value that the atomics from `from` may have left.
fn check_word(from: &End, to: &End) -> Result<(), String> {
    let Some(memory) = &to.memory else {
        return Ok(());
    };
    let word = memory.word.read(0, 8);
    let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
    let may = &from.words[from.atomics_done..];
    if may.contains(&word) {
        return Ok(());
    }
    Err(format!(
        "{} atomics were posted and {} completed, but the word is {word:x}, none of {may:x?}",
        from.words.len() - 1,
        from.atomics_done
    ))
}
