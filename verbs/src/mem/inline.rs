//! Inline data of a work request.

/// Bytes copied when the work request is posted, so that the program may use its memory again at once. Made to be
/// used again: clearing keeps its allocation. Nobody else writes them, so the slice is the payload.
#[derive(Default, Debug)]
pub(crate) struct InlineData {
    octets: Vec<u8>,
}

impl InlineData {
    /// Forgets the bytes; keeps the allocation.
    pub(crate) fn clear(&mut self) {
        self.octets.clear();
    }

    /// True when there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }

    /// The bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.octets
    }

    /// Appends bytes.
    pub(crate) fn push(&mut self, octets: &[u8]) {
        self.octets.extend_from_slice(octets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_data_is_a_copy_and_is_used_again_without_allocating() {
        let mut data = InlineData::default();
        let mut own = *b"octets";
        data.push(&own);
        own.fill(0);
        assert_eq!(data.as_slice(), b"octets");
        let before = data.octets.capacity();
        data.clear();
        assert!(data.is_empty());
        data.push(&own);
        assert_eq!(data.octets.capacity(), before);
    }
}
