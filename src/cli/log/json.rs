//! Log lines as JSON. Each is put together in memory and written at once: the formatter of
//! `tracing_subscriber` writes every fragment by itself, which takes half as long again. Letters
//! that JSON allows, and that split a line or turn it around where it is shown, are escaped.

use std::fmt;
use std::time::SystemTime;

use humantime::format_rfc3339_micros;
use serde::Serializer as _;
use serde::ser::SerializeMap;
use serde_json::Serializer;
use tracing::{Event, Subscriber};
use tracing_serde::SerdeMapVisitor;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::cli::terminal::is_odd;
use crate::lock::time::wall_clock;

const DEL: u8 = 0x7f;

/// Room for a usual line.
const USUAL_BYTES: usize = 512;

/// The format of a line: time, level, the fields of the event, and its target.
#[derive(Debug)]
pub(super) struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let line = line(wall_clock(), event).map_err(|_| fmt::Error)?;
        let mut rest = std::str::from_utf8(&line).map_err(|_| fmt::Error)?;
        // Outside of texts JSON has none of them, and of ASCII it escapes all others but DEL. To look at
        // each letter of a line takes as long as to put it together.
        let may_be_odd = !line.is_ascii() || line.contains(&DEL);
        while may_be_odd
            && let Some((at, odd)) = rest.char_indices().find(|(_, letter)| is_odd(*letter))
        {
            writer.write_str(&rest[..at])?;
            for unit in odd.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + odd.len_utf8()..];
        }
        writeln!(writer, "{rest}")
    }
}

fn line(time: SystemTime, event: &Event<'_>) -> serde_json::Result<Vec<u8>> {
    let mut line = Vec::with_capacity(USUAL_BYTES);
    let mut serializer = Serializer::new(&mut line);
    let mut object = serializer.serialize_map(None)?;
    object.serialize_entry("timestamp", &format_rfc3339_micros(time).to_string())?;
    object.serialize_entry("level", event.metadata().level().as_str())?;
    let mut fields = SerdeMapVisitor::new(object);
    event.record(&mut fields);
    let mut object = fields.take_serializer()?;
    object.serialize_entry("target", event.metadata().target())?;
    object.end()?;
    Ok(line)
}
