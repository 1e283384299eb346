//! Measures the speed of the in-memory link: bulk transfers and ping-pong, with one thread for both
//! ends and with one thread for each end.
//!
//! `cargo run --release -p uwarp-llp --example memory_speed`
#![expect(clippy::print_stdout, reason = "it prints its results")]

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use uwarp_llp::smol::{Congestion, MemoryNetwork, MemorySettings};
use uwarp_llp::{Llp, LlpError, Network, Piece, Recv, SendHints};

const BULK: usize = 1 << 29;
const MESSAGES: u32 = 50_000;

type Ends = (Box<dyn Llp>, Box<dyn Llp>);

fn connected(settings: &MemorySettings) -> Result<Ends, LlpError> {
    let (first, second) = MemoryNetwork::pair(settings)?;
    let mut listener = second.listen(([192, 0, 2, 2], 7174).into(), 1)?;
    let mut client = first.connect(None, listener.local_addr())?;
    let server = loop {
        client.drive();
        if let Some(server) = listener.try_accept()? {
            break server;
        }
    };
    Ok((client, server))
}

fn bulk_in_one_thread((mut client, mut server): Ends) -> Result<Duration, LlpError> {
    let (data, mut buffer) = (vec![1; 256 << 10], vec![0; 256 << 10]);
    let (start, mut got) = (Instant::now(), 0);
    while got < BULK {
        client.try_send(&[Piece::from(&data)], SendHints::NONE)?;
        while let Recv::Data(count) = server.try_recv(&mut buffer)? {
            got += count;
        }
    }
    Ok(start.elapsed())
}

fn bulk_in_two_threads((mut client, mut server): Ends) -> Result<Duration, LlpError> {
    let start = Instant::now();
    let sender = thread::spawn(move || {
        let data = vec![1; 256 << 10];
        let mut sent = 0;
        while sent < BULK {
            client.clear_readiness();
            let rest = data.len().min(BULK - sent);
            let taken = client.try_send(&[Piece::from(&data[..rest])], SendHints::NONE)?;
            sent += taken;
            if taken == 0 {
                wait(&*client);
            }
        }
        client.shutdown()?;
        while !client.flushed() {
            wait(&*client);
            client.clear_readiness();
            client.drive();
        }
        Ok::<_, LlpError>(())
    });
    let mut buffer = vec![0; 256 << 10];
    loop {
        server.clear_readiness();
        match server.try_recv(&mut buffer)? {
            Recv::Data(_) => {}
            Recv::WouldBlock => wait(&*server),
            Recv::Closed => break,
        }
    }
    let elapsed = start.elapsed();
    sender.join().expect("the sender does not panic")?;
    Ok(elapsed)
}

/// Waits for the descriptor or the deadline, like a program that does not spin.
fn wait(llp: &dyn Llp) {
    let left = llp
        .deadline()
        .map(|at| at.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    let mut fds = [PollFd::from_borrowed_fd(llp.fd(), PollFlags::IN)];
    rustix::event::poll(&mut fds, timeout.as_ref()).expect("poll takes these arguments");
}

fn ping_pong_in_one_thread((mut client, mut server): Ends) -> Result<Duration, LlpError> {
    let mut buffer = [0; 8];
    let start = Instant::now();
    for _ in 0..MESSAGES {
        client.try_send(&[Piece::from(b"8 octets")], SendHints::NONE)?;
        black_box(server.try_recv(&mut buffer)?);
        server.try_send(&[Piece::from(&buffer)], SendHints::NONE)?;
        black_box(client.try_recv(&mut buffer)?);
    }
    Ok(start.elapsed())
}

fn ping_pong_in_two_threads((mut client, mut server): Ends) -> Result<Duration, LlpError> {
    fn receive(llp: &mut dyn Llp, buffer: &mut [u8; 8]) -> Result<(), LlpError> {
        while llp.try_recv(buffer)? == Recv::WouldBlock {
            std::hint::spin_loop();
        }
        Ok(())
    }
    let start = Instant::now();
    let echo = thread::spawn(move || {
        let mut buffer = [0; 8];
        for _ in 0..MESSAGES {
            receive(&mut *server, &mut buffer)?;
            server.try_send(&[Piece::from(&buffer)], SendHints::NONE)?;
        }
        Ok::<_, LlpError>(server)
    });
    let mut buffer = [0; 8];
    for _ in 0..MESSAGES {
        client.try_send(&[Piece::from(b"8 octets")], SendHints::NONE)?;
        receive(&mut *client, &mut buffer)?;
    }
    let elapsed = start.elapsed();
    echo.join().expect("the echo does not panic")?;
    Ok(elapsed)
}

fn main() -> Result<(), LlpError> {
    let delays = [None, Some(Duration::from_millis(10))];
    println!(
        "MTU, congestion, ACK delay | GB/s 1 thread, 2 threads | us one-way 1 thread, 2 threads"
    );
    for (mtu, congestion) in [
        (1500, Congestion::None),
        (1500, Congestion::Reno),
        (1500, Congestion::Cubic),
        (9000, Congestion::None),
        (65535, Congestion::None),
        (65535, Congestion::Reno),
    ] {
        for ack_delay in delays {
            let settings = MemorySettings::default()
                .mtu(mtu)
                .congestion(congestion)
                .ack_delay(ack_delay);
            let rate = |elapsed: Duration| BULK as f64 / elapsed.as_secs_f64() / 1e9;
            let each = |elapsed: Duration| elapsed.as_secs_f64() * 1e6 / f64::from(MESSAGES) / 2.0;
            println!(
                "{mtu:5} {congestion:?} {ack_delay:?} | {:.2} {:.2} | {:.3} {:.3}",
                rate(bulk_in_one_thread(connected(&settings)?)?),
                rate(bulk_in_two_threads(connected(&settings)?)?),
                each(ping_pong_in_one_thread(connected(&settings)?)?),
                each(ping_pong_in_two_threads(connected(&settings)?)?),
            );
        }
    }
    Ok(())
}
