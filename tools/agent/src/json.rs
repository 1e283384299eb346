//! Parses and writes the lines of both directions. Each is a flat JSON object.

use std::fmt::{self, Write};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::refusal::Refusal;

/// Maximum number of members of an object. No command has more.
const MAX_MEMBERS: usize = 32;

/// Members of a command, by key.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<(String, Scalar)>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Scalar {
    Text(String),
    Number(u64),
    Bool(bool),
    Null,
}

impl Fields {
    /// Parses a line. Refuses nested objects and arrays, duplicate keys, and numbers that are
    /// fractional, negative or above 2^64-1.
    pub(crate) fn parse(line: &[u8]) -> Result<Fields, Refusal> {
        serde_json::from_slice(line)
            .map_err(|error| Refusal::agent(format!("one flat JSON object was expected: {error}")))
    }

    fn get(&self, key: &str) -> Option<&Scalar> {
        let found = self.0.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns a numeric member, or `absent` if it is missing. It also accepts a string in C
    /// notation, such as "0x1f", because some controllers cannot write numbers above 2^53.
    pub(crate) fn number(&self, key: &str, absent: u64) -> Result<u64, Refusal> {
        let parsed = match self.get(key) {
            None => Some(absent),
            Some(Scalar::Number(number)) => Some(*number),
            Some(Scalar::Text(text)) => c_number(text),
            Some(Scalar::Bool(_) | Scalar::Null) => None,
        };
        parsed.ok_or_else(|| Refusal::agent(format!("{key}: a number was expected")))
    }

    /// Returns a numeric member that fits into the type, or `absent` if it is missing.
    pub(crate) fn number_as<T: TryFrom<u64>>(&self, key: &str, absent: T) -> Result<T, Refusal> {
        if !self.has(key) {
            return Ok(absent);
        }
        let number = self.number(key, 0)?;
        let bits = 8 * size_of::<T>();
        T::try_from(number)
            .map_err(|_| Refusal::agent(format!("{key}: at most {bits} bits were expected")))
    }

    pub(crate) fn text<'a>(&'a self, key: &str, absent: &'a str) -> Result<&'a str, Refusal> {
        match self.get(key) {
            None => Ok(absent),
            Some(Scalar::Text(text)) => Ok(text),
            Some(_) => Err(Refusal::agent(format!("{key}: a string was expected"))),
        }
    }

    pub(crate) fn flag(&self, key: &str, absent: bool) -> Result<bool, Refusal> {
        match self.get(key) {
            None => Ok(absent),
            Some(Scalar::Bool(flag)) => Ok(*flag),
            Some(_) => Err(Refusal::agent(format!("{key}: true or false was expected"))),
        }
    }

    /// Returns the bytes of a hexadecimal member. Refuses more than `room` bytes.
    pub(crate) fn hex(&self, key: &str, room: usize) -> Result<Vec<u8>, Refusal> {
        let text = self.text(key, "")?;
        let digits = text.len();
        if !digits.is_multiple_of(2) || digits / 2 > room {
            return Err(Refusal::agent(format!(
                "{key}: {digits} hexadecimal digits; an even number up to {} was expected",
                2 * room
            )));
        }
        unhex(text)
            .ok_or_else(|| Refusal::agent(format!("{key}: only hexadecimal digits were expected")))
    }

    /// Refuses a member whose key is not in `allowed`. Each element of `allowed` is a list of keys,
    /// separated by blanks.
    pub(crate) fn only(&self, allowed: &[&str]) -> Result<(), Refusal> {
        let known = |key: &str| {
            let mut words = allowed.iter().flat_map(|words| words.split(' '));
            words.any(|word| word == key)
        };
        match self.0.iter().find(|(key, _)| !known(key)) {
            None => Ok(()),
            Some((key, _)) => Err(Refusal::agent(format!(
                "this command has no '{}'; it takes: {}",
                shortened(key),
                allowed.join(" ").trim_end()
            ))),
        }
    }
}

/// Parses a decimal number, or a hexadecimal number with the prefix `0x`.
fn c_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        None if text.bytes().all(|digit| digit.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => u8::try_from(digit(*high)? << 4 | digit(*low)?).ok(),
            _ => None,
        })
        .collect()
}

/// Shortens text from the controller for use in an error message.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(24).collect()
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        while let Some((key, value)) = map.next_entry::<String, Scalar>()? {
            if fields.has(&key) {
                let key = shortened(&key);
                return Err(A::Error::custom(format_args!(
                    "the key '{key}' occurs twice"
                )));
            }
            if fields.0.len() == MAX_MEMBERS {
                return Err(A::Error::custom(format_args!(
                    "more than {MAX_MEMBERS} members"
                )));
            }
            fields.0.push((key, value));
        }
        Ok(fields)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a whole number from 0 to 2^64-1, true, false or null")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Scalar, E> {
        Ok(Scalar::Bool(flag))
    }

    fn visit_unit<E: Error>(self) -> Result<Scalar, E> {
        Ok(Scalar::Null)
    }
}

