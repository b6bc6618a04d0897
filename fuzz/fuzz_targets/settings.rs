#![no_main]

use lockkeeper_fuzz::settings;

libfuzzer_sys::fuzz_target!(|input: &[u8]| settings::judge(input));
