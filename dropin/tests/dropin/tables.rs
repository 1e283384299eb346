//! Functions that programs call through pointers. Inline functions of `verbs.h` find the pointers
//! in tables of a context, a queue pair or a completion queue. The generated layouts have a field
//! for each pointer, and the source sets the fields of the implemented functions.

use std::collections::BTreeMap;

const LAYOUTS: &str = include_str!("../../src/abi/generated.rs");

/// A table: its structure, the source file that fills it, and the variable in that file.
pub(crate) struct Table {
    pub(crate) structure: &'static str,
    source: &'static str,
    variable: &'static str,
}

pub(crate) const TABLES: [Table; 4] = [
    Table {
        structure: "ibv_context_ops",
        source: include_str!("../../src/operations.rs"),
        variable: "ops",
    },
    Table {
        structure: "verbs_context",
        source: include_str!("../../src/operations.rs"),
        variable: "context",
    },
    Table {
        structure: "ibv_qp_ex",
        source: include_str!("../../src/qp/extended.rs"),
        variable: "shown",
    },
    Table {
        structure: "ibv_cq_ex",
        source: include_str!("../../src/cq_ex.rs"),
        variable: "shown",
    },
];

/// Functions that return 0, for features that iWARP does not have.
const ZERO: &[&str] = &["zero", "zero_byte"];

/// A function of a table.
pub(crate) struct Entry {
    /// Name of the inline function that programs call.
    pub(crate) function: String,
    /// Text in the matrix: `yes`, `no`, or `0` for a function that returns 0.
    pub(crate) here: &'static str,
}

impl Table {
    /// Returns the functions of the table, in the order of its fields.
    ///
    /// # Errors
    /// Returns a message if the structure is not found, or if the source sets a field that the
    /// structure does not have.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, String> {
        let fields = self.fields()?;
        let filled = self.filled();
        if let Some(other) = filled.keys().find(|name| !fields.contains(name)) {
            return Err(format!("{} has no function {other}", self.structure));
        }
        let entry = |field: &&str| Entry {
            function: called(field),
            here: match filled.get(field) {
                None => "no",
                Some(function) if ZERO.contains(function) => "0",
                Some(_) => "yes",
            },
        };
        Ok(fields.iter().map(entry).collect())
    }

    /// Returns the fields of the structure that are functions, without placeholders.
    fn fields(&self) -> Result<Vec<&'static str>, String> {
        let begin = format!("pub struct {} {{\n", self.structure);
        let body = LAYOUTS
            .split_once(&begin)
            .and_then(|(_, rest)| rest.split_once("\n}\n"));
        let (body, _) = body.ok_or_else(|| format!("there is no {}", self.structure))?;
        let fields = body.split("    pub ").filter_map(|field| {
            let (name, kind) = field.split_once(':')?;
            let is_function = kind.trim_start().starts_with("::core::option::Option<");
            let keeps_a_place = name.contains("_compat_") || name.contains("ABI_placeholder");
            (is_function && !keeps_a_place).then_some(name)
        });
        Ok(fields.collect())
    }

    /// Returns the fields that the source sets, with their values.
    fn filled(&self) -> BTreeMap<&'static str, &'static str> {
        let filled = self.source.lines().filter_map(|line| {
            let (place, value) = line.trim().strip_suffix(");")?.split_once(" = Some(")?;
            let (variable, field) = place.split_once('.')?;
            (variable == self.variable).then_some((field, value))
        });
        filled.collect()
    }
}

/// Returns the name of the inline function that calls the function in a field.
fn called(field: &str) -> String {
    match field {
        "query_rt_values" => "ibv_query_rt_values_ex".to_owned(),
        _ if field.starts_with("ibv_") => field.to_owned(),
        _ if field.starts_with("read_") && field != "read_counters" => format!("ibv_wc_{field}"),
        _ => format!("ibv_{field}"),
    }
}
