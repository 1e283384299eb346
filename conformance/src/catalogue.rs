//! Catalogue of the requirements of the RFCs, read from the files in `data/`. Each has an id and
//! one sentence.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A requirement of an RFC.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requirement {
    /// RFC, section and sequence number, such as `5044-7.1.2-03`. A number such as `i03` marks a
    /// requirement that an RFC states without a keyword.
    pub id: String,
    /// MUST, MUST NOT, SHOULD, SHOULD NOT, MAY, or implied.
    pub level: String,
    /// Layer that has to meet the requirement: `mpa`, `mpa-startup`, `ddp`, `rdmap`, `rdmap-ext`,
    /// `security`, `local-interface` and so on.
    pub layer: String,
    /// Part of an endpoint that the requirement applies to.
    pub role: String,
    /// Where the requirement can be checked. `wire`: a peer can check it. `api`: a check needs the
    /// completions and events of the endpoint. `internal`: it applies between the layers of an
    /// endpoint. `n/a`: it does not apply to an endpoint.
    pub observable: String,
    /// The requirement as one sentence.
    pub text: String,
    /// Reaction that the RFC requires from an endpoint if its peer violates the requirement.
    pub error: String,
}

impl Requirement {
    /// Returns the RFC and section of the requirement, such as `5044-7.1.2`.
    #[must_use]
    pub fn section(&self) -> &str {
        section_of(&self.id)
    }

    /// Returns true for MUST, MUST NOT and implied requirements.
    #[must_use]
    pub fn is_must(&self) -> bool {
        matches!(self.level.as_str(), "MUST" | "MUST NOT" | "implied")
    }

    /// Returns true for SHOULD and SHOULD NOT.
    #[must_use]
    pub fn is_should(&self) -> bool {
        matches!(self.level.as_str(), "SHOULD" | "SHOULD NOT")
    }
}

/// Returns the RFC and section in a requirement id.
#[must_use]
pub fn section_of(id: &str) -> &str {
    id.rsplit_once('-').map_or(id, |(section, _)| section)
}

const FILES: [&str; 2] = [
    include_str!("../data/requirements.csv"),
    include_str!("../data/requirements_implied.csv"),
];

/// Returns all requirements, keyed by id.
///
/// # Panics
/// Never in practice: the files are part of the program, and a test parses them.
#[must_use]
pub fn requirements() -> BTreeMap<String, Requirement> {
    FILES
        .iter()
        .flat_map(|file| csv::Reader::from_reader(file.as_bytes()).into_deserialize())
        .map(|row: Result<Requirement, _>| row.expect("the files in data/ are valid"))
        .map(|requirement| (requirement.id.clone(), requirement))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_has_its_548_rows_and_no_id_twice() {
        let all = requirements();
        assert_eq!(all.len(), 497 + 51);
        let wire = all.values().filter(|row| row.observable == "wire");
        let musts = wire.filter(|row| matches!(row.level.as_str(), "MUST" | "MUST NOT"));
        assert_eq!(musts.count(), 279);
    }
}
