//! `rdma_set_option`: results of the call, and effects of the options.

use super::super::option::set_option;
use super::*;
use crate::abi::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
    RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
};

/// Sets an option of an id to the first `len` bytes of a value.
fn set_bytes(id: Id, (level, option): (u32, u32), value: &mut [u8; 16], len: usize) -> c_int {
    let (level, option) = (level.cast_signed(), option.cast_signed());
    // SAFETY: the test passes an id, and at least `len` bytes.
    unsafe { set_option(id.0, level, option, value.as_mut_ptr().cast(), len) }
}

/// Sets an option whose value is an `int`.
fn set(id: Id, option: u32, value: c_int) -> c_int {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&value.to_ne_bytes());
    set_bytes(id, (RDMA_OPTION_ID, option), &mut bytes, 4)
}

const ALL: [(u32, usize); 4] = [
    (RDMA_OPTION_ID_TOS, 1),
    (RDMA_OPTION_ID_REUSEADDR, 4),
    (RDMA_OPTION_ID_AFONLY, 4),
    (RDMA_OPTION_ID_ACK_TIMEOUT, 1),
];

#[test]
fn an_option_of_an_id_is_taken_with_its_own_size_alone() {
    let channel = Channel::new();
    let id = channel.id(0);
    for (option, size) in ALL {
        for len in 0..=16 {
            let status = set_bytes(id, (RDMA_OPTION_ID, option), &mut [1; 16], len);
            if len == size {
                assert_eq!(status, 0, "option {option}, {len} bytes");
            } else {
                assert_eq!(failed(status), libc::EINVAL, "option {option}, {len} bytes");
            }
        }
        let (level, option) = (RDMA_OPTION_ID.cast_signed(), option.cast_signed());
        // SAFETY: the test passes an id; there is no value to read.
        let status = unsafe { set_option(id.0, level, option, ptr::null_mut(), size) };
        assert_eq!(failed(status), libc::EINVAL, "option {option}, NULL");
    }
    id.end();
    channel.end();
}

#[test]
fn options_and_levels_that_are_not_there_are_refused() {
    let channel = Channel::new();
    let id = channel.id(0);
    let last = RDMA_OPTION_ID_ACK_TIMEOUT;
    for of in [
        (RDMA_OPTION_ID, last + 1),
        (RDMA_OPTION_ID, u32::MAX),
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH),
        (RDMA_OPTION_IB, RDMA_OPTION_ID_TOS),
        (2, RDMA_OPTION_ID_AFONLY),
        (u32::MAX, RDMA_OPTION_ID_AFONLY),
    ] {
        for len in [1, 4] {
            let status = set_bytes(id, of, &mut [1; 16], len);
            assert_eq!(failed(status), libc::ENOSYS, "{of:?}, {len} bytes");
        }
    }
    id.end();
    channel.end();
}

#[test]
fn an_id_of_one_family_leaves_the_port_of_the_other_and_no_other_id_does() {
    let channel = Channel::new();
    let four = channel.id(0);
    assert_eq!(four.bind("0.0.0.0:0"), 0);
    assert_eq!(four.listen(), 0);
    let addr = format!("[::]:{}", four.local().port());
    // In these cases the id is not limited to one family: the option is not set; it is set and then
    // cleared; it is refused; another option is set.
    let plain: [fn(Id); 4] = [
        |_| (),
        |id| {
            assert_eq!(set(id, RDMA_OPTION_ID_AFONLY, 1), 0);
            assert_eq!(set(id, RDMA_OPTION_ID_AFONLY, 0), 0);
        },
        |id| {
            let of = (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY);
            assert_eq!(set_bytes(id, of, &mut [1; 16], 1), -1);
        },
        |id| assert_eq!(set(id, RDMA_OPTION_ID_REUSEADDR, 1), 0),
    ];
    for prepare in plain {
        let both = channel.id(0);
        prepare(both);
        assert_eq!(failed(both.bind(&addr)), libc::EADDRNOTAVAIL);
        both.end();
    }
    let six = channel.id(0);
    assert_eq!(set(six, RDMA_OPTION_ID_AFONLY, 1), 0);
    assert_eq!(six.bind(&addr), 0);
    assert_eq!(six.listen(), 0);
    for id in [four, six] {
        id.end();
    }
    channel.end();
}

#[test]
fn a_port_of_old_connections_is_free_and_one_of_an_id_is_not_whatever_reuseaddr_says() {
    let (client, server) = (Channel::new(), Channel::new());
    let (ours, theirs) = connected(client, server);
    let ports = [theirs, ours].map(|id| id.local().to_string());
    for (reuse, old) in [None, Some(0), Some(1)]
        .into_iter()
        .flat_map(|reuse| ports.iter().map(move |old| (reuse, old)))
    {
        let with = |channel: Channel| {
            let id = channel.id(0);
            let status = reuse.map(|reuse| set(id, RDMA_OPTION_ID_REUSEADDR, reuse));
            assert_eq!(status.unwrap_or(0), 0);
            id
        };
        let (over, late) = (with(server), with(server));
        assert_eq!(over.bind(old), 0, "REUSEADDR {reuse:?}");
        assert_eq!(failed(late.bind(old)), libc::EADDRINUSE);
        assert_eq!(over.listen(), 0, "REUSEADDR {reuse:?}");
        assert_eq!(failed(late.bind(old)), libc::EADDRINUSE);
        for id in [over, late] {
            id.end();
        }
        let (first, second) = (with(server), with(server));
        assert_eq!(first.bind("127.0.0.1:0"), 0);
        let taken = first.local().to_string();
        assert_eq!(failed(second.bind(&taken)), libc::EADDRINUSE);
        for id in [first, second] {
            id.end();
        }
    }
    for id in [ours, theirs] {
        id.end();
    }
    client.end();
    server.end();
}
