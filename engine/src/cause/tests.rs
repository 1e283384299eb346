//! Snapshots of the words of every cause: one table per source, with a row for every variant.

use super::*;
use samples::addr;

mod ends;
mod local;
mod peer;
mod samples;
mod transport;

/// Samples of every variant of an enum. A variant without a sample does not compile, because the
/// patterns are also the arms of a `match`.
macro_rules! every {
    ($type:ty { $($variant:pat => [$($sample:expr),+ $(,)?]),+ $(,)? }) => {{
        let _ = |value: &$type| match value { $($variant => (),)+ };
        let mut samples: Vec<$type> = Vec::new();
        $($(
            let sample: $type = $sample;
            assert!(matches!(sample, $variant), "{sample:?} is in another row");
            samples.push(sample);
        )+)+
        samples
    }};
}
use every;
use every as every_sample;

#[test]
fn a_cause_is_small_enough_for_every_completion() {
    assert!(size_of::<Cause>() <= 56, "{}", size_of::<Cause>());
    assert!(size_of::<Option<Cause>>() <= 56);
}

/// Formats one cause with all its parts.
fn row(cause: &Cause) -> String {
    let code = cause
        .code()
        .map_or_else(String::new, |code| format!(", {code}"));
    let demand = cause
        .requirement()
        .map_or_else(String::new, |demand| format!(", {}", demand.id()));
    let hint = cause.hint().unwrap_or("-");
    format!(
        "{}\n  hint: {hint}\n  {}, {}{code}{demand}\n",
        cause.sentence(),
        cause.who(),
        cause.layer()
    )
}

/// Formats causes as rows under a title. Each cause must have a hint and state it once, except
/// causes that contain a text of `without_hint`.
fn table<T>(title: &str, causes: impl IntoIterator<Item = T>, without_hint: &[&str]) -> String
where
    T: Into<Cause>,
{
    let mut text = format!("# {title}\n");
    for cause in causes {
        let cause: Cause = cause.into();
        match cause.hint() {
            Some(hint) => assert_eq!(cause.to_string().matches(hint).count(), 1, "{cause}"),
            None => {
                let sentence = cause.sentence();
                assert!(
                    without_hint.iter().any(|words| sentence.contains(words)),
                    "without a hint: {cause}"
                );
            }
        }
        text += &row(&cause);
    }
    text + "\n"
}

#[test]
fn statuses_in_words() {
    let statuses = every!(Status {
        Status::Success => [Status::Success],
        Status::LocalLength => [Status::LocalLength],
        Status::LocalQpOperation => [Status::LocalQpOperation],
        Status::LocalProtection => [Status::LocalProtection],
        Status::WrFlush => [Status::WrFlush],
        Status::WindowBind => [Status::WindowBind],
        Status::BadResponse => [Status::BadResponse],
        Status::LocalAccess => [Status::LocalAccess],
        Status::RemoteInvalidRequest => [Status::RemoteInvalidRequest],
        Status::RemoteAccess => [Status::RemoteAccess],
        Status::RemoteOperation => [Status::RemoteOperation],
        Status::RetryExceeded => [Status::RetryExceeded],
        Status::ReceiverNotReady => [Status::ReceiverNotReady],
        Status::RemoteAbort => [Status::RemoteAbort],
        Status::Fatal => [Status::Fatal],
        Status::ResponseTimeout => [Status::ResponseTimeout],
        Status::General => [Status::General],
    });
    assert_eq!(Cause::of_status(Status::Success), None);
    let causes = statuses.into_iter().filter_map(Cause::of_status);
    insta::assert_snapshot!(table("completion statuses", causes, &[]));
}
