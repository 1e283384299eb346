//! Connection setup: active and passive hosts, and the initial state of each end.

use std::time::Duration;

use uwarp_verbs::{
    AcceptOptions, Access, AsyncEvent, CmEvent, CmEventKind, ConnectOptions, ConnectRequest, QpCaps,
};

use super::end_cause::{connection_name, parse_name, refusal};
use super::{Connection, Event, PATIENCE, Stage, World};
use crate::end::{End, Memory};
use crate::host::address;
use crate::memory::{ELEMENTS, Tracked, base, pattern};
use crate::scenario::ConnectionPlan;

/// One in this many rounds is rejected by the responder's program.
const REJECTED: u8 = 24;

impl World {
    /// Sets up an end with new memory. The QP is new, or is `used` from an earlier round.
    pub(crate) fn end(
        &mut self,
        plan: ConnectionPlan,
        end: usize,
        used: Option<uwarp_verbs::Qp>,
    ) -> Result<End, String> {
        let number = plan.hosts[end];
        let seed = self.random.u64(..);
        let (source, target, sink) = (64 << 10, 96 << 10, 96 << 10);
        let [at_source, at_target, at_sink, at_word] =
            [source, target, sink, 16].map(|len| base(&mut self.random, len));
        let Some(host) = &self.hosts[number] else {
            return Err(format!("host {number} has died"));
        };
        let Some(resources) = &host.resources else {
            return Err(format!("host {number} has released its resources"));
        };
        let domain = plan.domains[end] % host.plan.domains;
        let pd = resources.domain(domain);
        let qp = match used {
            Some(qp) => qp,
            None => {
                let mut builder = pd.qp().caps(QpCaps::default().max_send_sge(ELEMENTS));
                if let Some(shared) = &resources.shared {
                    builder = builder.srq(&shared.srq);
                }
                builder
                    .build(resources.cq(), resources.cq())
                    .map_err(|error| format!("host {number}: {error}"))?
            }
        };
        let receives = (plan.operations[1 - end] as usize + 40) * host.plan.receive;
        let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let atomic = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_READ;
        let local = Access::LOCAL_WRITE;
        let memory = Memory {
            source: Tracked::new(
                pd,
                "the source",
                &pattern(seed, source),
                Access::REMOTE_READ,
                at_source,
                None,
            )?,
            target: Tracked::blank(pd, "the target", target, write, at_target, None)?,
            sink: Tracked::blank(pd, "the sink", sink, local, at_sink, None)?,
            receives: if resources.shared.is_some() {
                None
            } else {
                let len = receives.max(1);
                Some(Tracked::blank(pd, "the receives", len, local, 0, None)?)
            },
            word: Tracked::new(pd, "the word", &[0; 16], atomic, at_word, None)?,
            lent: Vec::new(),
        };
        Ok(End::new((number, domain), qp, memory, plan.operations[end]))
    }

    /// Begins a round of a connection: posts receives, schedules the programs and resolves the
    /// address.
    pub(crate) fn begin(&mut self, connection: usize) -> Result<(), String> {
        let now = self.clock.elapsed();
        let Connection { ends, round, .. } = &self.connections[connection];
        let (round, hosts) = (*round, [ends[0].host, ends[1].host]);
        let rejects = !self.harmless && self.random.u8(0..REJECTED) == 0;
        self.connections[connection].rejects = rejects;
        self.connections[connection].causes = self.causes_at_birth(connection);
        for end in 0..2 {
            let End { host, qp_num, .. } = self.connections[connection].ends[end];
            self.qps.insert((host, qp_num), (connection, end));
            self.refill(connection, end)?;
            let pause = Duration::from_micros(self.random.u64(0..2000));
            let tick = Event::Tick {
                connection,
                end,
                round,
            };
            self.at(now + pause, tick);
        }
        let over = Event::Over {
            connection,
            round,
            again: false,
        };
        self.at(now + PATIENCE, over);
        self.log.event(now, || {
            format!("connection {connection} round {round}: begins")
        });
        let (Some(host), context) = (&self.hosts[hosts[0]], connection as u64) else {
            return Ok(());
        };
        let Some(resources) = &host.resources else {
            return Ok(());
        };
        let id = resources.channel.create_id(&host.device, context);
        let resolved = id.resolve_addr(None, address(hosts[1], self.ipv6));
        self.connections[connection].id = Some(id);
        resolved.map_err(|error| format!("connection {connection}: {error}"))
    }

    /// Handles all requests and events of a host. Returns true if there were any.
    pub(crate) fn handle_cm(&mut self, host: usize) -> Result<bool, String> {
        let mut busy = false;
        loop {
            let Some(resources) = self.hosts[host]
                .as_ref()
                .and_then(|host| host.resources.as_ref())
            else {
                return Ok(busy);
            };
            if let Some(event) =
                (self.hosts[host].as_ref()).and_then(|host| host.device.poll_event())
            {
                self.async_event(host, &event)?;
            } else if let Some(request) = resources.listener.poll_request() {
                self.connect_request(host, request)?;
            } else if let Some(event) = resources.channel.try_get_event() {
                self.cm_event(&event)?;
            } else {
                return Ok(busy);
            }
            busy = true;
        }
    }

