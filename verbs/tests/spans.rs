//! `tracing`: each connection has a span, which contains its events. A subscriber is global, so
//! this is a separate test binary.

mod common;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Wire, pair};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use uwarp_verbs::SendWr;

type Fields = BTreeMap<&'static str, String>;

/// Recorded spans and events.
#[derive(Default)]
struct Heard {
    spans: BTreeMap<u64, Fields>,
    /// Span and fields of each event, in the order of the events.
    events: Vec<(Option<u64>, Fields)>,
    entered: BTreeMap<u64, u64>,
}

#[derive(Clone, Default)]
struct Listener {
    heard: Arc<Mutex<Heard>>,
    next: Arc<AtomicU64>,
}

struct Collect<'a>(&'a mut Fields);

impl Visit for Collect<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("uwarp_verbs") && *metadata.level() <= Level::DEBUG
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut fields = Fields::from([("name", span.metadata().name().to_owned())]);
        span.record(&mut Collect(&mut fields));
        self.heard.lock().unwrap().spans.insert(id, fields);
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut heard = self.heard.lock().unwrap();
        let fields = heard.spans.get_mut(&span.into_u64()).unwrap();
        values.record(&mut Collect(fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Collect(&mut fields));
        let parent = event.parent().map(Id::into_u64);
        self.heard.lock().unwrap().events.push((parent, fields));
    }

    fn enter(&self, span: &Id) {
        *self
            .heard
            .lock()
            .unwrap()
            .entered
            .entry(span.into_u64())
            .or_default() += 1;
    }

    fn exit(&self, _: &Id) {}
}

#[test]
fn each_connection_has_a_span_with_its_story_inside() {
    let listener = Listener::default();
    tracing::subscriber::set_global_default(listener.clone()).unwrap();
    let (a, b) = pair(Wire::Kernel);
    b.post_empty(1);
    a.qp.post_send(&SendWr::send_inline(2, b"x")).unwrap();
    a.send_cq.success(2);
    b.recv_cq.next();
    // The Send finds no receive, so `b` sends a Terminate, which `a` receives.
    a.qp.post_send(&SendWr::send_inline(3, b"y")).unwrap();
    let (at_a, at_b) = (a.wait_end(), b.wait_end());
    let info = a.qp.connection();
    drop((a, b));
    let heard = listener.heard.lock().unwrap();
    let spans: Vec<(u64, &Fields)> = (heard.spans.iter())
        .filter(|(_, fields)| fields["name"] == "connection")
        .map(|(id, fields)| (*id, fields))
        .collect();
    assert_eq!(spans.len(), 2, "{spans:?}");
    let story = |id: u64, word: &str| {
        let mut inside = heard
            .events
            .iter()
            .filter(|(parent, _)| *parent == Some(id));
        inside.any(|(_, fields)| fields.values().any(|value| value.contains(word)))
    };
    let mut ends = [0, 0];
    for (id, fields) in spans {
        assert!(
            fields.contains_key("qp") && fields["local"] != fields["peer"],
            "{fields:?}"
        );
        assert!(heard.entered[&id] > 0);
        for word in ["RTS", "MPA startup is done", "connection ends", "FIN"] {
            assert!(story(id, word), "{word}: {:?}", heard.events);
        }
        ends[0] += usize::from(story(id, "Terminate received"));
        ends[1] += usize::from(story(id, "Terminate framed"));
    }
    assert_eq!(ends, [1, 1], "{at_a}, {at_b}");
    let info = info.unwrap();
    let local = info.local.to_string();
    assert!(
        heard
            .spans
            .values()
            .any(|fields| fields.get("local") == Some(&local))
    );
}
