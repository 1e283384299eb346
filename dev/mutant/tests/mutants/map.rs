//! Map from each mutant to the cases that must detect it, read from `mutants.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;
use uwarp_conformance::{Selection, list};
use uwarp_mutant::Mutant;

use crate::world::{Setting, World};

/// Seed of all worlds.
const SEED: u64 = 1;

/// The entry for one mutant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// Cases that must fail.
    pub(crate) cases: Vec<String>,
    /// Patterns of other cases that may fail, because they depend on the mutated code.
    #[serde(default)]
    pub(crate) also: Vec<String>,
    /// Reason why other cases may fail. If it is given and `also` is empty, nearly all cases may
    /// fail.
    pub(crate) why: Option<String>,
    #[serde(default = "yes")]
    crc: bool,
    /// The C bit that the suite sends, if it differs from the endpoint's.
    suite_crc: Option<bool>,
    #[serde(default)]
    markers: bool,
    #[serde(default)]
    initiates: bool,
}

fn yes() -> bool {
    true
}

impl Row {
    /// Returns true if nearly all cases may fail.
    pub(crate) fn is_pervasive(&self) -> bool {
        self.also.is_empty() && self.why.is_some()
    }

    /// Returns true if a failure of this case is explained.
    pub(crate) fn explains(&self, id: &str) -> bool {
        let named = self.cases.iter().any(|case| case == id);
        named
            || self.is_pervasive()
            || !self.also.is_empty() && Selection(self.also.clone()).takes(id)
    }

    /// Creates a world with this row's configuration.
    pub(crate) fn world(&self) -> World {
        let setting = Setting {
            crc: self.crc,
            markers: self.markers,
            revision: 2,
        };
        let mut world = World::new(setting, SEED);
        world.config.crc = self.suite_crc.unwrap_or(self.crc);
        world.config.target_initiates = self.initiates;
        world
    }

    /// Returns the fields that determine how the cases run.
    pub(crate) fn configuration(&self) -> (bool, bool, bool, bool) {
        let suite = self.suite_crc.unwrap_or(self.crc);
        (self.crc, suite, self.markers, self.initiates)
    }
}

/// Entries of all mutants, by name.
#[derive(Clone, Debug)]
pub(crate) struct Map(BTreeMap<String, Row>);

impl Map {
    pub(crate) fn get(&self, mutant: Mutant) -> &Row {
        &self.0[mutant.name()]
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.0.values()
    }
}

/// Reads the map. Checks that each mutant has an entry, that each entry has a mutant, and that each
/// case exists.
pub(crate) fn read() -> Result<Map, String> {
    let text = include_str!("../../mutants.toml");
    let rows: BTreeMap<String, Row> = toml::from_str(text).map_err(|error| error.to_string())?;
    let missing: Vec<&str> = Mutant::ALL
        .iter()
        .map(|mutant| mutant.name())
        .filter(|name| !rows.contains_key(*name))
        .collect();
    if !missing.is_empty() {
        return Err(format!("no row for {}", missing.join(", ")));
    }
    let known = list();
    for (name, row) in &rows {
        if Mutant::named(name).is_none() {
            return Err(format!("there is no mutant {name}"));
        }
        if row.cases.is_empty() {
            return Err(format!("{name} has no case"));
        }
        if row.why.is_none() && !row.also.is_empty() {
            return Err(format!("{name} does not say why other cases may fail"));
        }
        for id in &row.cases {
            if !known.iter().any(|case| case.id == *id) {
                return Err(format!("{name}: there is no case {id}"));
            }
        }
    }
    Ok(Map(rows))
}
