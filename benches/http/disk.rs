//! What the disk takes for the least that a durable answer needs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::report::median;

/// A page of the embedded store.
const PAGE: usize = 4_096;

/// Pages of the file; they are written in turn.
const PAGES: u64 = 256;

/// Writes a page and waits until it is on the disk, often; the median in microseconds.
pub(crate) fn sync_micros() -> f64 {
    let file = tempfile::tempfile_in(crate::on_disk()).unwrap();
    for number in 0..PAGES {
        write(&file, number);
    }
    median((0..4 * PAGES).map(|number| write(&file, number)))
}

fn write(file: &File, number: u64) -> f64 {
    let page = [u8::try_from(number % 251).unwrap(); PAGE];
    let began = Instant::now();
    file.write_all_at(&page, number % PAGES * PAGE as u64).unwrap();
    file.sync_data().unwrap();
    began.elapsed().as_secs_f64() * 1e6
}
