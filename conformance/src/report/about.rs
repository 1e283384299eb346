//! Header of a report: the target, the seed and the date of a run.

use std::time::{SystemTime, UNIX_EPOCH};

/// Target, seed and date of the run that a report describes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct About {
    /// Name of the target.
    pub target: String,
    /// Seed of the run: see [`Config::seed`](crate::Config::seed).
    pub seed: u64,
    /// Date and time in UTC, such as `2026-11-26 09:30 UTC`.
    pub date: String,
}

impl About {
    /// Creates the header of a run with the current date and time.
    #[must_use]
    pub fn now(target: &str, seed: u64) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        About {
            target: target.to_owned(),
            seed,
            date: utc(since.map_or(0, |since| since.as_secs())),
        }
    }
}

/// Formats seconds since 1970 as date and time of day, to the minute.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // A year begins in March here, so that the leap day is the last day of a year. An era is a
    // cycle of 400 years, in which leap days repeat.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + later;
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values come from `date -u -d @SECONDS '+%F %R UTC'`.
    #[test]
    fn seconds_are_the_date_that_the_system_says() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_709_164_800, "2024-02-29 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (1_795_685_400, "2026-11-26 09:30 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), date, "{seconds}");
        }
    }
}
