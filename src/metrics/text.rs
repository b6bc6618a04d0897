//! The forms of the metrics' text.

use std::collections::HashMap;

/// The form of the metrics' text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsForm {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The older text of Prometheus. A counter is named as its samples are, and has no unit.
    Plain,
}

impl MetricsForm {
    /// The media type of its text.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// OpenMetrics as the older text, which names a family as its samples are named.
pub(super) fn plain(text: &str) -> String {
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let suffixes: HashMap<_, _> = kinds
        .filter_map(|(name, kind)| match kind {
            "counter" => Some((name, "_total")),
            "info" => Some((name, "_info")),
            _ => None,
        })
        .collect();
    let mut older = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => continue,
            (Some("#"), Some(what), Some(name), Some(rest)) => {
                let suffix = suffixes.get(name).copied().unwrap_or_default();
                let rest = if (what, rest) == ("TYPE", "info") { "gauge" } else { rest };
                older.push_str(&format!("# {what} {name}{suffix} {rest}"));
            }
            _ => older.push_str(line),
        }
        older.push('\n');
    }
    older
}
