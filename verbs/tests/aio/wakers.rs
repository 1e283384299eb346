//! Wakers: the thread that calls them, and the locks that it holds meanwhile.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use crate::executor::{LIMIT, block_on};
use crate::{End, pair};

/// A waker that uses the connection itself, as a runtime that polls within `wake` would.
struct Nosy {
    end: Arc<End>,
    calls: Mutex<Sender<String>>,
}

impl Wake for Nosy {
    fn wake(self: Arc<Self>) {
        // These calls take the locks of the QP, of its table and of the pool. They would deadlock
        // if `wake` was called under one of them.
        assert!(self.end.connection.info().is_some());
        let buf = self.end.pool.try_get().unwrap();
        self.end.connection.post_recv(buf).unwrap();
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default().to_owned();
        let _ = self.calls.lock().unwrap().send(name);
    }
}

#[test]
fn a_waker_is_called_without_a_lock_by_the_thread_that_found_the_completion() {
    let (a, b) = pair();
    let (a, b) = (Arc::new(a), Arc::new(b));
    let (send, calls) = channel();
    let waker = Waker::from(Arc::new(Nosy {
        end: Arc::clone(&b),
        calls: Mutex::new(send),
    }));
    let mut cx = Context::from_waker(&waker);
    let mut recv = Box::pin(b.connection.recv(b.blank()));
    assert!(recv.as_mut().poll(&mut cx).is_pending());
    block_on(a.connection.send_inline(b"message")).unwrap();
    // Only the progress thread of the device can find the completion. That thread sleeps until the
    // socket is ready.
    assert_eq!(calls.recv_timeout(LIMIT).unwrap(), "uwarp-progress");
    assert!(recv.as_mut().poll(&mut cx).is_ready());
    // If the polling thread itself finds the completion, it wakes no task, because the future is
    // ready at once.
    let mut send = Box::pin(b.connection.send(b.buf(b"answer")));
    block_on(async {
        a.connection.post_recv(a.blank()).unwrap();
        assert!(send.as_mut().poll(&mut cx).is_ready());
    });
    assert!(calls.try_recv().is_err());
}
