#![no_main]

use lockkeeper_fuzz::request;

libfuzzer_sys::fuzz_target!(|input: &[u8]| request::judge(input));
