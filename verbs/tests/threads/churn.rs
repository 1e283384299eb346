//! Activity besides the connections: objects that are created and dropped, and queues that are
//! resized.

use std::sync::atomic::{AtomicBool, Ordering};

use uwarp_verbs::{Access, AsyncEvent, Cq, WindowKind};

use crate::common::{FILL, Side};

/// Creates, changes and drops objects of a busy device until `stop` is set.
pub(crate) fn churn(side: &Side, busy: &Cq, stop: &AtomicBool) {
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    for turn in 0_u32.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let mut region = side.pd.register(vec![FILL; 4096], rights).unwrap();
        let old = region.rkey();
        region
            .reregister()
            .access(Access::REMOTE_READ)
            .apply()
            .unwrap();
        assert_ne!(region.rkey(), old);
        let window = side.pd.alloc_window(WindowKind::Type2A).unwrap();
        drop(side.another_qp());
        // Both sizes exceed the number of requests that the clients and the server have
        // outstanding.
        busy.resize(2048 + turn % 2 * 1024).unwrap();
        region.deregister().unwrap();
        assert!(!window.is_bound());
        while let Some(event) = side.device.poll_event() {
            assert!(
                matches!(
                    event,
                    AsyncEvent::Established { .. }
                        | AsyncEvent::Ended { .. }
                        | AsyncEvent::LastWqeReached { .. }
                ),
                "{event:?}"
            );
        }
        std::thread::yield_now();
    }
}
