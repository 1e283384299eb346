//! Token that a controller has to know.

use std::hint::black_box;
use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Number of random bytes in a token.
const BYTES: usize = 16;

/// Creates a token of 128 random bits, as 32 hexadecimal digits.
///
/// # Errors
/// If the operating system has no random bytes.
pub fn random_token() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    // A call for at most 256 bytes returns all of them.
    getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares two tokens. The time does not depend on the position of the first difference.
pub(crate) fn same(given: &str, wanted: &str) -> bool {
    let pairs = given.bytes().zip(wanted.bytes());
    let difference = pairs.fold(0, |all, (one, other)| black_box(all | (one ^ other)));
    given.len() == wanted.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_random_and_compared_as_a_whole() {
        let (one, other) = (random_token().unwrap(), random_token().unwrap());
        assert_eq!(one.len(), 2 * BYTES);
        assert!(same(&one, &one) && !same(&one, &other));
        assert!(!same("", "a") && !same("ab", "a") && !same("a", "ab") && same("", ""));
    }
}
