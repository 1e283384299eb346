//! Honest client of `rping -s`.

use std::net::SocketAddr;

use uwarp_verbs::{
    Access, ConnectOptions, Cq, Device, MemoryRegion, Qp, QpCaps, RecvWr, SendWr, WcOpcode,
};

use crate::honest::Work;
use crate::{PATIENCE, Result};

/// Number of bytes of a ping: the most that rping takes.
const SIZE: u32 = 65_535;
/// Number of pings in one round.
const PINGS: u64 = 16;
/// Length of the message that tells the server where it may read or write.
const ADVERT: u32 = 16;

/// Client with an established connection. The server reads its ping data and writes it back.
pub(crate) struct Pings {
    qp: Qp,
    cq: Cq,
    start: MemoryRegion,
    echo: MemoryRegion,
    inbox: MemoryRegion,
    number: u64,
}

impl Pings {
    pub(crate) fn connect(to: SocketAddr) -> Result<Pings> {
        let device = Device::tcp()?;
        let cq = device.create_cq(64)?;
        let pd = device.alloc_pd()?;
        let caps = QpCaps::default().max_inline_data(ADVERT);
        let register = |len: u32, access| pd.register(vec![0; len as usize], access);
        let client = Pings {
            qp: pd.create_qp(&cq, &cq, caps)?,
            start: register(SIZE, Access::REMOTE_READ)?,
            echo: register(SIZE, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            inbox: register(ADVERT, Access::LOCAL_WRITE)?,
            cq,
            number: 0,
        };
        client.post_receive()?;
        let options = ConnectOptions::default().ird(1).ord(1);
        client.qp.connect(to, &options)?;
        Ok(client)
    }

    fn post_receive(&self) -> Result<()> {
        let sge = [self.inbox.sge(0, ADVERT)];
        Ok(self.qp.post_recv(&RecvWr::new(0, &sge))?)
    }

    /// Sends address, key and length of a region, and waits for the server's go-ahead message.
    fn lend(&self, region: &MemoryRegion) -> Result<()> {
        let mut advert = [0; ADVERT as usize];
        advert[..8].copy_from_slice(&region.addr().to_be_bytes());
        advert[8..12].copy_from_slice(&region.rkey().to_be_bytes());
        advert[12..].copy_from_slice(&SIZE.to_be_bytes());
        self.qp.post_send(&SendWr::send_inline(0, &advert))?;
        loop {
            let done = self.cq.wait(Some(PATIENCE));
            let done = done.ok_or("the honest peer got no completion in time")?;
            if !done.status.is_success() {
                return Err(format!("the honest peer got {done:?}").into());
            }
            if done.opcode == WcOpcode::Recv {
                return self.post_receive();
            }
        }
    }
}

impl Work for Pings {
    const BYTES: u64 = 2 * PINGS * SIZE as u64;

    /// Performs pings, and compares what the server has written back.
    fn round(&mut self) -> Result<()> {
        for _ in 0..PINGS {
            self.number += 1;
            // A ping is a text, with a zero as its last byte.
            let letter = |at: u64| b'A' + ((at ^ (at >> 8)).wrapping_add(self.number) % 50) as u8;
            let mut text: Vec<u8> = (1..u64::from(SIZE)).map(letter).collect();
            text.push(0);
            self.start.write_at(0, &text)?;
            self.lend(&self.start)?;
            self.lend(&self.echo)?;
            let mut came = vec![0; text.len()];
            self.echo.read_at(0, &mut came)?;
            if came != text {
                return Err("the honest peer got back another text than it had sent".into());
            }
        }
        Ok(())
    }
}
