//! Startup frame that the suite sends.

use std::time::Duration;

use super::player::{Player, Step, Stop};
use crate::script::Setup;
use crate::wire::startup::{C, Enhanced, M, REQUEST_KEY, StartupFrame, reply, request};

impl Player<'_> {
    /// Returns the startup frame for this setup: the frame of the setup itself, or `base` with the
    /// configured flags and revision.
    fn own_frame(&self, setup: &Setup, base: StartupFrame) -> StartupFrame {
        if let Some(frame) = &setup.frame {
            return frame.clone();
        }
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = bit(setup.crc.unwrap_or(self.config.crc), C)
            | bit(setup.markers.unwrap_or(self.config.markers), M);
        let base = base.flags(flags);
        // The IRD of the suite is the ORD of the application, and the other way round.
        let enhanced = Enhanced::client_server(setup.ord, setup.ird);
        if base.key == REQUEST_KEY && self.config.revision >= 2 {
            return base.enhanced(enhanced);
        }
        base
    }

    /// Sends the Request or Reply of the suite, with the changes that the setup asks for.
    pub(super) fn send_own(&mut self, setup: &Setup) -> Step {
        let fits = if self.target_responds {
            self.own_frame(setup, request())
        } else {
            self.own_reply(setup)?
        };
        let frame = setup.frame_changes.of(fits);
        let bytes = frame.bytes();
        let only = setup
            .frame_changes
            .only
            .unwrap_or(bytes.len())
            .min(bytes.len());
        let text = frame.to_string();
        self.connection()?.ours = Some(frame);
        let cuts = setup
            .frame_changes
            .cuts
            .iter()
            .copied()
            .filter(|cut| *cut < only);
        let mut from = 0;
        for to in cuts.chain([only]).collect::<Vec<_>>() {
            self.send_bytes(&bytes[from..to], &text)?;
            from = to;
            if to < only {
                // The pause puts each piece into a TCP segment of its own.
                self.config.network.pause(Duration::from_millis(2));
            }
        }
        Ok(())
    }

    /// Returns the Reply that matches the Request of the target. A frame in the setup takes
    /// precedence.
    fn own_reply(&mut self, setup: &Setup) -> Result<StartupFrame, Stop> {
        let frame = self.own_frame(setup, reply());
        let theirs = self.connection()?.theirs.clone();
        let Some(asked) = theirs.as_ref().and_then(StartupFrame::enhanced_data) else {
            return Ok(frame);
        };
        if setup.frame.is_some() {
            return Ok(frame);
        }
        // The value 0x3fff, which means that no depth is negotiated, is answered with the same
        // value.
        Ok(frame.enhanced(Enhanced {
            a: asked.a,
            b: asked.a && asked.b,
            c: asked.a && asked.c,
            d: asked.a && asked.d,
            ird: asked.ord,
            ord: asked.ird,
        }))
    }
}