/// An output line, to which members are added.
#[derive(Debug)]
pub(crate) struct Line(String);

impl Line {
    pub(crate) fn new() -> Line {
        Line("{".to_owned())
    }

    pub(crate) fn number(&mut self, key: &str, value: impl Into<u64>) {
        let value: u64 = value.into();
        self.member(key, format_args!("{value}"));
    }

    pub(crate) fn signed(&mut self, key: &str, value: i32) {
        self.member(key, format_args!("{value}"));
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) {
        self.member(key, format_args!("{value}"));
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        // Serializing a str cannot fail.
        let quoted = serde_json::to_string(value).unwrap_or_default();
        self.member(key, format_args!("{quoted}"));
    }

    pub(crate) fn hex(&mut self, key: &str, bytes: &[u8]) {
        self.member(key, format_args!("\"{}\"", Hex(bytes)));
    }

    fn member(&mut self, key: &str, value: fmt::Arguments<'_>) {
        let comma = if self.0.len() > 1 { "," } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{comma}\"{key}\":{value}");
    }

    /// Returns the current position for [`back_to`](Self::back_to).
    pub(crate) fn mark(&self) -> usize {
        self.0.len()
    }

    /// Removes all members that were added after [`mark`](Self::mark).
    pub(crate) fn back_to(&mut self, mark: usize) {
        self.0.truncate(mark);
    }

    /// Closes the object and returns the line.
    pub(crate) fn finish(mut self) -> String {
        self.0.push_str("}\n");
        self.0
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        Fields::parse(line.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn members_are_strings_numbers_and_flags() {
        let line = br#" {"cmd":"x","n":18446744073709551615,"s":"0xff","t":true,"d":"00fF","\u0065":"\n"} "#;
        let fields = Fields::parse(line).unwrap();
        assert_eq!(fields.text("cmd", "").unwrap(), "x");
        assert_eq!(fields.number("n", 0).unwrap(), u64::MAX);
        assert_eq!(fields.number("s", 0).unwrap(), 255);
        assert_eq!(fields.number("absent", 7).unwrap(), 7);
        assert!(fields.flag("t", false).unwrap());
        assert_eq!(fields.hex("d", 2).unwrap(), [0, 255]);
        assert_eq!(fields.text("e", "").unwrap(), "\n");
        assert!(fields.number_as::<u32>("n", 0).is_err());
        for wrong in ["cmd", "t"] {
            assert!(fields.number(wrong, 0).is_err(), "{wrong}");
        }
        assert!(fields.hex("cmd", 2).is_err());
        assert!(fields.hex("d", 1).is_err());
        assert!(fields.flag("n", false).is_err());
        assert!(fields.text("t", "").is_err());
    }

    #[test]
    fn what_is_no_flat_object_is_refused_with_the_place() {
        for line in [
            "",
            "7",
            "[]",
            "{",
            "{}x",
            "{\"a\":[]}",
            "{\"a\":{}}",
            "{\"a\":1.5}",
            "{\"a\":-1}",
            "{\"a\":18446744073709551616}",
            "{\"a\":1,}",
            "{a:1}",
            "nonsense",
            "{\"a\":\"\u{1}\"}",
        ] {
            assert!(
                refused(line).contains("column"),
                "{line}: {}",
                refused(line)
            );
        }
        assert!(refused("{\"a\":1,\"a\":2}").contains("the key 'a' occurs twice"));
        let many: Vec<_> = (0..33).map(|key| format!("\"{key}\":0")).collect();
        assert!(refused(&format!("{{{}}}", many.join(","))).contains("more than 32 members"));
    }

    #[test]
    fn numbers_in_strings_are_those_of_c() {
        let numbers = ["0", "12", "0x0", "0xFFFFffff", "18446744073709551615"];
        assert!(numbers.iter().all(|text| c_number(text).is_some()));
        for text in [
            "",
            "0x",
            "+1",
            "-1",
            "1 ",
            "0x+1",
            "ff",
            "18446744073709551616",
        ] {
            assert_eq!(c_number(text), None, "{text}");
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_those_that_there_are() {
        let fields = Fields::parse(br#"{"id":1,"len":2}"#).unwrap();
        fields.only(&["id cmd", "len access"]).unwrap();
        let error = fields.only(&["id cmd", "access"]).unwrap_err().to_string();
        assert_eq!(error, "this command has no 'len'; it takes: id cmd access");
    }

    #[test]
    fn a_line_is_written_and_taken_back() {
        let mut line = Line::new();
        line.number("id", 7u64);
        let mark = line.mark();
        line.text("text", "\"\u{7f}\n");
        line.back_to(mark);
        line.flag("ok", false);
        line.signed("status", -111);
        line.hex("data", &[0, 255]);
        line.text("text", "a\"b");
        let whole = r#"{"id":7,"ok":false,"status":-111,"data":"00ff","text":"a\"b"}"#;
        assert_eq!(line.finish(), format!("{whole}\n"));
    }
}
