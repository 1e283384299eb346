//! Addresses of servers, by name or number.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::failure::{Failure, Report};

/// The first address of a name.
pub(crate) fn resolve(name: &str, port: u16) -> Result<SocketAddr, Failure> {
    let bare = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(name);
    let unknown = |why: &dyn std::fmt::Display| {
        Failure::from(
            Report::new(format!("no address is known for the host '{name}': {why}"))
                .fault("the name given here, or the name service")
                .advice("an IP address"),
        )
    };
    let mut found = (bare, port)
        .to_socket_addrs()
        .map_err(|error| unknown(&error))?;
    found
        .next()
        .ok_or_else(|| unknown(&"the name service knows the name, but no address for it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_with_and_without_brackets() {
        let addrs = ["127.0.0.1", "::1", "[::1]", "::0"].map(|name| resolve(name, 7).unwrap());
        assert_eq!(
            addrs.map(|addr| addr.to_string()),
            ["127.0.0.1:7", "[::1]:7", "[::1]:7", "[::]:7"]
        );
        assert!(resolve("", 7).is_err());
    }
}
