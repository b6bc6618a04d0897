#![no_main]

use lockkeeper_fuzz::connection;

libfuzzer_sys::fuzz_target!(|input: &[u8]| connection::judge(input));
