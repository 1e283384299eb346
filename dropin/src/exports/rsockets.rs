//! Symbols of librdmacm for sockets over RDMA (`rsocket`).

use super::absent_names as absent;

absent! {
    "@@RDMACM_1.0"
    raccept => minus_one,
    rbind => minus_one,
    rclose => minus_one,
    rconnect => minus_one,
    rfcntl => minus_one,
    rgetpeername => minus_one,
    rgetsockname => minus_one,
    rgetsockopt => minus_one,
    riomap => minus_one,
    riounmap => minus_one,
    riowrite => minus_one,
    rlisten => minus_one,
    rpoll => minus_one,
    rread => minus_one,
    rreadv => minus_one,
    rrecv => minus_one,
    rrecvfrom => minus_one,
    rrecvmsg => minus_one,
    rselect => minus_one,
    rsend => minus_one,
    rsendmsg => minus_one,
    rsendto => minus_one,
    rsetsockopt => minus_one,
    rshutdown => minus_one,
    rsocket => minus_one,
    rwrite => minus_one,
    rwritev => minus_one,
}
