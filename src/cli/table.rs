//! Output of the verbs: rows of columns, or lines of JSON.

use std::time::Duration;

use serde::de::IgnoredAny;

use crate::cli::voice::plain;
use crate::wire::StatusBody;

/// The text of an empty column.
const NOTHING: &str = "-";

/// The state of a key, its columns separated by tabs; keys and owners contain none.
pub(super) fn row(status: &StatusBody) -> String {
    let seconds = |ms: u64| format!("{:.1}", Duration::from_millis(ms).as_secs_f64());
    let shown = |text: Option<String>| text.unwrap_or_else(|| NOTHING.to_owned());
    [
        plain(&status.key),
        if status.held { "held" } else { "free" }.to_owned(),
        shown(status.ttl_ms.map(seconds)),
        shown(status.fencing_token.map(|number| number.to_string())),
        status.waiters.to_string(),
        shown(status.owner.as_deref().map(plain)),
    ]
    .join("\t")
}

/// The JSON of an answer in one line. Outside of strings JSON allows only these control characters,
/// inside only the remaining ones.
pub(super) fn json_line(body: &str) -> Result<String, serde_json::Error> {
    let _: IgnoredAny = serde_json::from_str(body)?;
    let mut line = String::with_capacity(body.len());
    for letter in body.trim().chars() {
        match letter {
            '\n' | '\r' | '\t' => line.push(' '),
            letter if letter.is_control() => {
                line.push_str(&format!("\\u{:04x}", u32::from(letter)))
            }
            letter => line.push(letter),
        }
    }
    Ok(line)
}