    /// Checks an asynchronous event of a device.
    fn async_event(&mut self, host: usize, event: &AsyncEvent) -> Result<(), String> {
        let overflow = self.plans[host].overflow;
        let (fits, qp_num) = match event {
            AsyncEvent::Ended { qp_num, .. } => (true, Some(qp_num)),
            AsyncEvent::Established { .. } => (true, None),
            AsyncEvent::LastWqeReached { .. } => (self.plans[host].srq, None),
            AsyncEvent::CqOverflow { .. } => (overflow, None),
            _ => (false, None),
        };
        if !fits {
            return Err(format!("host {host}: unexpected event {event:?}"));
        }
        let whose = qp_num.and_then(|qp_num| self.qps.get(&(host, *qp_num)));
        if let Some((number, end)) = whose.copied() {
            let end = &mut self.connections[number].ends[end];
            // A graceful close that loses data is reported a second time, with the error.
            let orderly = matches!(event, AsyncEvent::Ended { reason, .. } if reason.is_orderly());
            let again = end.end_events > 0 && (orderly || !end.last_end_orderly);
            end.end_events += 1;
            end.last_end_orderly = orderly;
            if again {
                return Err(format!("host {host}: an end is reported twice: {event:?}"));
            }
        }
        Ok(())
    }

    pub(crate) fn connect_request(
        &mut self,
        host: usize,
        request: ConnectRequest,
    ) -> Result<(), String> {
        let now = self.clock.elapsed();
        let Some((number, round)) = parse_name(request.private_data()) else {
            self.log
                .event(now, || "an unknown request: rejected".to_owned());
            return Ok(());
        };
        let Some(connection) = self.connections.get_mut(number) else {
            return Ok(());
        };
        let end = &connection.ends[1];
        let wanted = end.host == host
            && connection.stage != Stage::Over
            && !connection.accepted
            && connection.round == round;
        let Some(qp) = end.qp.as_ref().filter(|_| wanted) else {
            self.log
                .event(now, || format!("connection {number}: rejected"));
            return Ok(());
        };
        if connection.rejects {
            self.log.event(now, || {
                format!("connection {number}: rejected by the program")
            });
            let result = request.reject_with(&refusal(number, round));
            return result.map_err(|error| format!("connection {number}: {error}"));
        }
        let options = AcceptOptions::default()
            .ird(connection.plan.depths[1][0])
            .ord(connection.plan.depths[1][1]);
        self.log
            .event(now, || format!("connection {number}: accepted"));
        connection.accepted = true;
        if let Err(error) = request.accept(qp, &options)
            && !connection.may_fail()
        {
            return Err(format!("connection {number} cannot be accepted: {error}"));
        }
        self.opened(number, 1);
        Ok(())
    }

    pub(crate) fn opened(&mut self, number: usize, end: usize) {
        let connection = &mut self.connections[number];
        connection.ends[end].open = true;
        connection.ends[end].pause = 1000;
        if connection.stage == Stage::Opening {
            connection.stage = Stage::Open;
        }
        let tick = Event::Tick {
            connection: number,
            end,
            round: connection.round,
        };
        self.at(self.clock.elapsed(), tick);
    }

    pub(crate) fn cm_event(&mut self, event: &CmEvent) -> Result<(), String> {
        let now = self.clock.elapsed();
        let number = usize::try_from(event.id().context()).unwrap_or(usize::MAX);
        self.log.event(now, || {
            let why = event
                .cause()
                .map(|cause| format!(" ({cause})"))
                .unwrap_or_default();
            format!("connection {number}: {:?}{why}", event.kind())
        });
        let Some(connection) = self.connections.get(number) else {
            return Ok(());
        };
        let (plan, may_fail) = (connection.plan, connection.may_fail());
        let failed = |error: &dyn std::fmt::Display| {
            if may_fail {
                Ok(())
            } else {
                Err(format!("connection {number} is not established: {error}"))
            }
        };
        match event.kind() {
            CmEventKind::AddrResolved => event.id().resolve_route().or_else(|error| failed(&error)),
            CmEventKind::RouteResolved => {
                let options = ConnectOptions::default()
                    .private_data(connection_name(number, connection.round))
                    .ird(plan.depths[0][0])
                    .ord(plan.depths[0][1])
                    .peer_to_peer(plan.peer_to_peer);
                match &connection.ends[0].qp {
                    Some(qp) => event
                        .id()
                        .connect(qp, &options)
                        .or_else(|error| failed(&error)),
                    None => Ok(()),
                }
            }
            CmEventKind::Established => {
                self.opened(number, 0);
                Ok(())
            }
            CmEventKind::Disconnected => Ok(()),
            _ => {
                self.connections[number].stage = Stage::Closing;
                let cause = event.cause();
                failed(&cause.map(|cause| cause.to_string()).unwrap_or_default())
            }
        }
    }
}
