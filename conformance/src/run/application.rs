//! Requests to the application on the target, sent through its agent.

use serde_json::json;

use super::player::{Player, Step, Stop};
use crate::agent::{Registered, number};
use crate::script::{Data, Fill, Name, Post, Region};
use crate::words::many;

/// Receives that were posted together. Their buffers are adjacent parts of one region.
pub(super) struct PostedReceives {
    conn: u64,
    region: u64,
    /// `wr_id` of the first receive. The others have the numbers that follow.
    wr_id: u64,
    count: u32,
    stride: usize,
}

impl Player<'_> {
    /// Returns the agent's number for the connection in use.
    fn conn(&mut self) -> Result<u64, Stop> {
        self.connection()?.conn.ok_or_else(|| {
            Stop::Skip("the application's side of the connection needs an agent".into())
        })
    }

    pub(super) fn register(&mut self, region: &Region) -> Step {
        let mut members = json!({
            "len": region.len,
            "access": region.access,
            "pd": region.pd,
        });
        if region.skew != 0 {
            members["skew"] = json!(region.skew);
        }
        if region.scoped {
            members["conn"] = json!(self.conn()?);
            if let Some(members) = members.as_object_mut() {
                members.remove("pd");
            }
        }
        if region.zero_based {
            members["zero_based"] = json!(true);
        }
        let registered = self.agent()?.register(members, region.len)?;
        if let Fill::Pattern(seed) = region.fill {
            let seed = self.seed(seed);
            self.agent()?
                .command("fill", json!({"mr": registered.number, "seed": seed}))?;
        }
        self.note(format!(
            "the application has region {}: {} at {:#x}, STag {:#010x}, {}",
            region.name,
            many(region.len, "byte"),
            registered.addr,
            registered.rkey,
            region.access
        ));
        self.regions.insert(region.name, registered);
        Ok(())
    }

    pub(super) fn named(&self, name: Name) -> Result<Registered, Stop> {
        self.regions
            .get(name)
            .copied()
            .ok_or_else(|| Stop::Infrastructure(format!("the case has no region {name}")))
    }

    pub(super) fn deregister(&mut self, name: Name) -> Step {
        let number = self.named(name)?.number;
        self.agent()?.command("dereg", json!({"mr": number}))?;
        self.note(format!("the application deregistered region {name}"));
        Ok(())
    }

    pub(super) fn post_receives(&mut self, count: u32, len: usize) -> Step {
        let conn = self.conn()?;
        self.receives_on(conn, (count, len))
    }

    /// Posts `count` receives of `len` bytes each. Their buffers are adjacent parts of a new
    /// region.
    pub(super) fn receives_on(&mut self, conn: u64, (count, len): (u32, usize)) -> Step {
        if count == 0 {
            return Ok(());
        }
        let wr_id = self.next_wr;
        self.next_wr += u64::from(count);
        let room = (count as usize * len).max(1);
        let pd = json!({"len": room, "access": "lw", "pd": self.pd_of(conn)});
        let region = self.agent()?.register(pd, room)?;
        let sge = if len == 0 {
            String::new()
        } else {
            format!("{}:0+{len}", region.number)
        };
        self.agent()?.command(
            "recv",
            json!({"conn": conn, "wr_id": wr_id, "sge": sge, "count": count, "stride": len}),
        )?;
        self.receives.push(PostedReceives {
            conn,
            region: region.number,
            wr_id,
            count,
            stride: len,
        });
        Ok(())
    }

    /// Returns the protection domain that the setup of a connection chose.
    fn pd_of(&self, conn: u64) -> u32 {
        self.pds.get(&conn).copied().unwrap_or(0)
    }

    pub(super) fn post(&mut self, post: &Post) -> Step {
        let conn = self.conn()?;
        let (seed, at, len) = match post.data {
            Data::Pattern(seed, at, len) => (self.seed(seed), at, len),
            _ => (0, 0, 0),
        };
        let mut members = json!({
            "conn": conn,
            "op": post.op,
            "wr_id": self.next_wr,
        });
        self.next_wr += 1;
        if let Some(name) = post.from {
            let number = self.named(name)?.number;
            members["sge"] = json!(format!("{number}:0+{len}"));
        } else if len > 0 {
            let pd = self.pd_of(conn);
            let wanted = json!({"len": len, "access": "lw", "pd": pd});
            let region = self.agent()?.register(wanted, len)?;
            self.agent()?
                .command("fill", json!({"mr": region.number, "seed": seed, "at": at}))?;
            members["sge"] = json!(format!("{}:0+{len}", region.number));
            if let Some(name) = post.memory {
                self.regions.insert(name, region);
            }
        }
        if matches!(post.op, "write" | "write_imm" | "read" | "cas" | "fadd") {
            members["raddr"] = json!(post.to);
            members["rkey"] = json!(post.stag);
        }
        match post.op {
            "cas" => {
                members["compare"] = json!(post.compare);
                members["swap"] = json!(post.swap);
            }
            "fadd" => members["compare"] = json!(post.swap),
            _ => {}
        }
        if let Some(stag) = post.invalidate {
            members["inv"] = json!(stag);
        }
        if let Some(bytes) = post.immediate {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            members["imm"] = json!(digits);
        }
        if post.solicited {
            members["se"] = json!(true);
        }
        if post.fence {
            members["fence"] = json!(true);
        }
        self.agent()?.command("post", members)?;
        self.note(format!("the application posted {}, {}", post.op, post.data));
        Ok(())
    }

    pub(super) fn completion(&mut self, op: &str, success: bool) -> Step {
        let conn = self.conn()?;
        let timeout = self.config.timeout;
        let completion = self.agent()?.event(timeout, |event| {
            event["wc"] == json!(conn) && (event["op"] == json!(op) || !success)
        })?;
        let expected = if success {
            format!("a {op} of the application that succeeds")
        } else {
            format!("a {op} of the application that fails")
        };
        match completion {
            Some(completion) if (completion["status"] == "success") == success => {
                self.note(format!("the application's completion: {completion}"));
                Ok(())
            }
            other => Err(Stop::Fail {
                expected,
                received: other.map_or(format!("no completion within {timeout:?}"), |completion| {
                    completion.to_string()
                }),
            }),
        }
    }

    pub(super) fn received(&mut self, bytes: usize) -> Step {
        let conn = self.conn()?;
        let timeout = self.config.timeout;
        let completion = self.agent()?.event(timeout, |event| {
            event["wc"] == json!(conn) && event["op"] == json!("recv")
        })?;
        match completion {
            Some(completion)
                if completion["status"] == "success" && completion["len"] == json!(bytes) =>
            {
                self.note(format!("the application's completion: {completion}"));
                Ok(())
            }
            other => Err(Stop::Fail {
                expected: format!(
                    "a receive of the application with {bytes}",
                    bytes = many(bytes, "byte")
                ),
                received: other.map_or(format!("no completion within {timeout:?}"), |completion| {
                    completion.to_string()
                }),
            }),
        }
    }

    pub(super) fn receives_immediate(&mut self, bytes: &[u8; 8]) -> Step {
        let conn = self.conn()?;
        let timeout = self.config.timeout;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let fail = |received: String| {
            Err(Stop::Fail {
                expected: format!("a receive that completes with Immediate Data {bytes:02x?}"),
                received,
            })
        };
        let completion = self.agent()?.event(timeout, |event| {
            event["wc"] == json!(conn)
                && (event["op"]
                    .as_str()
                    .is_some_and(|op| op.starts_with("recv"))
                    || event["status"] != "success")
        })?;
        match completion {
            None => fail(format!("no completion within {timeout:?}")),
            Some(completion) if completion["imm"] == json!(digits) => {
                self.note(format!("the application's completion: {completion}"));
                Ok(())
            }
            Some(completion) => fail(completion.to_string()),
        }
    }

    pub(super) fn holds(&mut self, name: Name, offset: usize, data: &Data) -> Step {
        let region = self.named(name)?.number;
        let due = self.bytes(data)?;
        match self.peeked_difference(region, offset, &due)? {
            None => Ok(()),
            Some(received) => Err(Stop::Fail {
                expected: format!("{data} at offset {offset} of region {name}"),
                received,
            }),
        }
    }

    /// Compares the content of a region with `due`. Returns a description of the first difference,
    /// if there is one.
    fn peeked_difference(
        &mut self,
        region: u64,
        offset: usize,
        due: &[u8],
    ) -> Result<Option<String>, Stop> {
        for (number, chunk) in due.chunks(4096).enumerate() {
            let at = offset + number * 4096;
            let members = json!({"mr": region, "off": at, "len": chunk.len()});
            let answer = self.agent()?.command("peek", members)?;
            let digits: String = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
            if answer["data"] != json!(digits) {
                let is = answer["data"].as_str().unwrap_or_default();
                return Ok(Some(difference(is, &digits, at)));
            }
        }
        Ok(None)
    }

    /// Expects that the next receive to complete has exactly this data in its buffer.
    pub(super) fn delivered(&mut self, data: &Data) -> Step {
        let conn = self.conn()?;
        let timeout = self.config.timeout;
        let due = self.bytes(data)?;
        let fail = |received: String| {
            Err(Stop::Fail {
                expected: format!("that the application receives {data}"),
                received,
            })
        };
        let completion = self.agent()?.event(timeout, |event| {
            event["wc"] == json!(conn) && (event["op"] == "recv" || event["status"] != "success")
        })?;
        let Some(completion) = completion else {
            return fail(format!("no completion within {timeout:?}"));
        };
        self.note(format!("the application's completion: {completion}"));
        if completion["status"] != "success" || completion["len"] != json!(due.len()) {
            return fail(completion.to_string());
        }
        let wr_id = number(&completion, "wr_id")?;
        let posted = self.receives.iter().find(|posted| {
            posted.conn == conn
                && (posted.wr_id..posted.wr_id + u64::from(posted.count)).contains(&wr_id)
        });
        let Some(posted) = posted else {
            return fail(format!(
                "a completion of a receive that was not posted: {completion}"
            ));
        };
        let place = (wr_id - posted.wr_id) as usize * posted.stride;
        let region = posted.region;
        match self.peeked_difference(region, place, &due)? {
            None => Ok(()),
            Some(received) => fail(received),
        }
    }

    pub(super) fn disconnect(&mut self) -> Step {
        let conn = self.conn()?;
        self.agent()?.command("disconnect", json!({"conn": conn}))?;
        self.note("the application disconnects");
        Ok(())
    }
}

/// Describes the first byte in which two hexadecimal strings differ.
fn difference(is: &str, due: &str, offset: usize) -> String {
    let bytes = |digits: &str| -> Vec<String> {
        digits
            .as_bytes()
            .chunks(2)
            .map(|pair| String::from_utf8_lossy(pair).into_owned())
            .collect()
    };
    let (is, due) = (bytes(is), bytes(due));
    match is.iter().zip(&due).position(|(is, due)| is != due) {
        Some(at) => format!(
            "0x{} instead of 0x{} at offset {}",
            is[at],
            due[at],
            offset + at
        ),
        None => many(is.len(), "byte"),
    }
}
