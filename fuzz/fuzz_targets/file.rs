#![no_main]

use lockkeeper_fuzz::file;

// The store refuses a file on which the database panics; the fuzzer's own hook would stop there.
libfuzzer_sys::fuzz_target!(
    init: std::panic::set_hook(Box::new(|panic| {
        if panic.location().is_some_and(|place| place.file().ends_with("inputs/file.rs")) {
            eprintln!("{panic}");
        }
    })),
    |input: &[u8]| file::judge(input)
);
