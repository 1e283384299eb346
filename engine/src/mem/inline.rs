//! Inline data of a work request.

/// Copy of the data of a work request, made when the request is posted.
///
/// The program may reuse its own memory as soon as the post returns. This object serves one request
/// after another: clearing it keeps the allocation. It is not registered memory, so a slice of the
/// bytes serves as the payload.
#[derive(Default, Debug)]
pub struct InlineData {
    bytes: Vec<u8>,
}

impl InlineData {
    /// Removes the bytes; keeps the allocation.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
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
        let before = data.bytes.capacity();
        data.clear();
        assert!(data.is_empty());
        data.push(&own);
        assert_eq!(data.bytes.capacity(), before);
    }
}
