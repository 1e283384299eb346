//! Number of unacknowledged bytes of a connection, read from a table of the kernel.

use std::net::{IpAddr, SocketAddr};

/// Returns the number of bytes in the send queue of a connection. Returns `None` if the kernel has
/// no such table, or the table does not list the connection.
pub(super) fn queued(local: SocketAddr, peer: SocketAddr) -> Option<usize> {
    let path = match local {
        SocketAddr::V4(_) => "/proc/self/net/tcp",
        SocketAddr::V6(_) => "/proc/self/net/tcp6",
    };
    let table = std::fs::read_to_string(path).ok()?;
    find(&table, &digits(local), &digits(peer))
}

/// Finds the send queue of a connection. The columns are: number, local address, remote address,
/// state, and send and receive queue.
fn find(table: &str, local: &str, peer: &str) -> Option<usize> {
    table.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        if columns.get(1..3)? != [local, peer] {
            return None;
        }
        let (send, _) = columns.get(4)?.split_once(':')?;
        usize::from_str_radix(send, 16).ok()
    })
}

/// Formats an address as in the table: the IP address as words in host byte order.
fn digits(addr: SocketAddr) -> String {
    let bytes = match addr.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut text = String::new();
    for word in bytes.chunks_exact(4) {
        let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        text.push_str(&format!("{word:08X}"));
    }
    text + &format!(":{:04X}", addr.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_found_by_both_addresses() {
        let (local, peer) = ("0100007F:1C06", "0100007F:8AB2");
        let table = format!(
            "  sl  local_address rem_address   st tx_queue rx_queue\n   \
             0: {local} 00000000:0000 0A 00000000:00000000 00:00000000\n   \
             1: {local} {peer} 01 000001F4:00000007 00:00000000\n"
        );
        assert_eq!(find(&table, local, peer), Some(500));
        assert_eq!(find(&table, peer, local), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn an_address_is_written_as_the_table_has_it() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 7174));
        assert_eq!(digits(addr), "0100007F:1C06");
    }
}
