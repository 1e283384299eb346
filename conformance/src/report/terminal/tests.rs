use super::*;
use crate::script::Level;

fn failed() -> Failure {
    Failure {
        step: 1,
        sent: String::new(),
        expected: String::new(),
        received: String::new(),
        ending: None,
    }
}

fn outcome(verdict: Verdict) -> Outcome {
    Outcome {
        id: "mpa/5044-4.1/1".into(),
        level: Level::Must,
        rule: "A rule.".into(),
        requirements: Vec::new(),
        verdict,
        ending: None,
        millis: 0,
        log: Vec::new(),
        addresses: Vec::new(),
    }
}

fn of(verdicts: impl IntoIterator<Item = Verdict>) -> String {
    let outcomes: Vec<Outcome> = verdicts.into_iter().map(outcome).collect();
    summary(&outcomes)
}

#[test]
fn a_run_without_a_verdict_on_the_target_says_so() {
    let nothing = "nothing was played";
    let skipped = || Verdict::Skipped("it needs an agent".into());
    let error = || Verdict::Infrastructure("refused".into());
    for verdicts in [
        vec![],
        vec![skipped()],
        vec![error()],
        vec![skipped(), error()],
    ] {
        assert!(of(verdicts.clone()).contains(nothing), "{verdicts:?}");
    }
    for verdict in [
        Verdict::Pass,
        Verdict::Fail(failed()),
        Verdict::Deviation("known".into(), failed()),
        Verdict::Unexpected("known".into()),
    ] {
        let verdicts = vec![verdict, skipped(), error()];
        assert!(!of(verdicts.clone()).contains(nothing), "{verdicts:?}");
    }
}

#[test]
fn nouns_have_the_number_of_what_they_count() {
    let known = || Verdict::Deviation("known".into(), failed());
    let gone = || Verdict::Unexpected("known".into());
    let one = of([known(), gone()]);
    assert!(one.contains("1 known deviation no longer shows"), "{one}");
    assert!(one.ends_with("0 skipped, 1 known deviation"), "{one}");
    let two = of([known(), known(), gone(), gone()]);
    assert!(two.contains("2 known deviations no longer show"), "{two}");
    assert!(two.ends_with("0 skipped, 2 known deviations"), "{two}");
}
