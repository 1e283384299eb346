//! Consistency of the cases with the catalogue: ids, requirements and coverage.

use std::collections::BTreeSet;

use uwarp_conformance::{Level, coverage, explain, list, requirements, section_of};

#[test]
fn every_requirement_that_a_peer_can_judge_has_a_case_or_a_reason() {
    let coverage = coverage();
    let missing: Vec<String> = coverage
        .missing
        .iter()
        .map(|row| format!("{} {}: {}", row.id, row.level, row.text))
        .collect();
    assert!(
        missing.is_empty(),
        "without either:\n{}",
        missing.join("\n")
    );
}

#[test]
fn cases_and_exceptions_name_requirements_that_there_are() {
    let wrong = coverage().wrong;
    assert!(
        wrong.is_empty(),
        "not in the catalogue, or both excepted and covered: {wrong:?}"
    );
}

#[test]
fn every_exception_has_a_reason_that_says_something() {
    for (id, reason) in coverage().exceptions {
        assert!(reason.split_whitespace().count() >= 8, "{id}: {reason}");
    }
}

#[test]
fn ids_are_layer_section_and_number_and_none_comes_twice() {
    let mut seen = BTreeSet::new();
    for case in list() {
        let parts: Vec<&str> = case.id.split('/').collect();
        let [layer, section, number] = parts[..] else {
            panic!("{} has not three parts", case.id);
        };
        assert!(
            ["mpa", "ddp", "rdmap", "ext", "sec"].contains(&layer),
            "{}",
            case.id
        );
        assert!(number.parse::<u32>().is_ok(), "{}", case.id);
        let of_section = |id: &String| {
            let of = section_of(id);
            of == section || of.starts_with(&format!("{section}."))
        };
        assert!(
            case.requirements.iter().any(of_section),
            "{} is about no requirement of its section: {:?}",
            case.id,
            case.requirements
        );
        assert!(seen.insert(case.id.clone()), "{} is there twice", case.id);
    }
    assert!(seen.len() > 200, "{} cases", seen.len());
}

/// The rule of a case is a sentence, and the case has at least two steps.
#[test]
fn every_case_has_a_rule_and_steps() {
    for case in list() {
        assert!(case.rule.ends_with('.'), "{}: {}", case.id, case.rule);
        let (_, steps) = explain(&case.id).expect("it is listed");
        assert!(steps.len() >= 2, "{}: {steps:?}", case.id);
    }
}

/// A case may be less binding than its requirements, because a peer may behave in the same way for
/// another reason. It must not be more binding.
#[test]
fn no_case_binds_more_than_its_requirements() {
    let catalogue = requirements();
    for case in list() {
        let most = case
            .requirements
            .iter()
            .filter_map(|id| catalogue.get(id))
            .map(|row| match row.level.as_str() {
                "MUST" | "MUST NOT" | "implied" => Level::Must,
                "SHOULD" | "SHOULD NOT" => Level::Should,
                _ => Level::May,
            })
            .min();
        assert!(
            most.is_some_and(|most| case.level >= most),
            "{} is {}, and its requirements are at most {most:?}",
            case.id,
            case.level
        );
    }
}
