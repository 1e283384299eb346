//! RFC 5041 section 5.3: ordering.

use super::{STAG, TO, asks_for, sends, tagged_traffic, untagged_traffic, writes};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{Case, Post, Setup, must, should};

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ddp/5041-5.3/1",
            &["5041-5.3-01"],
            "Messages are sent in the order in which they were submitted, whatever their kind and length.",
        )
        .steps([
            Establish(Setup::default()),
            Post(Post::send(30_000)),
            Post(Post::write(STAG, TO, 1)),
            Post(Post::send(2)),
            Post(Post::read(STAG, TO, 3)),
            Post(Post::write(STAG, TO, 30_000)),
            Post(Post::read(STAG, TO, 4)),
            Post(Post::send(0)),
            Post(Post::send(5)),
            sends(30_000),
            writes(1),
            sends(2),
            asks_for(3),
            writes(30_000),
            asks_for(4),
            sends(0),
            sends(5),
        ]),
        should(
            "ddp/5041-5.3/2",
            &["5041-5.3-02"],
            "The segments of a message are sent with rising MO or TO.",
        )
        .steps(untagged_traffic(&[Rule::Mo]))
        .steps(tagged_traffic(&[Rule::To])),
    ]
}
